"""What drives and folders do to a running engine: slow for a while, unreadable in one place for ever, cut, read-only, shared.
The answer is the same, or one request fails by name; the engine stays."""
import json
import os
import shutil
import subprocess
import threading
import unittest

from loop_drive import LoopDrive, Throttle, possible
from wisp_e2e import STRIDE, Server, main, model, program, reference, run_json, temp, wisp

SLOTS = 24 * STRIDE                 # far fewer than the 256 experts: every question reads
BODY = {"messages": [{"role": "user", "content": "What is an apple?"}], "max_tokens": 24, "temperature": 0}


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def copy_of(name):
    folder = temp(name)
    shutil.copytree(model(), folder)
    return folder


def expert_files(folder):
    with open(os.path.join(folder, "manifest.json")) as f:
        return [l["file"] for l in json.load(f)["experts"] if l]


class Folders(unittest.TestCase):
    def test_two_instances_on_one_folder(self):
        with Server(model(), "--experts-ram", SLOTS) as a, Server(model(), "--experts-ram", SLOTS) as b:
            status, first = a.post("/v1/chat/completions", BODY)
            self.assertEqual(status, 200)
            both = [None, None]

            def ask(i, server):
                both[i] = server.post("/v1/chat/completions", BODY)

            threads = [threading.Thread(target=ask, args=(i, s)) for i, s in enumerate((a, b))]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            for status, answer in both:
                self.assertEqual(status, 200)
                self.assertEqual(text_of(answer), text_of(first))
            a.stop()
            status, answer = b.post("/v1/chat/completions", BODY)
            self.assertEqual((status, text_of(answer)), (200, text_of(first)))

    def test_a_file_cut_while_it_is_read(self):
        folder = copy_of("cut")
        with Server(folder, "--experts-ram", SLOTS) as s:
            status, before = s.post("/v1/chat/completions", BODY)
            self.assertEqual(status, 200)
            names = expert_files(folder)
            for name in names:
                os.truncate(os.path.join(folder, name), 4096)
            other = dict(BODY, messages=[{"role": "user", "content": "What is a dog?"}])
            status, answer = s.post("/v1/chat/completions", other)
            self.assertGreaterEqual(status, 500, answer)
            self.assertRegex(json.dumps(answer), "experts-.*safetensors.*the file ends there.*wisp verify")
            self.assertEqual(s.request("GET", "/health")[0], 200)
            for name in names:                               # the same file: what is open stays open
                with open(os.path.join(model(), name), "rb") as whole, open(os.path.join(folder, name), "r+b") as f:
                    f.write(whole.read())
            status, after = s.post("/v1/chat/completions", BODY)
            self.assertEqual((status, text_of(after)), (200, text_of(before)))


    def test_what_a_killed_synth_leaves_goes_with_the_next(self):
        folder = temp("killed-synth")
        os.makedirs(folder)
        gguf = os.path.join(folder, "m.gguf")
        args = ["synth", "--layers", "2", "--experts", "64", "--width", "768", "--vocab", "64", "--out", os.path.join(folder, "m"),
                "--gguf", gguf]
        leftovers = lambda: [n for n in os.listdir(folder) if n.startswith("m.gguf.partial-")]
        killed = subprocess.Popen([program("wisp"), *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not leftovers() and killed.poll() is None:
            pass
        killed.kill()
        killed.wait()
        self.assertEqual(len(leftovers()), 1, "killed while it wrote")
        with open(os.path.join(folder, "m.gguf.partial-of-mine"), "w"):
            pass
        wisp(*args, "--force")
        self.assertEqual(leftovers(), ["m.gguf.partial-of-mine"])
        self.assertTrue(os.path.isfile(gguf))


class Stripes(unittest.TestCase):
    def test_several_folders_give_the_same_answer(self):
        folder = copy_of("striped")
        b, c = temp("stripe-b"), temp("stripe-c")
        self.assertIn("50.0 %", wisp("stripe", folder, "--to", b, c, "--shares", "2,1,1").stdout)
        alone = run_json(model(), "-p", "What is an apple?", "--experts-ram", SLOTS)
        striped = run_json(folder, "-p", "What is an apple?", "--experts-ram", SLOTS)
        self.assertEqual(striped["token_ids"], alone["token_ids"])
        self.assertIn("all good", wisp("verify", folder).stdout)
        os.rename(b, b + "-moved")
        p = wisp("run", folder, "-p", "What is an apple?", check=False)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn(b, p.stderr)
        self.assertIn("--at", p.stderr)
        wisp("stripe", folder, "--at", c, b + "-moved")
        self.assertEqual(run_json(folder, "-p", "What is an apple?", "--experts-ram", SLOTS)["token_ids"], alone["token_ids"])
        dropped = wisp("stripe", folder, "--drop").stdout
        self.assertIn("alone", dropped)
        for old in (c, b + "-moved"):
            self.assertIn(f"{old} is not read any more and may be removed", dropped)


@unittest.skipUnless(possible(), "needs root, loop devices and a blkio group")
class Drives(unittest.TestCase):
    def setUp(self):
        self.drive = LoopDrive(temp(""), "drive", 64)
        self.addCleanup(self.drive.close)
        self.folder = os.path.join(self.drive.path, "model")
        shutil.copytree(model(), self.folder)
        os.sync()

    def test_a_read_only_folder(self):
        self.drive.mount("remount,ro")
        self.assertEqual(run_json(self.folder, "-p", "What is an apple?", "--experts-ram", SLOTS)["token_ids"],
                         run_json(model(), "-p", "What is an apple?")["token_ids"])
        self.assertIn("all good", wisp("verify", self.folder).stdout)

    def test_no_room_for_what_the_cache_learns(self):
        """A full drive under the state folder: a warning, the same answer, and nothing left there."""
        state = LoopDrive(temp(""), "state", 4)
        self.addCleanup(state.close)
        learned = os.path.join(state.path, "wisp", "learned")
        os.makedirs(learned)
        with open(os.path.join(state.path, "filler"), "wb", buffering=0) as f:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        f.write(bytes(size))
                except OSError:
                    pass
        args = [model(), "-p", "What is an apple?", "-n", 60, "--ignore-eos", "--experts-ram", SLOTS]
        p = wisp("run", *args, "--json", env={"XDG_STATE_HOME": state.path})
        self.assertEqual(json.loads(p.stdout.strip().splitlines()[-1])["token_ids"],
                         run_json(*args, "--no-learned-cache")["token_ids"])
        self.assertRegex(p.stderr, "is not kept.*No space left")
        self.assertEqual(os.listdir(learned), [])
        trace = os.path.join(state.path, "trace.csv")
        p = wisp("run", *args, "--trace", trace, check=False)
        self.assertEqual((p.returncode, p.stdout), (1, ""), "refused before anything is computed")
        self.assertRegex(p.stderr, "trace.csv: No space left")
        # Room for the beginning alone: the answer is there, and the status says that the trace is not.
        filler = os.path.join(state.path, "filler")
        os.truncate(filler, os.path.getsize(filler) - (32 << 10))
        p = wisp("run", *args, "--trace", trace, check=False)
        self.assertEqual(p.returncode, 1, p.stderr)
        self.assertNotEqual(p.stdout, "")
        self.assertIn("the trace ends before the answer does", p.stderr)

    def test_slow_for_two_seconds(self):
        throttle = Throttle([self.drive])
        self.addCleanup(throttle.close)
        ids = "9,14,3,27,5"                                    # a template's helper could outlive the run in the group
        free = run_json(model(), "--ids", ids, "-n", 24)
        throttle.limit(4096)                                 # the first reads take minutes, unless it is lifted
        run = subprocess.Popen([program("wisp"), "run", self.folder, "--ids", ids, "-n", "24", "--experts-ram",
                                str(SLOTS), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=throttle.enter)
        lift = threading.Timer(2.0, throttle.limit, [0])     # two seconds are the fault itself
        lift.start()
        out, err = run.communicate(timeout=600)
        lift.join()
        self.assertEqual(run.returncode, 0, err)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["token_ids"], free["token_ids"])
        self.assertNotIn("restart", err)


if __name__ == "__main__":
    main()
