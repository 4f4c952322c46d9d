"""The benches of a whole engine: their counters and their shape. How fast this machine is decides nothing here."""
import json
import os
import re
import signal
import subprocess
import unittest

from wisp_e2e import WATCHDOG, main, program, temp, wisp

LAYERS, TOP_K, EXPERTS = 3, 4, 16
_made = []


def folder():
    if not _made:
        _made.append(temp("routed"))
        wisp("synth", "--out", _made[0], "--layers", LAYERS, "--experts", EXPERTS, "--top-k", TOP_K, "--hidden", 256, "--heads", 4,
             "--kv-heads", 2, "--head-dim", 32, "--width", 64, "--vocab", 200, "--routes", "calibrated", "--route-tokens", 120)
    return _made[0]


def bench(what, *args):
    p = wisp("bench", what, folder(), "--plain", "1M", "--json", *args)
    return json.loads(p.stdout.strip().splitlines()[-1])


def stride():
    with open(os.path.join(folder(), "manifest.json")) as f:
        return json.load(f)["spec"]["expert"]["stride"]


class BenchOfAnEngine(unittest.TestCase):
    def spread(self, figure):
        self.assertGreater(figure["median"], 0)
        self.assertLessEqual(figure["low"], figure["median"])
        self.assertLessEqual(figure["median"], figure["high"])

    def test_decode_counts_what_it_asks_for(self):
        for slots, topology in ((12, "full"), (20, "solo"), (LAYERS * EXPERTS, "full")):
            with self.subTest(slots=slots):
                b = bench("decode", "--experts-ram", slots * stride(), "--topology", topology, "--pairs", 3, "--prompt", 5, "-n", 9)
                self.assertEqual((b["slots"], b["stride"], len(b["turns"])), (slots, stride(), 3))
                for t in b["turns"]:
                    self.assertEqual(t["accesses"], 8 * LAYERS * TOP_K)
                    missed = t["accesses"] - t["hits"] + t["prompt_accesses"] - t["prompt_hits"]
                    self.assertEqual(t["expert_bytes"], missed * stride())
                self.assertEqual([t["cold"] for t in b["turns"]], [True, False, False])
                for key in ("tok_s", "first_token_s", "plain_gb_s", "p12", "p20_start"):
                    self.spread(b[key])
                if slots < LAYERS * EXPERTS:
                    self.spread(b["p1"])

    def test_cold_turns_are_alike(self):
        b = bench("decode", "--experts-ram", 14 * stride(), "--pairs", 3, "--prompt", 6, "-n", 6, "--cold")
        counters = [[t[k] for k in ("accesses", "hits", "prompt_accesses", "prompt_hits", "expert_bytes")] for t in b["turns"]]
        self.assertEqual(counters, [counters[0]] * 3)
        self.assertEqual([t["prompt_hits"] for t in b["turns"]], [0] * 3)
        self.spread(b["p20_request"])

    def test_a_prompt_in_one_chunk_reads_each_expert_once(self):
        b = bench("prefill", "--experts-ram", LAYERS * EXPERTS * stride(), "--pairs", 2, "--prompt", 40)
        self.assertEqual(b["p18"], {"low": 1.0, "median": 1.0, "high": 1.0})
        self.assertEqual(b["unique_experts"]["median"] * b["stride"] / 1e6, b["expert_mb"]["median"])
        self.assertEqual([t["accesses"] for t in b["turns"]], [0, 0])
        for key in ("prompt_tok_s", "first_token_s", "plain_gb_s", "p20_request", "p20_start"):
            self.spread(b[key])
        # In chunks that do not fit it reads some again, and says so.
        b = bench("prefill", "--experts-ram", 8 * stride(), "--pairs", 2, "--prompt", 40, "--prompt-chunk", 8)
        self.assertGreater(b["p18"]["median"], 1.0)

    def test_a_prompt_of_ones_own_and_a_figure_that_is_not_there(self):
        b = bench("decode", "--ids", "7,8,9", "-n", 3, "--pairs", 2, "--experts-ram", LAYERS * EXPERTS * stride())
        self.assertEqual(b["prompt"], 3)
        self.assertLessEqual(b["turns"][1]["expert_bytes"], b["turns"][0]["expert_bytes"])
        p = wisp("bench", "decode", folder(), "--plain", "1M", "--pairs", 2, "--prompt", 3, "-n", 3)
        self.assertIn("2 turns", p.stdout)
        self.assertIn("tok/s (", p.stdout)

    def test_wrong_flags_are_named(self):
        for args, words in ((("--ids", "1,500"), "no id 500"), (("--trace", temp("t.csv")), "--trace"),
                            (("--plain", "much"), "much"), (("--plain", "0"), "--plain"), (("--plain", "99T"), "--plain 99T")):
            p = wisp("bench", "decode", folder(), *args, check=False)
            self.assertNotEqual(p.returncode, 0)
            self.assertIn(words, p.stderr)
            self.assertEqual(p.stdout, "")

    def test_a_stream_without_depth_is_refused(self):
        for flag in ("--depth", "--turn"):
            p = wisp("bench", "stream", folder(), flag, "0", "--pairs", 1, check=False)
            self.assertEqual(p.returncode, 2)
            self.assertIn(flag, p.stderr)
        p = wisp("bench", "stream", "--size", "0", check=False)
        self.assertEqual(p.returncode, 2)

    def test_an_interrupted_bench_ends_between_two_reads(self):
        for what in ("decode", "prefill"):
            for number in (signal.SIGINT, signal.SIGTERM):
                # So many turns that it would go on for hours.
                p = subprocess.Popen([program("wisp"), "bench", what, folder(), "--plain", "256M", "--pairs", "1000"],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                watch_reads(p.pid)
                p.send_signal(number)
                out, err = p.communicate(timeout=WATCHDOG)
                self.assertEqual((p.returncode, out), (130, ""), err)
                self.assertIn("interrupted", err)

    def test_the_file_of_a_stream_has_no_name(self):
        there = temp("stream")
        os.mkdir(there)
        args = [program("wisp"), "bench", "stream", "--size", "64K", "--bank", "16M", "--turn", "16M", "--dir", there, "--pairs"]
        p = subprocess.run(args + ["1", "--json"], capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual((p.returncode, os.listdir(there)), (0, []), p.stderr)
        self.assertEqual(json.loads(p.stdout)["extents"], 256)
        p = subprocess.Popen(args + ["1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        watch_reads(p.pid)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=WATCHDOG)
        self.assertEqual(os.listdir(there), [])
        p = subprocess.run(args[:5] + ["--bank", "1000000G", "--dir", there], capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual((p.returncode, os.listdir(there)), (1, []))
        self.assertRegex(p.stderr, "--dir .*are free; give a smaller --bank")


def watch_reads(pid):
    """Until the process has read megabytes: it is at its work."""
    def read():
        with open(f"/proc/{pid}/io") as f:
            return int(re.search(r"rchar: (\d+)", f.read()).group(1))
    while read() < 8 << 20:
        pass


if __name__ == "__main__":
    main()
