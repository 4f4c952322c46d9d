#!/usr/bin/env python3
"""Plain decoding, gated drafts and a fixed number of drafts in turns: medians of pairs.

    tests/bench/speculation.py gate MODEL [--pairs N]       # scripted drafts of a given worth, at several slot counts
    tests/bench/speculation.py pays MODEL --draft DRAFT     # look-up in a text that repeats itself; a model and its draft

MODEL: the converted demo (tests/data/pocket-dictionary). Answers are compared on the way.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
WISP = os.environ.get("WISP", os.path.join(ROOT, "build/release/bin/wisp"))
STRIDE = 57344                                  # bytes of an expert of the demo in the slab


def run(model, ids, n, *args, script=None):
    env = dict(os.environ, **({"WISP_DRAFT_SCRIPT": script} if script else {}))
    p = subprocess.run([WISP, "run", model, "--ids", ",".join(map(str, ids)), "-n", str(n), "--ignore-eos", "--ctx", "2048",
                        "--no-learned-cache", "--json", *map(str, args)], env=env, capture_output=True, text=True, check=True)
    return json.loads(p.stdout.strip().splitlines()[-1])


def spread(values):
    v = sorted(values)
    return f"{statistics.median(v):.3f} ({v[len(v) // 4]:.3f}-{v[3 * len(v) // 4]:.3f})"


def gate(a):
    ids = [4094, 274, 198, 1241, 291, 311, 359]
    common = ["--temp", 1, "--top-p", 1, "--seed", 3]
    whole = ids + run(a.model, ids, a.tokens, *common, "--speculate", "off")["token_ids"]
    print("| slots | hits | drafts that stand | gated / plain | three always / plain |\n|---|---|---|---|---|")
    with tempfile.NamedTemporaryFile("w") as script:
        for slots in (16, 40, 90, 150, 256):
            for accept in (0, .3, .6, .9):
                script.seek(0)
                script.truncate()
                script.write(f"accept {accept} seed 5\n" + " ".join(map(str, whole)) + "\n")
                script.flush()
                gated, always = [], []
                for _ in range(a.pairs):
                    flags = [*common, "--experts-ram", slots * STRIDE]
                    plain = run(a.model, ids, a.tokens, *flags, "--speculate", "off")
                    for k, ratios in (("auto", gated), ("3", always)):
                        got = run(a.model, ids, a.tokens, *flags, "--speculate", k, script=script.name)
                        assert got["token_ids"] == plain["token_ids"]
                        ratios.append(got["decode_tok_s"] / plain["decode_tok_s"])
                print(f"| {slots} | {plain['hit_rate']:.2f} | {accept} | {spread(gated)} | {spread(always)} |", flush=True)


def pays(a):
    with open(os.path.join(ROOT, "tests/data/pocket-dictionary/reference.json")) as f:
        prompts = json.load(f)["prompts"]
    one = prompts[0]["input_ids"] + prompts[0]["output_ids"] + [198]
    cases = [("one answer six times, then its question", one * 6 + prompts[0]["input_ids"], []),
             ("a question, with the draft model", prompts[3]["input_ids"], ["--draft", a.draft])]
    print("| text | drafts | with / plain | stood, by place |\n|---|---|---|---|")
    for name, ids, extra in cases:
        for k in ("auto", "3", "7"):
            ratios = []
            for _ in range(a.pairs):
                plain = run(a.model, ids, a.tokens, "--speculate", "off")
                got = run(a.model, ids, a.tokens, "--speculate", k, *extra)
                assert got["token_ids"] == plain["token_ids"]
                ratios.append(got["decode_tok_s"] / plain["decode_tok_s"])
            s = got["speculation"]
            stood = " ".join(f"{x / d:.2f}" for x, d in zip(s["accepted_by_place"], s["drafted_by_place"]) if d)
            print(f"| {name} | {k} | {spread(ratios)} | {stood} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["gate", "pays"])
    p.add_argument("model")
    p.add_argument("--draft", default="")
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("--tokens", type=int, default=240)
    a = p.parse_args()
    gate(a) if a.what == "gate" else pays(a)


if __name__ == "__main__":
    main()
