#!/usr/bin/env python3
"""Plain decoding, gated drafts and a fixed number of drafts: one server each, asked in turns; medians of rounds.

    tests/bench/speculation.py gate MODEL [--pairs N]                  # scripted drafts of a given worth, at several slot counts
    tests/bench/speculation.py pays MODEL [--draft DRAFT]              # look-up in a text that repeats itself; a model and its draft
    tests/bench/speculation.py split MODEL --draft DRAFT               # where the time of a step goes, with drafts and without
    tests/bench/speculation.py places MODEL --draft DRAFT              # what stands by place, beside what the formula gives

MODEL: the demo (tests/data/pocket-dictionary), converted, or better the same made deeper (tests/bench/deepen.py): its passes are as long
as those of models that need drafts. Answers are compared on the way.
"""
import argparse
import http.client
import json
import os
import statistics
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
from wisp_e2e import Server, clean_up, wisp    # noqa: E402


def reference():
    with open(os.path.join(ROOT, "tests/data/pocket-dictionary/reference.json")) as f:
        return json.load(f)["prompts"]


class Engine:
    """A server that runs while others do, but answers alone."""

    def __init__(self, model, speculate, *args, script=None):
        folder = os.path.join(os.environ["XDG_RUNTIME_DIR"], "wisp")
        before = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        self.server = Server(model, "--speculate", speculate, "--ctx", 2048, "--no-learned-cache", "--parallel", 1, *args,
                             env={"WISP_DRAFT_SCRIPT": script} if script else None)
        (name,) = set(os.listdir(folder)) - before
        self.run = os.path.join(folder, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()

    def ask(self, ids, n, **more):
        """(token ids, tokens a second behind the first event)."""
        c = http.client.HTTPConnection("127.0.0.1", self.server.port)
        body = dict({"prompt": ids, "max_tokens": n, "ignore_eos": True, "return_token_ids": True, "stream": True, "temperature": 0}, **more)
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200, r.read()
        tokens, first, first_at, last_at = [], 0, 0, 0
        for line in r:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            choices = json.loads(line[6:]).get("choices") or [{}]
            got = choices[0].get("token_ids") or []
            if not got:
                continue
            if not tokens:
                first, first_at = len(got), now
            tokens += got
            last_at = now
        c.close()
        return tokens, (len(tokens) - first) / (last_at - first_at)

    def stat(self):
        return json.loads(wisp("stat", "--json", "--run", self.run).stdout)

    def counters(self, stage):
        return next(s["counters"] for s in self.stat()["stages"] if s["stage"] == stage)

    def pid(self, stage):
        return next(s["pid"] for s in self.stat()["stages"] if s["stage"] == stage)


def spread(values):
    v = sorted(values)
    return f"{statistics.median(v):.3f} ({v[len(v) // 4]:.3f}-{v[3 * len(v) // 4]:.3f})"


def in_turns(engines, rounds, ids, n, **more):
    """Ratios of all engines but the first to the first, a list each; a round that warms comes first."""
    ratios = [[] for _ in engines[1:]]
    for r in range(rounds + 1):
        want, plain = engines[0].ask(ids, n, **more)
        for engine, out in zip(engines[1:], ratios):
            got, rate = engine.ask(ids, n, **more)
            assert got == want, "another answer"
            if r > 0:
                out.append(rate / plain)
    return ratios


def shape(model):
    """Bytes of an expert in the slab, and how many the model has."""
    shown = json.loads(wisp("inspect", model, "--json").stdout)
    return shown["expert_bytes"], shown["expert_extents"]


def gate(a):
    ids = [4094, 274, 198, 1241, 291, 311, 359]
    drawn = {"temperature": 1, "top_p": 1, "seed": 3}
    stride, experts = shape(a.model)
    with Engine(a.model, "off") as e:
        whole = ids + e.ask(ids, a.tokens, **drawn)[0]
    print("| slots | hits | plain step | drafts that stand | gated / plain | three always / plain |\n|---|---|---|---|---|---|")
    with tempfile.NamedTemporaryFile("w") as script:
        for share in a.shares:
            slots = max(int(experts * share), 8)
            for accept in (0, .3, .6, .9):
                script.seek(0)
                script.truncate()
                script.write(f"accept {accept} seed 5\n" + " ".join(map(str, whole)) + "\n")
                script.flush()
                flags = ["--experts-ram", slots * stride]
                gated, always = [], []
                # Where the kernel puts a server's memory makes one as fast as another only on the average.
                for _ in range(a.restarts):
                    with Engine(a.model, "off", *flags) as plain, Engine(a.model, "auto", *flags, script=script.name) as auto, \
                            Engine(a.model, "3", *flags, script=script.name) as three:
                        ratios = in_turns([plain, auto, three], a.pairs, ids, a.tokens, **drawn)
                        gated += ratios[0]
                        always += ratios[1]
                        c, steps = plain.counters("loader"), plain.counters("compute")
                print(f"| {slots} | {c.get('decode_hits', 0) / c['decode_accesses']:.2f} | {steps['decode_step_ns'] / steps['decode_steps'] / 1e6:.2f} ms"
                      f" | {accept} | {spread(gated)} | {spread(always)} |", flush=True)


def pays(a):
    prompts = reference()
    one = prompts[0]["input_ids"] + prompts[0]["output_ids"] + [198]
    cases = [("one answer six times, then its question", one * 6 + prompts[0]["input_ids"], [])]
    if a.draft:
        cases.append(("a question, with the draft model", prompts[3]["input_ids"], ["--draft", a.draft]))
    print("| text | drafts | with / plain | tokens a pass | stood, by place |\n|---|---|---|---|---|")
    for name, ids, extra in cases:
        kinds = ("auto", "3", "7")
        engines = [Engine(a.model, "off")] + [Engine(a.model, k, *extra) for k in kinds]
        try:
            ratios = in_turns(engines, a.pairs, ids, a.tokens)
            for k, engine, ratio in zip(kinds, engines[1:], ratios):
                s = engine.stat()["speculation"]
                stood = " ".join(f"{x / d:.2f}" for x, d in zip(s["accepted_by_place"], s["drafted_by_place"]) if d)
                print(f"| {name} | {k} | {spread(ratio)} | {s['tokens'] / max(s['steps'], 1):.2f} | {stood} |", flush=True)
        finally:
            for engine in engines:
                engine.server.stop()


def cpu_ms(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def split(a):
    """CPU time of each process a token, and wall time a token: what drafting takes from whom."""
    ids = reference()[3]["input_ids"]
    stages = ("router", "compute", "speculator", "loader", "gateway")
    print("| drafts | ms a token | " + " | ".join(f"{s}, CPU" for s in stages) + " | target's passes | waited for drafts |")
    print("|---|" + "---|" * (len(stages) + 3))
    for k in ("off", "auto", "3"):
        with Engine(a.model, k, *(["--draft", a.draft] if k != "off" else [])) as e:
            e.ask(ids, a.tokens)
            pids = {s: e.pid(s) for s in stages}
            before, t, count = {s: cpu_ms(p) for s, p in pids.items()}, time.monotonic(), 0
            r0, passes = e.counters("router"), e.counters("compute")["decode_steps"]
            for _ in range(a.pairs):
                count += len(e.ask(ids, a.tokens)[0])
            wall = (time.monotonic() - t) * 1000
            r1, passes = e.counters("router"), e.counters("compute")["decode_steps"] - passes
            now = {s: cpu_ms(p) for s, p in pids.items()}
            of = lambda name: r1.get(name, 0) - r0.get(name, 0)
            print(f"| {k} | {wall / count:.3f} | " + " | ".join(f"{(now[s] - before[s]) / count:.3f}" for s in stages) +
                  f" | {passes / count:.3f} | {of('draft_wait_ns') / 1e6 / count:.3f} |", flush=True)


def places(a):
    """Tokens a pass: measured, and 1 + p + p^2 + .. + p^k by what stands at the first place alone (spec, section 12)."""
    prompts = reference()
    print("| drafts | stood, by place | tokens a pass | by the formula |\n|---|---|---|---|")
    for k in (1, 2, 3, 5, 7):
        with Engine(a.model, str(k), "--draft", a.draft) as e:
            for p in prompts:
                e.ask(p["input_ids"], a.tokens)
            s = e.stat()["speculation"]
        stood = [x / d for x, d in zip(s["accepted_by_place"], s["drafted_by_place"]) if d]
        print(f"| {k} | " + " ".join(f"{p:.2f}" for p in stood) + f" | {s['tokens'] / s['steps']:.3f} | "
              f"{sum(stood[0] ** i for i in range(k + 1)):.3f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["gate", "pays", "split", "places"])
    p.add_argument("model")
    p.add_argument("--draft", default="")
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("--restarts", type=int, default=3, help="sets of servers, each of which is asked --pairs times, for gate")
    p.add_argument("--tokens", type=int, default=240)
    p.add_argument("--shares", type=lambda s: [float(x) for x in s.split(",")], default=[.06, .16, .35, .6, 1],
                   help="of the experts that have a slot, for gate")
    a = p.parse_args()
    try:
        {"gate": gate, "pays": pays, "split": split, "places": places}[a.what](a)
    finally:
        clean_up()


if __name__ == "__main__":
    main()
