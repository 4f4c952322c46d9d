"""Models without any expert, all the way: the bundled draft, and the oracles of families that have none."""
import json
import math
import os
import signal
import subprocess
import unittest

from wisp_e2e import DATA, Server, floats, main, model, pids_below, run_json, run_logits, temp, wisp

DRAFT = "pocket-dictionary-draft"
TORCH = 1.373490        # nats a token of the ten lines of tests/data/oracle/pocket_eval.json, in float32, by torch


def prompts():
    with open(os.path.join(DATA, DRAFT, "reference.json")) as f:
        return json.load(f)["prompts"]


def comma(ids):
    return ",".join(map(str, ids))


class Dense(unittest.TestCase):
    def test_answers_are_the_references(self):
        for i, p in enumerate(prompts()):
            for topology in ("full", "solo")[:2 if i == 0 else 1]:
                out = run_json(model(DRAFT), "--ids", comma(p["input_ids"]), "--topology", topology)
                self.assertEqual(out["token_ids"], p["output_ids"])
                self.assertEqual((out["slots"], out["experts"], out["expert_bytes_read"]), (0, 0, 0))
                self.assertIsNone(out["hit_rate"])

    def test_same_logits_whatever_the_settings(self):
        ids = comma(prompts()[0]["input_ids"])
        _, plain = run_logits(model(DRAFT), "--ids", ids)
        for more in (["--threads", 1], ["--prompt-chunk", 3], ["--experts-ram", "1M"], ["--topology", "solo"]):
            self.assertEqual(run_logits(model(DRAFT), "--ids", ids, *more)[1], plain, more)

    def test_llama_and_mistral_run_by_ids(self):
        for case in ("llama_scaled", "mistral_window"):
            _, rows = run_logits(model("oracle/" + case), "--ids", comma(range(1, 60)), "-n", 4, "--ignore-eos",
                                 "--ctx", 256)
            self.assertTrue(rows and all(map(math.isfinite, floats(rows))))

    def test_stages_may_die(self):
        p = prompts()[0]
        body = {"prompt": p["input_ids"], "max_tokens": 64, "temperature": 0}
        with Server(model(DRAFT)) as server:
            want = server.post("/v1/completions", body)[1]["choices"]
            for stage in ("wisp-loader", "wisp-compute", "wisp-router"):
                [pid] = pids_below(server.process.pid, stage)
                os.kill(pid, signal.SIGKILL)
                status, out = server.post("/v1/completions", body)
                self.assertEqual((status, out["choices"]), (200, want), stage)

    def test_eval_is_the_references(self):
        path = temp("ids.txt")
        with open(os.path.join(DATA, "oracle", "pocket_eval.json")) as f, open(path, "w") as out:
            out.writelines(comma(line["ids"]) + "\n" for line in json.load(f)["lines"])
        score = json.loads(wisp("eval", model(DRAFT), "--file", path, "--ids", "--json").stdout)
        self.assertEqual((score["profile"], score["tokens"]), ("exact", 2521))
        self.assertAlmostEqual(score["nats_per_token"], TORCH, delta=1e-4)

    def test_rounded_to_int8(self):
        rounded = temp("rounded")
        wisp("convert", os.path.join(DATA, DRAFT), rounded, "--dense", "int8")
        wisp("verify", rounded)
        sizes = [json.loads(wisp("inspect", folder, "--json").stdout)["dense_bytes"] for folder in (rounded, model(DRAFT))]
        self.assertLess(sizes[0], 0.6 * sizes[1])
        p = prompts()[5]        # whose margin is above one
        self.assertEqual(run_json(rounded, "--ids", comma(p["input_ids"]))["token_ids"], p["output_ids"])

    def test_what_needs_experts_says_so(self):
        seen = json.loads(wisp("inspect", model(DRAFT), "--json").stdout)
        self.assertEqual((seen["family"], seen["moe_layers"], seen["expert_extents"]), ("qwen3", 0, 0))
        self.assertIn("always in memory", wisp("inspect", model(DRAFT)).stdout)
        self.assertIn("0 experts", wisp("verify", model(DRAFT)).stdout)
        for args in (["stripe", model(DRAFT), "--to", temp("stripes")], ["bench", "stream", model(DRAFT)],
                     ["bench", "decode", model(DRAFT)]):
            p = wisp(*args, check=False)
            self.assertNotEqual(p.returncode, 0)
            self.assertIn("has no experts", p.stderr)

    def test_verify_finds_a_flipped_bit(self):
        broken = temp("broken-draft")
        subprocess.run(["cp", "-r", model(DRAFT), broken], check=True)
        with open(os.path.join(broken, "dense.safetensors"), "r+b") as f:
            f.seek(500000)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 4]))
        p = wisp("verify", broken, check=False)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("dense.safetensors", p.stdout + p.stderr)


if __name__ == "__main__":
    main()
