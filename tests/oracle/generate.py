#!/usr/bin/env python3
"""Write tiny random checkpoints of every family and the logits that Hugging Face transformers computes from them.

usage: python tests/oracle/generate.py [--out tests/data/oracle] [--only CASE_OR_FAMILY ...] [--compare]

Each case is one folder: a checkpoint as it would be published (config.json, safetensors), expected.safetensors with
the input ids, the float32 logits at every position and the router's choices, and expected.json with the seed and the
margins for people to read. README.md beside this file says what each case is for.

With --compare nothing is written: everything is made again in a temporary folder and compared with what is in --out.
Checkpoints, ids and chosen experts must be the same, logits and expert weights the same within rounding.
"""
import argparse
import filecmp
import importlib
import json
import os
import sys
import tempfile

from safetensors import safe_open

import oracle

FAMILIES = ["qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe", "gpt_oss", "deepseek_v3", "deepseek_v32",
            "glm_moe_dsa", "glm4_moe_lite", "qwen3", "llama", "mistral"]
ROUNDING = 1e-5  # of the largest magnitude in the tensor


def cases():
    for name in FAMILIES:
        family = importlib.import_module("families." + name)
        for case, description in family.CASES.items():
            yield name, case, family, description


def read(path):
    with safe_open(path, "np") as f:
        return {k: f.get_tensor(k) for k in f.keys()}


def differences(made, committed):
    """What of one case is not as committed, as lines of text."""
    if not os.path.isdir(committed):
        return ["is not there"]
    files = sorted(os.listdir(made))
    if files != sorted(os.listdir(committed)):
        return [f"has other files: {sorted(set(files) ^ set(os.listdir(committed)))}"]
    out = [f"{f} differs" for f in files if not f.startswith("expected.")
           and not filecmp.cmp(os.path.join(made, f), os.path.join(committed, f), shallow=False)]
    a, b = (read(os.path.join(d, "expected.safetensors")) for d in (made, committed))
    if a.keys() != b.keys():
        return out + ["expected.safetensors has other tensors"]
    for name in sorted(a):
        if a[name].shape != b[name].shape or a[name].dtype != b[name].dtype:
            out.append(f"{name} has another shape or type")
        elif a[name].dtype.kind != "f":
            if (a[name] != b[name]).any():
                out.append(f"{name} differs")
        elif abs(a[name] - b[name]).max() > ROUNDING * abs(b[name]).max():
            out.append(f"{name} differs by {abs(a[name] - b[name]).max():.3g}")
    with open(os.path.join(made, "expected.json")) as f, open(os.path.join(committed, "expected.json")) as g:
        x, y = json.load(f), json.load(g)
    return out + [f"expected.json: {k} differs" for k in ("case", "about", "seed", "refused_seeds", "positions")
                  if x[k] != y[k]]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default="tests/data/oracle")
    ap.add_argument("--only", nargs="*", metavar="CASE_OR_FAMILY", help="these only")
    ap.add_argument("--compare", action="store_true", help="compare with --out instead of writing there")
    args = ap.parse_args()
    wanted = [c for c in cases() if not args.only or c[0] in args.only or c[1] in args.only]
    unknown = set(args.only or ()) - {n for c in wanted for n in c[:2]}
    if unknown:
        ap.error(f"no such case or family: {', '.join(sorted(unknown))}")
    oracle.prepare()
    with tempfile.TemporaryDirectory() as tmp:
        out = tmp if args.compare else args.out
        os.makedirs(out, exist_ok=True)
        total, bad = 0, 0
        for _, name, family, case in wanted:
            total += oracle.make(out, name, family, case)
            for line in differences(os.path.join(out, name), os.path.join(args.out, name)) if args.compare else []:
                bad += 1
                print(f"{name}: {line}")
    print(f"{total} bytes in all" + (f", {bad} differences" if args.compare else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
