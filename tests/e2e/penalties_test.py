"""Penalties: the token is the one that the raw logits give by the published formulas, with drafts in the step or without."""
import concurrent.futures
import json
import os
import shutil
import unittest

from wisp_e2e import DATA, Server, floats, main, model, reference, run_json, run_logits, temp, wisp

TOKENS = 60
PENALTIES = {
    "repetition": {"repetition_penalty": 4.0},
    "frequency": {"frequency_penalty": 2.0},
    "presence": {"presence_penalty": -2.0},
    "all": {"repetition_penalty": 2.5, "frequency_penalty": 1.5, "presence_penalty": 2.0},
}


def flags(penalties):
    return [f for field, value in penalties.items() for f in ("--" + field.replace("_", "-"), value)]


def penalised(row, prompt, answer, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0):
    row = list(row)
    for i in set(prompt + answer):
        row[i] = row[i] * repetition_penalty if row[i] < 0 else row[i] / repetition_penalty
    for i in set(answer):
        row[i] -= frequency_penalty * answer.count(i) + presence_penalty
    return row


class Penalties(unittest.TestCase):
    def check(self, prompt, ids, logits, penalties):
        vocab = len(logits) // len(ids)
        raw_differs = 0
        for n, token in enumerate(ids):
            raw = logits[n * vocab:(n + 1) * vocab]
            row = penalised(raw, prompt, ids[:n], **penalties)
            self.assertGreaterEqual(row[token], max(row) - 1e-5, n)
            raw_differs += raw[token] != max(raw)
        self.assertGreater(raw_differs, 0, "the penalties changed no token")

    def test_greedy_tokens_follow_from_the_raw_logits(self):
        """Alone, and four requests of different penalties at a time, each of which has its own text counted."""
        folder = temp("logits")
        prompts = [p["input_ids"] for p in reference()["prompts"][:3]]
        with Server(model(), "--logits", folder, "--speculate", "off") as server:
            for which, prompt in enumerate(prompts):
                ask = lambda p: server.complete({"prompt": prompt, "max_tokens": TOKENS, **p}, folder)
                alone = [ask(p) for p in PENALTIES.values()]
                with concurrent.futures.ThreadPoolExecutor(len(PENALTIES)) as pool:
                    beside = list(pool.map(ask, PENALTIES.values()))
                for name, first, second in zip(PENALTIES, alone, beside):
                    with self.subTest(penalties=name, prompt=which):
                        self.assertEqual(first[0], second[0])
                        self.assertTrue(first[1] == second[1], "logits differ in bits")
                        self.assertEqual(len(first[0]), TOKENS)
                        self.check(prompt, first[0], floats(first[1]), PENALTIES[name])

    def test_drafts_that_stand_are_counted(self):
        """Seven right drafts in each step: a token is judged by those before it in the same step too."""
        for which in (0, 3, 5):
            prompt = reference()["prompts"][which]["input_ids"]
            args = [model(), "--ids", ",".join(map(str, prompt)), "-n", TOKENS, "--temp", 0, "--ignore-eos"]
            for name, penalties in PENALTIES.items():
                with self.subTest(penalties=name, prompt=which):
                    want = run_json(*args, *flags(penalties), "--speculate", "off")["token_ids"]
                    path = temp("script")
                    with open(path, "w") as f:
                        f.write("accept 1 seed 1\n" + " ".join(map(str, prompt + want)) + "\n")
                    got = run_json(*args, *flags(penalties), "--speculate", 7, env={"WISP_DRAFT_SCRIPT": path})
                    self.assertEqual(got["token_ids"], want)
                    self.assertGreater(got["speculation"]["accepted"], TOKENS // 2)

    def test_command_line(self):
        prompt = reference()["prompts"][1]["input_ids"]
        args = [model(), "--ids", ",".join(map(str, prompt)), "-n", TOKENS, "--temp", 0, "--ignore-eos"]
        for name, penalties in PENALTIES.items():
            with self.subTest(penalties=name):
                out, raw = run_logits(*args, *flags(penalties))
                self.check(prompt, out["token_ids"], floats(raw), penalties)

    def test_the_publishers_default(self):
        """generation_config.json's repetition penalty counts where a request names none."""
        source, folder = temp("with-penalty"), temp("converted")
        shutil.copytree(os.path.join(DATA, "pocket-dictionary"), source)
        path = os.path.join(source, "generation_config.json")
        with open(path) as f:
            config = json.load(f)
        with open(path, "w") as f:
            json.dump(dict(config, repetition_penalty=4), f)
        wisp("convert", source, folder)
        prompt = reference()["prompts"][0]["input_ids"]
        args = ["--ids", ",".join(map(str, prompt)), "-n", TOKENS, "--temp", 0, "--ignore-eos"]
        ids = lambda *a: run_json(*a)["token_ids"]
        want = ids(model(), *args, "--repetition-penalty", 4)
        plain = ids(model(), *args)
        self.assertNotEqual(want, plain)
        self.assertEqual(ids(folder, *args), want)
        self.assertEqual(ids(folder, *args, "--repetition-penalty", 1), plain)


if __name__ == "__main__":
    main()
