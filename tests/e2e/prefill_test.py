"""Prompts through a slab that is smaller than what they touch: each expert is read once, other streams go on, and what decoding
uses stays. Weights of the routing are those of the reference."""
import json
import os
import random
import struct
import subprocess
import sys
import threading
import unittest

from trace_test import counted, replay
from wisp_e2e import DATA, EXPERTS, STRIDE, WATCHDOG, Server, counters, main, model, program, run_json, stat, temp, wisp

SHARES = (10, 25, 50, 100)          # per cent of the bank
CHUNK = 512                         # the longest that the planner takes


def prompt_of(n, seed=3, vocab=4096):
    r = random.Random(seed)
    return [r.randrange(vocab) for _ in range(n)]


def lines_of(file):
    """The fields of a trace's lines as numbers, marks between touches left out."""
    with open(file) as f:
        for line in f:
            if line[0] in "#t":
                continue
            fields = line.split(",")
            yield [int(x) for x in fields[:6]] + [float(fields[6]), int(fields[7])]


def unique_experts(file):
    return len({(r[3], r[5]) for r in lines_of(file)})


class ReadOnce(unittest.TestCase):
    """P18: bytes read for a prompt of 512 tokens over those of the experts that it touches, by the loader's own counter."""

    def ratio(self, folder, bank, stride, percent, prompt, *args):
        file = temp(f"p18-{os.path.basename(folder)}-{percent}-{len(prompt)}.csv")
        p = wisp("run", folder, "--ids", ",".join(map(str, prompt)), "-n", 1, "--ignore-eos", "--json", "--trace", file,
                 "--experts-ram", max(bank * percent // 100, 16) * stride, *args)
        out = json.loads(p.stdout.strip().splitlines()[-1])
        unique = unique_experts(file)
        ratio = out["expert_bytes_read"] / (unique * stride)
        print(f"{os.path.basename(folder)}, {percent} % of {bank} experts, {len(prompt)} tokens: {unique} touched, "
              f"{ratio:.4f} times their bytes read", file=sys.stderr)
        return ratio

    def test_of_the_demo(self):
        for percent in SHARES:
            with self.subTest(percent=percent):
                self.assertLessEqual(self.ratio(model(), EXPERTS, STRIDE, percent, prompt_of(CHUNK)), 1.02)

    def test_of_another_shape(self):
        folder = temp("wide")
        wisp("synth", "--layers", 6, "--experts", 96, "--top-k", 6, "--hidden", 256, "--width", 192, "--heads", 4,
             "--kv-heads", 2, "--head-dim", 64, "--vocab", 2048, "--out", folder)
        with open(os.path.join(folder, "manifest.json")) as f:
            stride = json.load(f)["spec"]["expert"]["stride"]
        for percent in SHARES:
            with self.subTest(percent=percent):
                prompt = prompt_of(CHUNK, 4, 2048)
                self.assertLessEqual(self.ratio(folder, 6 * 96, stride, percent, prompt), 1.02)

    def test_a_longer_prompt_reads_no_expert_twice_in_a_chunk(self):
        """Of three chunks, each reads what is not there: never more than the sum of the touches' misses, and less than all."""
        for percent in SHARES:
            with self.subTest(percent=percent):
                ratio = self.ratio(model(), EXPERTS, STRIDE, percent, prompt_of(3 * CHUNK))
                self.assertLessEqual(ratio, 3.0 - 2.0 * percent / 100 * 0.7)


class BesideStreams(unittest.TestCase):
    def test_a_stream_goes_on_and_keeps_its_experts(self):
        """A stream of 300 tokens; in its midst a prompt of 1,400 other ones. Its tokens are those that it has alone, some of them
        came while the prompt was computed, and in those steps its experts are mostly where they were. The engine's hits
        are the simulator's on the trace of it all."""
        slots, n = 128, 300
        body = {"prompt": prompt_of(30, 8), "max_tokens": n, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
        long = {"prompt": prompt_of(1400, 9), "max_tokens": 2, "ignore_eos": True, "temperature": 0}
        file = temp("beside.csv")
        args = ["--experts-ram", slots * STRIDE, "--prompt-chunk", 128, "--trace", file]
        with Server(model(), *args) as s:
            _, whole = s.post("/v1/completions", body)
        before = self.rate(file, lambda r: r[1] == 1)
        with Server(model(), *args) as s:
            answers = [None, None]
            ask = lambda i, what: answers.__setitem__(i, s.post("/v1/completions", what))
            threads = [threading.Thread(target=ask, args=a) for a in enumerate((body, long))]
            gate(100)                                         # a prompt's step and 99 others: always the same ones are beside
            threads[0].start()
            while counters("router").get("tokens_committed", 0) < 100:
                self.assertTrue(threads[0].is_alive())
            threads[1].start()
            while len(stat()["requests"]) < 2:
                self.assertTrue(threads[1].is_alive())
            gate("open")
            [t.join() for t in threads]
        self.assertEqual([a[0] for a in answers], [200, 200])
        self.assertEqual(answers[0][1]["choices"][0]["token_ids"], whole["choices"][0]["token_ids"])
        mine = lambda r: r[2] >= 30 and r[0] == self.stream_of(file)
        beside = self.rate(file, lambda r: mine(r) and r[1] == 0)
        after = self.rate(file, lambda r: mine(r) and r[1] == 1)
        print(f"hits of the stream's rows: alone {before[0]:.3f}, in steps with the prompt {beside[0]:.3f} ({beside[1]} rows), "
              f"all its other steps {after[0]:.3f}", file=sys.stderr)
        self.assertGreaterEqual(beside[1], 5, "tokens came while the prompt was computed")
        self.assertGreater(beside[0], before[0] - 0.25)
        self.assertGreater(after[0], before[0] - 0.06)
        # Slots for guesses are not the cache's.
        held = run_json(model(), "--ids", "5,6", "-n", 1, "--experts-ram", slots * STRIDE)["slots"]
        self.assertLess(held, slots)
        r = replay(file, held)
        self.assertEqual((r["accesses"], r["hits"]), counted(file))

    def stream_of(self, file):
        """The request that begins the file."""
        return next(lines_of(file))[0]

    def rate(self, file, wanted):
        """(share of the choices that were resident, rows) of the lines that are `wanted`."""
        rows = [r for r in lines_of(file) if wanted(r)]
        return sum(r[7] for r in rows) / max(1, len(rows)), len({(r[0], r[2]) for r in rows})


def gate(steps):
    """Lets the router publish so many steps of the run, or all."""
    subprocess.run([program("wisp-launch"), "gate", str(steps)], check=True, capture_output=True, timeout=WATCHDOG)


def tensors(path):
    """Tensors of a safetensors file as flat lists, with their shapes."""
    with open(path, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        data = raw[8 + size + begin:8 + size + end]
        form = {"I64": "q", "F32": "f"}[t["dtype"]]
        out[name] = (struct.unpack(f"<{len(data) // struct.calcsize(form)}{form}", data), t["shape"])
    return out


class Weights(unittest.TestCase):
    """Experts, ranks and weights of every row, against those that transformers computed (tests/oracle)."""
    CASES = ("untied_bf16", "dense_layers", "mixtral_odd", "qwen2_moe_published", "olmoe_published", "deepseek_v3_halves",
             "glm4_moe_groups", "gpt_oss_published")
    BIASED = ("deepseek_v3_halves", "glm4_moe_groups")      # ranks are by the biased score, the oracle's by weight

    def test_are_the_references(self):
        for case in self.CASES:
            want = tensors(os.path.join(DATA, "oracle", case, "expected.safetensors"))
            ids = want["input_ids"][0]
            folder = model("oracle/" + case)
            for args in ([], ["--prompt-chunk", 7]):
                with self.subTest(case=case, args=args):
                    file = temp("weights.csv")
                    wisp("trace", "record", folder, "--out", file, "--ids", ",".join(map(str, ids)), "-n", 1, "--ignore-eos",
                         "--profile", "exact", *args)
                    got = {(r[3], r[2], r[4]): (r[5], r[6]) for r in lines_of(file)}
                    self.assertEqual(len(got), sum(len(v[0]) for n, v in want.items() if n.endswith(".experts")))
                    worst = 0
                    for name, (experts, shape) in want.items():
                        if not name.endswith(".experts"):
                            continue
                        layer, (rows, top_k) = int(name.split(".")[1]), shape
                        weights = want[f"layers.{layer}.expert_weights"][0]
                        for row in range(rows):
                            mine = [got[layer, row, rank] for rank in range(top_k)]
                            theirs = list(zip(experts, weights))[row * top_k:(row + 1) * top_k]
                            if case not in self.BIASED:
                                self.assertEqual([e for e, _ in mine], [e for e, _ in theirs], (layer, row))
                            self.assertEqual(len(dict(mine)), top_k)
                            self.assertEqual(dict(mine).keys(), dict(theirs).keys(), (layer, row))
                            worst = max([worst] + [abs(dict(mine)[e] - w) for e, w in theirs])
                    self.assertLessEqual(worst, 3e-5, "the file has six digits")

    def test_of_decoding_are_those_of_the_prompt(self):
        """A token's row is the same whether it was decoded or stood in a prompt."""
        file, again = temp("decoded.csv"), temp("prompted.csv")
        prompt = prompt_of(9, 6)
        out = json.loads(wisp("trace", "record", model(), "--out", file, "--ids", ",".join(map(str, prompt)), "-n", 12,
                              "--ignore-eos", "--json", "--experts-ram", 20 * STRIDE).stdout.strip().splitlines()[-1])
        ids = prompt + out["token_ids"][:-1]
        wisp("trace", "record", model(), "--out", again, "--ids", ",".join(map(str, ids)), "-n", 1, "--ignore-eos")
        choices = lambda f: sorted((r[2], r[3], r[4], r[5], r[6]) for r in lines_of(f))
        self.assertEqual(choices(file), choices(again))
        self.assertEqual({r[1] for r in lines_of(file) if r[2] >= len(prompt)}, {1})


if __name__ == "__main__":
    main()
