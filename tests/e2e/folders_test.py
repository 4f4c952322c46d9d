"""The commands that make model folders and say what is in them: `wisp convert`, `inspect`, `synth`, `verify`."""
import json
import os
import resource
import shutil
import struct
import subprocess
import unittest

from wisp_e2e import DATA, STRIDE, WATCHDOG, main, model, program, run_json, temp, wisp


class Inspect(unittest.TestCase):
    def test_checkpoint_and_folder_say_the_same(self):
        folder = model("oracle/glm_moe_dsa_published")
        before = json.loads(wisp("inspect", folder.replace("model-", "source-"), "--json").stdout)
        after = json.loads(wisp("inspect", folder, "--json").stdout)
        for key in before:
            if key not in ("converted", "name"):
                self.assertEqual(before[key], after[key], key)
        self.assertEqual((before["converted"], after["converted"]), (False, True))
        # 24 + 16 numbers a layer, and index keys of 24 in three of four layers.
        self.assertEqual(after["kv_bytes_per_token"], 4 * (4 * 40 + 3 * 24))
        text = wisp("inspect", folder).stdout
        self.assertIn("an indexer in 3 layers picks 20 positions", text)
        self.assertIn("928 bytes in f32, 464 in bf16", text)

    def test_draft_head(self):
        source = model("oracle/glm4_moe_published").replace("model-", "source-")
        with_head, without = temp("with-head"), temp("without-head")
        self.assertIn("a draft head of 156 kB", wisp("convert", source, with_head, "--experts", "int4").stderr)
        text = wisp("inspect", with_head).stdout
        self.assertRegex(text, r"draft head +[0-9.]+ kB: one layer, experts in int8 in groups of 32")
        self.assertIn("30 experts", wisp("verify", with_head).stdout)
        said = wisp("convert", source, without, "--no-draft-head").stderr
        self.assertIn("that predicts further tokens are left out", said)
        self.assertEqual(json.loads(wisp("inspect", without, "--json").stdout)["draft_head_bytes"], 0)
        self.assertNotIn("draft head", wisp("inspect", without).stdout)
        self.assertIn("20 experts", wisp("verify", without).stdout)

    def test_names_the_profile_and_why(self):
        cases = ((model(), "fast (measured on pocket-dictionary, within limits)"),
                 (model("oracle/mixtral_gptq_act_order"), "exact (fast lost more than it may on SmolLM2-135M-Instruct)"),
                 (model("oracle/gpt_oss_mxfp4"), "exact (no measurement of fast stands in this folder)"),
                 (model("oracle/olmoe_published"), "exact (no weight is int4, int8 or MXFP4: fast would be the same)"))
        for folder, says in cases:
            self.assertIn(says, wisp("inspect", folder).stdout)
        p = wisp("run", model(), "-p", "What is a dog?")
        self.assertIn("fast   (measured on pocket-dictionary, within limits)", p.stderr)
        out = run_json(model(), "-p", "What is a dog?", "--profile", "exact")
        self.assertEqual((out["profile"], out["profile_reason"]), ("exact", "asked for"))

    def test_says_why_not(self):
        fp8 = json.loads(wisp("inspect", model("oracle/deepseek_v3_fp8"), "--json").stdout)
        self.assertEqual((fp8["expert_format"], fp8["refusal"]), ("fp8 in groups of 128", ""))
        self.assertEqual(set(fp8["dense_formats"]), {"fp8", "bf16", "f32"})
        refused = temp("refused")
        shutil.copytree(os.path.join(DATA, "pocket-dictionary"), refused)
        with open(os.path.join(refused, "config.json")) as f:
            config = json.load(f)
        config["num_hidden_layers"] += 1
        with open(os.path.join(refused, "config.json"), "w") as f:
            json.dump(config, f)
        p = wisp("inspect", refused, check=False)
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stdout, r"a position of KV +\d+ bytes in f32, \d+ in bf16\n +cannot be converted: .*layers.8")
        p = wisp("inspect", os.path.join(DATA), check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("neither a Hugging Face checkpoint", p.stderr)


class Convert(unittest.TestCase):
    def test_a_limit_on_files_is_an_error_by_name(self):
        dst = temp("limited")
        p = subprocess.run([program("wisp"), "convert", os.path.join(DATA, "pocket-dictionary"), dst], capture_output=True,
                           text=True, timeout=WATCHDOG,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stderr, r"dense.safetensors: write: File too large")
        self.assertEqual([n for n in os.listdir(os.path.dirname(dst)) if n.startswith("limited")], [])


class Smallest(unittest.TestCase):
    def test_a_model_of_one_expert_runs(self):
        folder = temp("one-expert")
        wisp("synth", "--layers", 1, "--experts", 1, "--top-k", 1, "--hidden", 64, "--width", 32, "--vocab", 64, "--out", folder)
        self.assertEqual(len(run_json(folder, "--ids", "1,2,3", "-n", 4, "--ignore-eos")["token_ids"]), 4)


class Synth(unittest.TestCase):
    def test_gguf_lies_beside_the_folder(self):
        folder = temp("with-gguf")
        wisp("synth", "--like", "mixtral-8x7b", "--layers", 1, "--experts", 2, "--hidden", 64, "--heads", 2, "--kv-heads", 1,
             "--width", 32, "--vocab", 64, "--dense-format", "int4", "--out", folder, "--gguf", folder + ".gguf")
        with open(folder + ".gguf", "rb") as f:
            magic, version, tensors = struct.unpack("<4sIQ", f.read(16))
        self.assertEqual((magic, version, tensors), (b"GGUF", 3, 3 + 10))
        self.assertEqual(len(run_json(folder, "--ids", "1,2,3", "-n", 4, "--ignore-eos")["token_ids"]), 4)
        p = wisp("synth", "--like", "glm-5.2", "--out", folder + "-glm", "--gguf", folder + ".gguf", check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("--gguf is not available", p.stderr)


class Verify(unittest.TestCase):
    def test_finds_a_flipped_bit(self):
        self.assertEqual(wisp("verify", model()).returncode, 0)
        broken = temp("flipped")
        subprocess.run(["cp", "-r", model(), broken], check=True)
        victim = sorted(f for f in os.listdir(broken) if f.startswith("experts-"))[2]
        with open(os.path.join(broken, victim), "r+b") as f:
            f.seek(4096 + 3 * STRIDE + 100)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 4]))
        p = wisp("verify", broken, check=False)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn(victim, p.stdout + p.stderr)

    def test_finds_changed_texts(self):
        broken = temp("texts")
        shutil.copytree(model(), broken)
        with open(os.path.join(broken, "tokenizer.json"), "r+b") as f:
            f.seek(5000)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        with open(os.path.join(broken, "chat_template.jinja"), "a") as f:
            f.write("more")
        p = wisp("verify", broken, check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("tokenizer.json, bytes 0 to", p.stderr)
        self.assertIn("chat_template.jinja, bytes", p.stderr)
        self.assertIn("more bytes than were written", p.stderr)
        self.assertIn("2 bad", p.stdout)


if __name__ == "__main__":
    main()
