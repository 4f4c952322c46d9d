"""Ids and logits do not depend on slots, threads, chunks, company, topology or instruction set.

By default a pairwise sample; `same_bytes_test.py --full` runs the full product.
"""
import itertools
import json
import os
import random
import sys
import threading
import unittest

from wisp_e2e import EXPERTS, STRIDE, Server, counters, main, model, pairwise, reference, run_json, run_logits

MINIMUM = 8                                             # 2 x top_k
AXES = {
    "slots": [MINIMUM, MINIMUM + 1, EXPERTS // 4, EXPERTS // 2, EXPERTS],
    "threads": [1, 2],
    "prompt": [49, 200, 777, 1500],
    "chunk": [1, 7, 64, 2048],
    "topology": ["full", "solo"],
    "isa": ["best", "ref"],
    "profile": ["exact", "fast"],
}
FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")
TOKENS = 6


def prompt_of(n):
    rng = random.Random(n)
    return [rng.randrange(4093) for _ in range(n)]


def flags(row):
    return ["--ids", ",".join(map(str, prompt_of(row["prompt"]))), "-n", TOKENS, "--ignore-eos",
            "--experts-ram", row["slots"] * STRIDE, "--threads", row["threads"], "--prompt-chunk", row["chunk"],
            "--topology", row["topology"], "--profile", row["profile"]]


class SameBytes(unittest.TestCase):
    def test_matrix(self):
        golden = {}
        for n, profile in itertools.product(AXES["prompt"], AXES["profile"]):
            plain = {"slots": EXPERTS, "threads": 1, "prompt": n, "chunk": 64, "topology": "full", "profile": profile}
            golden[n, profile] = run_logits(model(), *flags(plain))
            self.assertEqual(len(golden[n, profile][1]), TOKENS * 4096 * 4)
        self.assertNotEqual(golden[49, "exact"][1], golden[49, "fast"][1])
        if FULL:
            rows = [dict(zip(AXES, v)) for v in itertools.product(*AXES.values())]
        else:
            # The slow pairs, long prompts row by row and by the plain loops, are for the full product.
            rows = pairwise(dict(AXES, prompt=[49, 200, 777], isa=["best"]))
            rows += pairwise(dict(AXES, prompt=[49], isa=["ref"], chunk=[7, 64]))
            rows.append({"slots": MINIMUM, "threads": 2, "prompt": 1500, "chunk": 64, "topology": "full", "isa": "best",
                         "profile": "exact"})
        for done, row in enumerate(rows):
            if FULL and done % 20 == 0:
                print(f"{done} of {len(rows)}", file=sys.stderr, flush=True)
            with self.subTest(**row):
                env = {"WISP_ISA": "ref"} if row["isa"] == "ref" else {}
                out, logits = run_logits(model(), *flags(row), env=env)
                want, want_logits = golden[row["prompt"], row["profile"]]
                self.assertEqual(out["token_ids"], want["token_ids"])
                self.assertTrue(logits == want_logits, "logits differ in bits")
        print(f"{len(rows)} combinations", file=sys.stderr)

    def test_long_answer(self):
        """1,900 tokens, each of which evicts in every layer: the ids are those of a run with room for all."""
        args = ["--ids", "4094,274,198", "-n", 1900, "--ignore-eos", "--ctx", 2048]
        want = run_json(model(), *args)
        self.assertEqual(len(want["token_ids"]), 1900)
        for slots in (MINIMUM, MINIMUM + 1):
            got = run_json(model(), *args, "--experts-ram", slots * STRIDE)
            self.assertEqual(got["token_ids"], want["token_ids"])
            self.assertGreater(got["expert_bytes_read"], 1900 * 8 * STRIDE)     # one a layer and token, at least

    def test_other_attention(self):
        """Windows, latents, and latents chosen by an indexer: the same bits at few slots, in any chunks, in one process."""
        for name in ("mixtral_window", "deepseek_v3_fp8", "glm_moe_dsa_published"):
            folder = model("oracle/" + name)
            with open(os.path.join(folder, "manifest.json")) as f:
                spec = json.load(f)["spec"]
            stride, fewest = spec["expert"]["stride"], 2 * spec["router"]["top_k"]
            experts = spec["router"]["experts"] * spec["layers"].count("moe")
            ids = ",".join(str(i * 37 % spec["vocab"]) for i in range(70))
            axes = {"slots": [fewest, fewest + 1, experts], "threads": [1, 2], "chunk": [1, 7, 64, 2048],
                    "topology": ["full", "solo"], "isa": ["best", "ref"]}
            golden = None
            for row in pairwise(axes):
                out, logits = run_logits(
                    folder, "--ids", ids, "-n", TOKENS, "--ignore-eos", "--experts-ram", row["slots"] * stride,
                    "--threads", row["threads"], "--prompt-chunk", row["chunk"], "--topology", row["topology"],
                    "--ctx", 96, env={"WISP_ISA": "ref"} if row["isa"] == "ref" else {})
                golden = golden or (out["token_ids"], logits)
                with self.subTest(model=name, **row):
                    self.assertEqual(out["token_ids"], golden[0])
                    self.assertTrue(logits == golden[1], "logits differ in bits")

    def test_forms_of_arithmetic(self):
        """KV in bf16, naive prompts of latent attention, the fast profile, alone and together: other bits than the plain run's, and the
        same ones at few slots, in any chunks, in one process."""
        cases = [("mixtral_window", 70, ("--kv", "bf16")), ("deepseek_v3_published", 70, ("--kv", "bf16")),
                 ("deepseek_v3_published", 600, ("--prefill", "naive")),
                 ("glm_moe_dsa_published", 1040, ("--prefill", "naive", "--kv", "bf16")),
                 ("mixtral_gptq_act_order", 70, ("--profile", "fast")), ("gpt_oss_mxfp4", 70, ("--profile", "fast"))]
        for name, n, options in cases:
            folder = model("oracle/" + name)
            with open(os.path.join(folder, "manifest.json")) as f:
                spec = json.load(f)["spec"]
            stride, fewest = spec["expert"]["stride"], 2 * spec["router"]["top_k"]
            experts = spec["router"]["experts"] * spec["layers"].count("moe")
            ids = ",".join(str(i * 37 % spec["vocab"]) for i in range(n))
            axes = {"slots": [fewest, experts], "threads": [1, 2], "chunk": [7, 64, 2048], "topology": ["full", "solo"],
                    "isa": ["best", "ref"] if n < 100 else ["best"]}
            common = [folder, "--ids", ids, "-n", TOKENS, "--ignore-eos", "--ctx", n + 20]
            plain = run_logits(*common)[1]
            golden = None
            for row in pairwise(axes):
                out, logits = run_logits(
                    *common, *options, "--experts-ram", row["slots"] * stride, "--threads", row["threads"],
                    "--prompt-chunk", row["chunk"], "--topology", row["topology"],
                    env={"WISP_ISA": "ref"} if row["isa"] == "ref" else {})
                golden = golden or (out["token_ids"], logits)
                with self.subTest(model=name, options=options, **row):
                    self.assertEqual(out["token_ids"], golden[0])
                    self.assertTrue(logits == golden[1], "logits differ in bits")
            self.assertFalse(golden[1] == plain, "the same bits without " + " ".join(options))
        # Below 512 tokens no row is naive.
        short = [model("oracle/deepseek_v3_published"), "--ids", ",".join(map(str, range(100))), "-n", 1]
        self.assertEqual(run_logits(*short)[1], run_logits(*short, "--prefill", "naive")[1])

    def test_reads_each_expert_once_per_chunk(self):
        """At the fewest slots a prompt's chunk reads each expert at most once: the loader's own counter says so."""
        n = 200
        for chunk in (50, 200):
            out = run_json(model(), "--ids", ",".join(map(str, prompt_of(n))), "-n", 1, "--ignore-eos",
                           "--experts-ram", MINIMUM * STRIDE, "--prompt-chunk", chunk)
            self.assertLessEqual(out["expert_bytes_read"], (n // chunk) * EXPERTS * STRIDE)
            self.assertGreater(out["expert_bytes_read"], 8 * MINIMUM * STRIDE)

    def test_beside_others(self):
        """A request alone and beside three others: the same events but for id and created."""
        prompts = reference()["prompts"][:4]
        body = [{"messages": p["messages"], "return_token_ids": True} for p in prompts]
        with Server(model(), "--experts-ram", 64 * STRIDE, "--profile", "exact") as server:
            alone = [server.post("/v1/chat/completions", b)[1] for b in body]
            for _ in range(3):
                got = [None] * 4
                threads = [threading.Thread(target=lambda i=i: got.__setitem__(
                    i, server.post("/v1/chat/completions", body[i])[1])) for i in range(4)]
                [t.start() for t in threads]
                [t.join() for t in threads]
                for i in range(4):
                    self.assertEqual(got[i]["choices"], alone[i]["choices"])
                    self.assertEqual(got[i]["choices"][0]["token_ids"], prompts[i]["output_ids"])

    def test_streams_beside_a_long_prompt(self):
        """Four streams and one long prompt: between two tokens of a stream at most a chunk was computed (the router's own count),
        and nobody's ids know of the others."""
        long, chunk, n = prompt_of(1500), 64, 100
        bodies = [{"prompt": prompt_of(5 + i), "max_tokens": n, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
                  for i in range(4)] + [{"prompt": long, "max_tokens": 8, "ignore_eos": True, "temperature": 0,
                                         "return_token_ids": True}]
        for slots, most in ((EXPERTS, chunk // 4), (64, chunk)):          # resident experts; experts from the drive
            with Server(model(), "--experts-ram", slots * STRIDE, "--prompt-chunk", chunk, "--parallel", 5) as server:
                alone = [server.post("/v1/completions", b)[1]["choices"][0]["token_ids"] for b in bodies]
                stall = lambda: counters("router").get("longest_stall", 0)
                self.assertEqual(stall(), 0, "a request alone waits for nobody")
                got = [None] * 5
                ask = lambda i: got.__setitem__(i, server.post("/v1/completions", bodies[i])[1]["choices"][0]["token_ids"])
                threads = [threading.Thread(target=ask, args=(i,)) for i in range(5)]
                for t in threads[:4]:
                    t.start()
                while counters("router").get("tokens_committed", 0) < 4 * n + 8 + 8 and any(t.is_alive() for t in threads[:4]):
                    pass                                              # the four have begun
                threads[4].start()
                [t.join() for t in threads]
                self.assertEqual(got, alone)
                self.assertLessEqual(stall(), most)
                print(f"{slots} slots: longest stall {stall()} prompt rows", file=sys.stderr)

    def test_reference(self):
        """The reference's ids through the whole pipeline; sampling repeats with its seed."""
        for p in reference()["prompts"]:
            if len(p["messages"]) != 1:
                continue
            out = run_json(model(), "-p", p["messages"][0]["content"], "--experts-ram", 32 * STRIDE, "--profile", "exact")
            self.assertEqual(out["token_ids"], p["output_ids"])
            self.assertEqual(out["text"], p["output_text"])
        sampled = [run_json(model(), "-p", "What is a dog?", "--temp", 1.5, "--seed", 7, "--experts-ram", s * STRIDE)
                   for s in (8, 256)]
        self.assertEqual(sampled[0]["token_ids"], sampled[1]["token_ids"])
        self.assertEqual(sampled[0]["seed"], 7)


if __name__ == "__main__":
    main()
