"""`--draft` with a Hugging Face folder: converted once into the state folder, kept while it is right, and never in the way."""
import fcntl
import glob
import os
import shutil
import signal
import subprocess
import unittest

from wisp_e2e import DATA, WATCHDOG, Server, main, model, program, run_logits, temp, wisp

DRAFT = "pocket-dictionary-draft"
ASK = ["-p", "What is an apple?", "--profile", "exact"]
ONCE = "It is converted once"


class DraftFolder(unittest.TestCase):
    def setUp(self):
        name = self.id().rsplit(".", 1)[1]
        self.state = temp("state-" + name)
        self.env = {"XDG_STATE_HOME": self.state}
        self.draft = temp("hf-" + name)
        shutil.copytree(os.path.join(DATA, DRAFT), self.draft)

    def kept(self):
        """What lies in the folders of checkpoints."""
        return glob.glob(os.path.join(self.state, "wisp", "drafts", "*", "*"))

    def run_draft(self, **kw):
        return wisp("run", model(), *ASK, "--speculate", "3", "--draft", self.draft, **{"env": self.env, **kw})

    def test_it_is_converted_once_and_changes_no_byte(self):
        plain, plain_logits = run_logits(model(), *ASK, "--speculate", "off", env=self.env)
        first = self.run_draft()
        self.assertEqual(first.stdout.strip(), plain["text"])
        self.assertIn(f"--draft {self.draft} is a Hugging Face checkpoint. {ONCE}", first.stderr)
        self.assertIn(f"wisp convert {self.draft} {self.draft}-wisp", first.stderr)
        folder, = self.kept()
        self.assertIn(folder, first.stderr)
        wisp("verify", folder)
        before = os.stat(os.path.join(folder, "dense.safetensors"))
        second = self.run_draft()
        self.assertEqual(second.stdout, first.stdout)
        self.assertNotIn("convert", second.stderr)
        self.assertEqual(os.stat(os.path.join(folder, "dense.safetensors")).st_ino, before.st_ino)
        for draft in (self.draft, os.path.relpath(self.draft), model(DRAFT)):
            out, logits = run_logits(model(), *ASK, "--speculate", "3", "--draft", draft, env=self.env)
            self.assertEqual(out["token_ids"], plain["token_ids"])
            self.assertTrue(logits == plain_logits, "logits differ in bits")
            self.assertGreater(out["speculation"]["accepted"], 0)
        self.assertEqual(self.kept(), [folder])
        # Nothing is to be guessed: nothing is converted.
        shutil.rmtree(self.state)
        wisp("run", model(), *ASK, "--speculate", "off", "--draft", self.draft, env=self.env)
        self.assertEqual(self.kept(), [])

    def test_a_model_drafts_for_itself(self):
        source = temp("hf-target")
        shutil.copytree(os.path.join(DATA, DRAFT), source)
        want, want_logits = run_logits(model(DRAFT), *ASK, "--speculate", "off", env=self.env)
        got, logits = run_logits(model(DRAFT), *ASK, "--speculate", "3", "--draft", source, env=self.env)
        self.assertEqual(got["token_ids"], want["token_ids"])
        self.assertTrue(logits == want_logits, "logits differ in bits")
        self.assertGreater(got["speculation"]["accepted"], 0)

    def test_another_state_is_another_conversion(self):
        self.run_draft()
        former, = self.kept()
        weights = os.path.join(self.draft, "model.safetensors")
        s = os.stat(weights)
        os.utime(weights, ns=(s.st_atime_ns, s.st_mtime_ns + 1))
        self.assertIn(ONCE, self.run_draft().stderr)
        touched, = self.kept()
        self.assertNotEqual(touched, former)
        with open(os.path.join(self.draft, "generation_config.json"), "a") as f:
            f.write("\n")
        self.assertIn(ONCE, self.run_draft().stderr)
        changed, = self.kept()
        self.assertNotEqual(changed, touched)
        self.assertNotIn(ONCE, self.run_draft().stderr)

    def test_a_former_state_stays_while_it_is_used(self):
        with Server(model(), "--speculate", "3", "--draft", self.draft, env=self.env) as server:
            used, = self.kept()
            os.utime(os.path.join(self.draft, "model.safetensors"))
            self.assertIn(ONCE, self.run_draft().stderr)
            self.assertIn(used, self.kept())
            self.assertEqual(len(self.kept()), 2)
            status, reply = server.post("/v1/completions", {"prompt": "an apple is", "max_tokens": 4})
            self.assertEqual(status, 200, reply)
        self.assertNotIn(ONCE, self.run_draft().stderr)
        self.assertNotIn(used, self.kept())
        self.assertEqual(len(self.kept()), 1)

    def test_a_damaged_conversion_is_mended(self):
        self.run_draft()
        folder, = self.kept()
        dense = os.path.join(folder, "dense.safetensors")
        size = os.path.getsize(dense)
        os.truncate(dense, size // 2)
        p = self.run_draft()
        self.assertIn("dense.safetensors", p.stderr)
        self.assertIn("the draft is converted again", p.stderr)
        self.assertEqual(self.kept(), [folder])
        self.assertEqual(os.path.getsize(dense), size)
        wisp("verify", folder)
        with open(os.path.join(folder, "tokenizer.json"), "a") as f:
            f.write(" ")
        self.assertIn("the draft is converted again", self.run_draft().stderr)
        self.assertNotIn("convert", self.run_draft().stderr)

    def test_several_at_once(self):
        args = [program("wisp"), "run", model(), *ASK, "--speculate", "3", "--draft", self.draft, "--ram", "100M"]
        runs = [subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env=dict(os.environ, **self.env)) for _ in range(3)]
        done = [p.communicate(timeout=WATCHDOG) for p in runs]
        self.assertEqual([p.returncode for p in runs], [0, 0, 0], done)
        self.assertEqual(len({out for out, _ in done}), 1)
        self.assertEqual(sum(ONCE in err for _, err in done), 1, done)
        folder, = self.kept()
        wisp("verify", folder)

    def test_an_interrupted_conversion_is_ended_by_the_next_run(self):
        args = [program("wisp"), "run", model(), *ASK, "--speculate", "3", "--draft", self.draft]
        for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
            self.state = temp(f"state-ended-{int(number)}")
            self.env = {"XDG_STATE_HOME": self.state}
            p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env=dict(os.environ, **self.env))
            self.assertIn(ONCE, p.stderr.readline())
            p.send_signal(number)           # while it converts, or, on a quick machine, right behind
            out, err = p.communicate(timeout=WATCHDOG)
            self.assertEqual(p.returncode, code, err)
            whole = self.run_draft().stdout.strip()
            self.assertTrue(whole)
            self.assertTrue(whole.startswith(out.strip()), out)
            folder, = self.kept()
            wisp("verify", folder)

    def test_it_waits_for_another_process_and_can_be_interrupted(self):
        self.run_draft()
        folder, = self.kept()
        lock = os.open(os.path.dirname(folder), os.O_RDONLY)
        self.addCleanup(os.close, lock)
        args = [program("wisp"), "run", model(), *ASK, "--speculate", "3", "--draft", self.draft]
        for code in (130, 0):
            fcntl.flock(lock, fcntl.LOCK_EX)
            p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env=dict(os.environ, **self.env))
            self.assertIn("waiting for it", p.stderr.readline())
            if code:
                p.send_signal(signal.SIGINT)
            else:
                fcntl.flock(lock, fcntl.LOCK_UN)
            out, err = p.communicate(timeout=WATCHDOG)
            self.assertEqual((p.returncode, out == ""), (code, code != 0), err)
            if code:
                self.assertIn("interrupted", err)

    def test_what_is_refused_anyway_converts_nothing(self):
        for wrong in (["--speculate", "9"], ["--ctx", "999999"], ["--trace", os.path.join(model(), "trace")]):
            p = wisp("run", model(), "-p", "What is a dog?", "--draft", self.draft, *wrong, check=False, env=self.env)
            self.assertEqual(p.returncode, 1, p.stderr)
            self.assertNotIn(ONCE, p.stderr)
            self.assertEqual(self.kept(), [])

    def test_what_cannot_be_says_the_way_by_hand(self):
        file = temp("no-folder")
        open(file, "w").close()
        for env in ({"XDG_STATE_HOME": file}, {"XDG_STATE_HOME": "", "HOME": ""}):
            p = self.run_draft(env=env, check=False)
            self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
            self.assertIn(f"wisp convert {self.draft} {self.draft}-wisp, and give --draft {self.draft}-wisp", p.stderr)
            self.assertIn(os.path.join(file, "wisp", "drafts") if env["XDG_STATE_HOME"] else "XDG_STATE_HOME", p.stderr)
        os.unlink(os.path.join(self.draft, "config.json"))
        with open(os.path.join(self.draft, "config.json"), "w") as f:
            f.write('{"model_type": "nonsense"}')
        p = self.run_draft(check=False)
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        self.assertIn("--draft " + self.draft, p.stderr)
        self.assertIn("nonsense", p.stderr)

    def test_no_room(self):
        os.makedirs(self.state)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", self.state], capture_output=True).returncode != 0:
            self.skipTest("nothing can be mounted here")
        self.addCleanup(subprocess.run, ["umount", self.state])
        p = self.run_draft(check=False)
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        self.assertIn("are free", p.stderr)
        self.assertIn("by hand", p.stderr)
        self.assertEqual(self.kept(), [])

    def test_another_vocabulary_is_refused_before_it_is_converted(self):
        other = temp("hf-other")
        shutil.copytree(os.path.join(DATA, "oracle", "qwen3_published"), other, ignore=shutil.ignore_patterns("expected*"))
        p = wisp("run", model(), *ASK, "--draft", other, env=self.env, check=False)
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        self.assertIn("--draft " + other, p.stderr)
        self.assertNotIn(ONCE, p.stderr)
        self.assertEqual(self.kept(), [])

    def test_nothing_is_written_into_what_is_read(self):
        self.run_draft()
        folder, = self.kept()
        for where in (folder, self.draft):
            p = wisp("run", model(), *ASK, "--draft", self.draft, "--draft-log", os.path.join(where, "log"), env=self.env, check=False)
            self.assertEqual(p.returncode, 1)
            self.assertIn("--draft-log", p.stderr)
            self.assertFalse(os.path.exists(os.path.join(where, "log")))


if __name__ == "__main__":
    main()
