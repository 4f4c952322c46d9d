#!/usr/bin/env python3
"""Greedy answers of the bundled draft model by Hugging Face transformers, to the prompts of the bundled model.

usage: python tests/oracle/pocket_draft.py [--model tests/data/pocket-dictionary]
                                           [--draft tests/data/pocket-dictionary-draft]

Writes reference.json beside the draft, in the form of the model's own, and prints how often the draft says what the
model says next, with the model's answer before it. Arithmetic is float32 with eager attention.
"""
import argparse
import json
import os

import torch
import transformers

from oracle import decode, load, margin_at, prepare, run

LONGEST = 48


def answer(model, prompt, stop):
    ids, rows = decode(model, torch.tensor(prompt), LONGEST)
    out = ids[len(prompt):].tolist()
    count = out.index(stop) + 1 if stop in out else len(out)
    top = rows[0].topk(5)
    return {"input_ids": prompt, "output_ids": out[:count], "smallest_margin": round(margin_at(rows[:count], 1), 4),
            "first_step_top5": [{"id": i, "logit": round(v, 6)}
                                for v, i in zip(top.values.tolist(), top.indices.tolist())]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="tests/data/pocket-dictionary")
    ap.add_argument("--draft", default="tests/data/pocket-dictionary-draft")
    args = ap.parse_args()
    prepare()
    with open(os.path.join(args.model, "reference.json")) as f:
        of_model = json.load(f)
    draft, stop = load(args.draft), of_model["prompts"][0]["output_ids"][-1]  # each answer ends with it
    prompts, right, asked = [], 0, 0
    for p in of_model["prompts"]:
        said = {k: p[k] for k in ("messages", "prompt")}
        prompts.append(dict(said, **answer(draft, p["input_ids"], stop)))
        ids = torch.tensor(p["input_ids"] + p["output_ids"])
        guesses = run(draft, ids)[0].argmax(-1)[len(p["input_ids"]) - 1:-1]
        right += int((guesses == torch.tensor(p["output_ids"])).sum())
        asked += len(p["output_ids"])
    reference = {
        "description": "Greedy answers of the draft model (float32, transformers), to the model's prompts.",
        "max_new_tokens": LONGEST, "eos_token_id": stop,
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "prompts": prompts}
    with open(os.path.join(args.draft, "reference.json"), "w") as f:
        json.dump(reference, f, indent=1)
        f.write("\n")
    print(f"{len(prompts)} prompts, smallest margin {min(p['smallest_margin'] for p in prompts)}; the draft says "
          f"{right} of {asked} tokens of the model's answers")


if __name__ == "__main__":
    main()
