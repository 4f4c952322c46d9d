"""Routing traces: the engine's hits are the simulator's on the trace that the engine recorded, exactly."""
import json
import os
import shutil
import signal
import unittest

from wisp_e2e import EXPERTS, STRIDE, Server, main, model, pids_below, run_json, temp, wisp

LAYERS_TOP_K = 32                                       # experts that one token touches: 8 layers x top 4
SLOTS = [8, 9, 20, LAYERS_TOP_K, 50, EXPERTS // 4, EXPERTS // 2, EXPERTS]
PROMPT = ",".join(str(7 * i % 4093) for i in range(1, 40))


def replay(file, slots, policy="default"):
    return json.loads(wisp("trace", "replay", file, "--slots", slots, "--policy", policy, "--json").stdout)


def counted(file):
    """(accesses, hits) as the loader marked them: distinct experts of each touch."""
    accesses = hits = 0
    touch, seen = None, set()
    with open(file) as f:
        for line in f:
            if line.startswith("# touch"):
                touch = None
            if line[0] in "#t":
                continue
            _, _, _, layer, _, expert, _, resident, _ = line.split(",")
            if layer != touch:
                touch, seen = layer, set()
            if expert not in seen:
                seen.add(expert)
                accesses += 1
                hits += resident == "1"
    return accesses, hits


class Trace(unittest.TestCase):
    def record(self, slots, *args):
        file = temp(f"slots-{slots}.csv")
        p = wisp("trace", "record", model(), "--out", file, "--ids", PROMPT, "-n", 24, "--ignore-eos", "--json",
                 "--experts-ram", slots * STRIDE, *args)
        return file, json.loads(p.stdout.strip().splitlines()[-1])

    def test_live_hits_are_the_replayed_ones(self):
        for slots in SLOTS:
            for args in ([], ["--prompt-chunk", 7]) if slots in (9, 50) else ([],):
                with self.subTest(slots=slots, args=args):
                    file, figures = self.record(slots, *args)
                    # Slots for what is read ahead are not the cache's, and change nothing in it.
                    self.assertEqual(figures["slots"] + figures["prefetch"]["slots"], slots)
                    r = replay(file, figures["slots"])
                    live = counted(file)
                    self.assertEqual((r["accesses"], r["hits"]), live)
                    self.assertGreater(r["decode_accesses"], 0)
                    # The last touches too, which the loader may see after the answer is out.
                    self.assertEqual((figures["decode_accesses"], figures["decode_hits"]),
                                     (r["decode_accesses"], r["decode_hits"]))
                    self.assertGreaterEqual(replay(file, figures["slots"], "belady")["hits"], r["hits"])

    def test_never_under_lru_on_its_own_answers(self):
        for n, prompt in enumerate(["What is an apple?", "Tell me about dogs and cats."]):
            file = temp(f"answer-{n}.csv")
            wisp("trace", "record", model(), "--out", file, "-p", prompt, "-n", 120, "--ignore-eos")
            for slots in [2, 8, 12, 16, 24, 28, LAYERS_TOP_K, 36, 50, 64, 90, 128, 180, 220, EXPERTS]:
                with self.subTest(prompt=prompt, slots=slots):
                    self.assertGreaterEqual(replay(file, slots)["hits"], replay(file, slots, "lru")["hits"])

    def test_a_recording_changes_no_token(self):
        plain = run_json(model(), "--ids", PROMPT, "-n", 8, "--ignore-eos")
        file = temp("flag.csv")
        with_trace = run_json(model(), "--ids", PROMPT, "-n", 8, "--ignore-eos", "--trace", file)
        self.assertEqual(plain["token_ids"], with_trace["token_ids"])
        self.assertGreater(os.path.getsize(file), 0)

    def test_a_server_records_too(self):
        file = temp("server.csv")
        with Server(model(), "--trace", file, "--experts-ram", 40 * STRIDE) as s:
            for n in range(2):
                status, _ = s.post("/v1/completions", {"prompt": [5 + n, 6, 7], "max_tokens": 4, "ignore_eos": True})
                self.assertEqual(status, 200)
        self.assertGreater(replay(file, 40)["accesses"], 0)

    def ask(self, server, first):
        status, o = server.post("/v1/completions", {"prompt": [first, 6, 7], "max_tokens": 6, "ignore_eos": True,
                                                    "temperature": 0})
        self.assertEqual(status, 200, o)
        return o["choices"][0]["text"]

    def kill(self, server, name):
        before = pids_below(server.process.pid, name)
        self.assertEqual(len(before), 1)
        os.kill(before[0], signal.SIGKILL)

    def test_a_restart_is_said(self):
        file = temp("restart.csv")
        for name in ("wisp-loader", "wisp-compute"):
            with self.subTest(name), Server(model(), "--trace", file, "--experts-ram", 40 * STRIDE) as s:
                answer = self.ask(s, 5)
                self.kill(s, name)
                self.assertEqual(self.ask(s, 5), answer)
            p = wisp("trace", "replay", file, "--slots", 40, "--json")
            self.assertEqual(json.loads(p.stdout)["restarts"], 1)
            self.assertIn("lost a process 1 times", p.stderr)

    def test_a_trace_that_is_gone_ends_no_run(self):
        folder = temp("gone")
        os.makedirs(folder)
        with Server(model(), "--trace", os.path.join(folder, "t"), "--experts-ram", 40 * STRIDE) as s:
            answer = self.ask(s, 5)
            shutil.rmtree(folder)
            self.kill(s, "wisp-loader")
            self.assertEqual(self.ask(s, 5), answer)
        self.assertIn("the recording ends here", "".join(s.errors))

    def test_an_earlier_recording_outlives_a_run_that_records_nothing(self):
        folder = temp("earlier")
        os.mkdir(folder)
        file = os.path.join(folder, "t.csv")
        with open(file, "w") as f:
            f.write("earlier")
        for args in (["--ids", "1,2", "--ram", "8M"], ["--ids", "1,999999"], ["--ids", "1,2", "--ctx", "99999999"],
                     ["-p", "dog " * 4000]):
            p = wisp("trace", "record", model(), "--out", file, "-n", 1, *args, check=False)
            self.assertEqual(p.returncode, 1, p.stderr)
            with open(file) as f:
                self.assertEqual(f.read(), "earlier", args)
            self.assertEqual(os.listdir(folder), ["t.csv"])
        wisp("trace", "record", model(), "--out", file, "--ids", "1,2", "-n", 2, "--ignore-eos")
        self.assertGreater(replay(file, 40)["accesses"], 0)
        self.assertEqual(os.listdir(folder), ["t.csv"])

    def test_a_pipe_is_refused(self):
        pipe = temp("pipe")
        os.mkfifo(pipe)
        p = wisp("run", model(), "--ids", "1", "-n", 1, "--trace", pipe, check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("is a pipe", p.stderr)

    def test_a_trace_that_cannot_be_written_is_an_error(self):
        p = wisp("run", model(), "--ids", "1", "-n", 1, "--trace", "/dev/full", check=False)
        self.assertEqual((p.returncode, p.stdout), (1, ""), "refused before anything is computed")
        self.assertIn("/dev/full: No space left", p.stderr)

    def test_errors_name_the_place(self):
        bad = temp("bad.csv")
        with open(bad, "w") as f:
            f.write("0,1,0,0,0,1,0.5,0,1\nwrong\n")
        p = wisp("trace", "replay", bad, "--slots", 4, check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("bad.csv: line 2:", p.stderr)
        p = wisp("trace", "record", model(), "--out", temp("none") + "/x", "--ids", "1", check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("--out " + temp("none") + "/x: No such file", p.stderr)


if __name__ == "__main__":
    main()
