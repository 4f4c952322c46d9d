"""`wisp run`, `chat`, `stat` and friends as a person meets them."""
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest

from wisp_e2e import DATA, EXPERTS, STRIDE, WATCHDOG, Server, main, model, program, run_json, temp, wisp

KEYS = ["text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason", "seed", "ttft_s", "decode_tok_s",
        "hit_rate", "decode_accesses", "decode_hits", "slots", "experts", "expert_bytes_read", "device_bytes_read", "prefetch",
        "speculation", "ram_budget_bytes", "ram_peak_bytes", "profile", "profile_reason", "decode"]


class Run(unittest.TestCase):
    def test_stdout_carries_the_answer_alone(self):
        p = wisp("run", model(), "-p", "What is an apple?", "--profile", "exact")
        self.assertEqual(p.stdout.strip(),
                         "apple (noun): fruit with red or yellow or green skin and sweet to tart crisp whitish flesh.")
        self.assertIn("tokens per second", p.stderr.lower().replace("tok/s", "tokens per second"))

    def test_json_is_the_last_line(self):
        p = wisp("run", model(), "-p", "What is a dog?", "--json", "--experts-ram", 64 * STRIDE)
        out = json.loads(p.stdout.strip().splitlines()[-1])
        self.assertEqual(sorted(out), sorted(KEYS))
        self.assertEqual(out["experts"], EXPERTS)
        self.assertEqual(out["slots"] + out["prefetch"]["slots"], 64)
        self.assertEqual(out["finish_reason"], "stop")
        self.assertEqual(out["completion_tokens"], len(out["token_ids"]))
        self.assertTrue(0 < out["hit_rate"] < 1)
        self.assertGreater(out["expert_bytes_read"], 0)
        self.assertGreaterEqual(out["device_bytes_read"], out["expert_bytes_read"])
        if "WISP_SANITIZER" not in os.environ:      # whose shadow memory is in no budget
            self.assertLessEqual(out["ram_peak_bytes"], out["ram_budget_bytes"])

    def test_all_resident_hits_everything_after_the_first_reads(self):
        out = run_json(model(), "-p", "What is a dog?")
        self.assertLessEqual(out["expert_bytes_read"], EXPERTS * STRIDE)

    def test_length_and_raw(self):
        out = run_json(model(), "-p", "What is a dog?", "-n", 3)
        self.assertEqual((out["finish_reason"], out["completion_tokens"]), ("length", 3))
        raw = run_json(model(), "--raw", "-p", "<|im_start|>user\nWhat is a dog?<|im_end|>\n<|im_start|>assistant\n")
        self.assertEqual(raw["prompt_tokens"], 13)       # no template: special strings of a raw prompt are tokens
        self.assertTrue(raw["text"].startswith("dog (noun)"))

    def test_each_end_token_ends(self):
        """A model with three ids that end an answer: whichever comes first ends it and is not printed."""
        whole = run_json(model(), "-p", "What is a dog?")["token_ids"]
        spare = [i for i in range(4000, 4090) if i not in whole][:2]
        source = temp("ends")
        for at in (2, 5, 9):
            end = next(i for i in whole[at:] if whole.index(i) >= at)     # one that does not come before
            for place in range(3):
                shutil.copytree(os.path.join(DATA, "pocket-dictionary"), source)
                with open(os.path.join(source, "generation_config.json")) as f:
                    generation = json.load(f)
                generation["eos_token_id"] = spare[:place] + [end] + spare[place:]
                with open(os.path.join(source, "generation_config.json"), "w") as f:
                    json.dump(generation, f)
                wisp("convert", source, source + "-out")
                out = run_json(source + "-out", "-p", "What is a dog?")
                self.assertEqual(out["token_ids"], whole[:whole.index(end) + 1])
                self.assertEqual(out["finish_reason"], "stop")
                cut = run_json(model(), "-p", "What is a dog?", "-n", whole.index(end))
                self.assertEqual(out["text"], cut["text"])
                shutil.rmtree(source)
                shutil.rmtree(source + "-out")

    def test_ids_without_tokenizer(self):
        out = run_json(model("oracle/int4"), "--ids", "1,2,3", "-n", 4, "--ignore-eos")
        self.assertEqual(len(out["token_ids"]), 4)
        p = wisp("run", model("oracle/int4"), "-p", "hello", check=False)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("--ids", p.stderr)

    def test_unconverted_checkpoint_names_the_command(self):
        p = wisp("run", os.path.join(DATA, "pocket-dictionary"), "-p", "hi", check=False)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("wisp convert", p.stderr)
        self.assertIn("free", p.stderr)

    def test_ctrl_c_ends_cleanly(self):
        p = subprocess.Popen([program("wisp"), "run", model(), "-p", "What is a dog?", "--ignore-eos"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertTrue(p.stdout.read(8))
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=WATCHDOG)
        self.assertIn("peak", err.lower())                # the table is printed

    def test_ctrl_c_while_the_model_loads(self):
        """The command is told before its launcher has said anything: the launcher stands still."""
        with tempfile.TemporaryDirectory() as bin_folder:
            shutil.copy(program("wisp"), bin_folder)
            with open(os.path.join(bin_folder, "wisp-launch"), "w") as f:
                f.write("#!/bin/sh\nkill -INT $PPID\nread _ <&5\n")
            os.chmod(f.name, 0o755)
            for command in (["run", model(), "--ids", "1"], ["bench", "decode", model(), "--plain", "1M", "-n", "2"]):
                p = subprocess.run([os.path.join(bin_folder, "wisp"), *command], capture_output=True, text=True, timeout=WATCHDOG)
                self.assertEqual((p.returncode, p.stdout), (130, ""), p.stderr)
                self.assertIn("interrupted while the model was loading", p.stderr)

    def test_every_program_has_help_and_version(self):
        for name in ("wisp", "wisp-launch", "wisp-gateway", "wisp-router", "wisp-loader", "wisp-compute", "wisp-speculator", "wisp-solo"):
            for flag in ("--help", "--version"):
                p = subprocess.run([program(name), flag], capture_output=True, text=True, timeout=WATCHDOG)
                self.assertEqual(p.returncode, 0, name + " " + flag)
                self.assertTrue(p.stdout.strip(), name + " " + flag)

    def test_numbers_that_are_none(self):
        for flag in ("--temp", "--top-p", "--min-p", "--presence-penalty", "--frequency-penalty", "--repetition-penalty"):
            for value in ("nan", "inf"):
                p = wisp("run", model(), "-p", "hi", flag, value, check=False)
                self.assertEqual(p.returncode, 2, (flag, value))
                self.assertIn("not a number", p.stderr)
        for flag, value, says in (("--ids", "", "not ids"), ("--ids", "1,,3", "not ids"), ("--ids", "1,", "not ids"),
                                  ("--ids", "4294967296", "not ids"), ("--ram", "", "is no size"),
                                  ("--ram", "0", "larger than 0"), ("--experts-ram", "1Q", "is no size"),
                                  ("--seed", "18446744073709551616", "below 2^64"), ("--seed", "-1", "below 2^64")):
            p = wisp("run", model(), *([] if flag == "--ids" else ["-p", "hi"]), flag, value, check=False)
            self.assertEqual(p.returncode, 2, (flag, value))
            self.assertIn(says, p.stderr)

    def test_forms_of_attention_are_checked_by_name(self):
        for flag, value, says in (("--kv", "fp8", "--kv"), ("--prefill", "fast", "--prefill")):
            p = wisp("run", model(), "-p", "hi", flag, value, check=False)
            self.assertNotEqual(p.returncode, 0)
            self.assertIn(says, p.stderr)
        p = wisp("run", model(), "-p", "hi", "--prefill", "naive", check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("--prefill naive is a form of latent attention, which", p.stderr)
        p = wisp("run", model(), "-p", "What is a dog?", "--kv", "bf16", "--verbose")
        self.assertIn("2048 tokens (--ctx) in bf16 (--kv)", p.stderr)
        self.assertIn("dog", p.stdout)

    def test_a_prompt_that_is_no_text(self):
        p = subprocess.run([program("wisp"), "run", model(), "-p", b"\xff hi"], capture_output=True, timeout=WATCHDOG)
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"not UTF-8", p.stderr)

    def test_few_descriptors(self):
        def limit(soft, hard):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        out = wisp("run", model(), "-p", "What is a dog?", "-n", 2, preexec_fn=limit(64, 4096))
        self.assertTrue(out.stdout.strip())
        p = wisp("run", model(), "-p", "What is a dog?", check=False, preexec_fn=limit(64, 256))
        self.assertEqual(p.returncode, 1)
        self.assertIn("only 256 files may be open", p.stderr)
        # So few that not even the first pipe can be made; which one fails is nobody's concern.
        for number in range(4, 24):
            p = wisp("run", model(), "-p", "What is a dog?", check=False, preexec_fn=limit(number, number))
            self.assertEqual((p.returncode, p.stdout), (1, ""), number)
            self.assertNotIn("invariant", p.stderr)
        p = wisp("run", model(), "-p", "What is a dog?", check=False, preexec_fn=limit(4, 4))
        self.assertIn("ulimit -n", p.stderr)

    def test_logits_replace_regular_files_only(self):
        folder, link, target = temp("logits-folder"), temp("logits-link"), temp("logits-target")
        os.mkdir(folder)
        p = wisp("run", model(), "-p", "hi", "--logits", folder, check=False)
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("no regular file", p.stderr)
        open(target, "w").close()
        os.symlink(target, link)
        run_json(model(), "--ids", "1,2", "-n", 2, "--ignore-eos", "--logits", link)
        self.assertTrue(os.path.islink(link))
        self.assertEqual(os.path.getsize(target), 2 * 4096 * 4)

    def test_logits_and_traces_spare_the_model(self):
        manifest = os.path.join(model(), "manifest.json")
        with open(manifest, "rb") as f:
            before = f.read()
        for flag in ("--logits", "--trace"):
            p = wisp("run", model(), "--ids", "1,2", "-n", 1, flag, manifest, check=False)
            self.assertEqual((p.returncode, p.stdout), (1, ""))
            self.assertIn(flag + " " + manifest, p.stderr)
        with open(manifest, "rb") as f:
            self.assertEqual(f.read(), before)

    def test_logits_on_a_full_drive(self):
        there = temp("full")
        os.mkdir(there)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", there], capture_output=True).returncode != 0:
            self.skipTest("nothing can be mounted here")
        self.addCleanup(subprocess.run, ["umount", there])
        p = wisp("run", model(), "--ids", "1,2", "-n", 100, "--ignore-eos", "--logits", os.path.join(there, "rows"), check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn(f"writing logits to {there}/rows.", p.stderr)
        self.assertIn(f"on the file system of {there}: No space left on device", p.stderr)
        self.assertEqual(os.listdir(there), [])

    def test_runs_from_anywhere(self):
        p = subprocess.run([os.path.abspath(program("wisp")), "run", os.path.abspath(model()), "-p", "Who are you?"],
                           cwd="/", capture_output=True, text=True, timeout=WATCHDOG)
        self.assertIn("pocket dictionary", p.stdout)


class Bench(unittest.TestCase):
    def test_a_case_is_a_line_of_json(self):
        p = wisp("bench", "kernels", "--quick", "--ring", 1, "--threads", 1, "--filter", "gem./int4-32/fast/768x2048(/4rows)?/1t",
                 "--json")
        machine, *cases = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertTrue(machine["kernels"])
        self.assertEqual([(c["case"], c["unit"]) for c in cases], [("gemv/int4-32/fast/768x2048/1t", "GB/s"),
                                                                    ("gemm/int4-32/fast/768x2048/4rows/1t", "GMAC/s")])
        for c in cases:
            self.assertEqual(c["pairs"], 3)
            self.assertGreater(c["ratio"]["median"], 0)
            self.assertLessEqual(c["ratio"]["low"], c["ratio"]["high"])

    def test_wrong_flags_are_named(self):
        for args, words in ((("--filter", "int5"), "matches no case"), (("--threads", "4096"), "4096 threads"),
                            (("--threads", "0"), "0 threads"), (("--threads", "1,4096"), "4096 threads")):
            p = wisp("bench", "kernels", *args, "--ring", 1, check=False)
            self.assertEqual(p.returncode, 1)
            self.assertIn(words, p.stderr)
            self.assertEqual(p.stdout, "")

    def test_on_one_cpu_two_threads_are_not_tried(self):
        cpu = min(os.sched_getaffinity(0))
        p = subprocess.run([program("wisp"), "bench", "kernels", "--quick", "--ring", "1", "--json", "--filter",
                            "gemv/bf16/exact/768x2048"], capture_output=True, text=True, timeout=WATCHDOG,
                           preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual([json.loads(line)["case"] for line in p.stdout.splitlines()[1:]], ["gemv/bf16/exact/768x2048/1t"])


class Chat(unittest.TestCase):
    def test_keeps_history_in_a_pipe(self):
        p = wisp("chat", model(), input="What is a river?\nUse it in a sentence.\n")
        self.assertIn("river (noun)", p.stdout)
        self.assertIn("The river was navigable for 50 miles.", p.stdout)


    def test_closed_stdin_ends_it(self):
        p = subprocess.run([program("wisp"), "chat", model()], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=WATCHDOG, preexec_fn=lambda: os.close(0))
        self.assertEqual(p.returncode, 0, p.stderr)


class Stat(unittest.TestCase):
    def test_names_every_stage(self):
        with Server(model()) as server:
            server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is a dog?"}]})
            text = wisp("stat").stdout
            for stage in ("gateway", "router", "loader", "compute"):
                self.assertIn(stage, text)
            out = json.loads(wisp("stat", "--json").stdout)
            self.assertIn("stages", out)
            self.assertEqual(out["kv"], {"tokens": 2048, "format": "f32", "bytes": 2048 * 8 * 256 * 4})


if __name__ == "__main__":
    main()
