#!/usr/bin/env python3
"""Score lines of token ids teacher-forced with Hugging Face transformers on the exactly unpacked bundled model.

usage: python tests/oracle/pocket_eval.py [--model tests/data/pocket-dictionary] [--ids FILE] [--lines 10]
                                          [--out tests/data/oracle/pocket_eval.json]

FILE has one line of comma-separated ids each, plain or .gz. Without --ids the lines already in the output file are
scored again. Arithmetic is float32 with eager attention; an int4 weight is code x scale, exact in float32. The
negative log-likelihoods (natural logarithm) are taken in float64 from the float32 logits.
"""
import argparse
import gzip
import json
import os

import numpy as np
import torch
import transformers

from oracle import load_exact, prepare, run


def read_ids(args):
    if not args.ids:
        with open(args.out) as f:
            return [line["ids"] for line in json.load(f)["lines"]]
    with (gzip.open if args.ids.endswith(".gz") else open)(args.ids, "rt") as f:
        return [[int(x) for x in text.split(",")] for text in f if text.strip()][:args.lines]


def score(model, ids):
    """Row t of the logits predicts token t + 1, so a line of n ids has n - 1 scores; its first token has none."""
    logits, _, margin = run(model, torch.tensor(ids))
    logits = logits[:-1].double()
    nll = -logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    top, best = logits.topk(2, -1)
    gap = (top[:, 0] - top[:, 1]).min().item()
    return {"nll_sum": nll.sum().item(), "tokens_scored": len(ids) - 1,
            "greedy_hits": int((best[:, 0] == torch.tensor(ids[1:])).sum()),
            "smallest_top2_gap": float(f"{gap:.4g}"), "smallest_router_margin": float(f"{margin:.4g}"),
            "ids": ids, "greedy": best[:, 0].tolist(), "nll": [round(x, 5) for x in nll.tolist()]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="tests/data/pocket-dictionary")
    ap.add_argument("--ids", help="lines of ids; default: those in the output file")
    ap.add_argument("--lines", type=int, default=10, help="how many lines of --ids")
    ap.add_argument("--out", default="tests/data/oracle/pocket_eval.json")
    args = ap.parse_args()
    if not args.ids and not os.path.exists(args.out):
        ap.error("--ids is needed where the output file does not exist yet")
    prepare()
    lines = read_ids(args)
    model = load_exact(args.model)
    scored = [score(model, ids) for ids in lines]
    total, count = sum(s["nll_sum"] for s in scored), sum(s["tokens_scored"] for s in scored)
    head = {
        "about": "Teacher-forced scores of lines of ids by the bundled model. ids: the line. For every token after "
                 "the first, nll: its negative log-likelihood in nats given those before it, greedy: the id with the "
                 "largest logit in its place. nll_sum: the sum of nll in full precision.",
        "nll_sum": total, "tokens_scored": count, "nats_per_token": total / count,
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
                      "numpy": np.__version__}}
    # One line of text per line of ids: small, and readable in a diff.
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    with open(args.out, "w") as f:
        f.write(json.dumps(head, indent=1)[:-2] + ',\n "lines": [\n')
        f.write(",\n".join("  " + json.dumps(s, separators=(",", ":")) for s in scored) + "\n ]\n}\n")
    print(f"{len(scored)} lines, {count} tokens, {total:.6f} nats, {total / count:.6f} a token, "
          f"{os.path.getsize(args.out)} bytes")


if __name__ == "__main__":
    main()
