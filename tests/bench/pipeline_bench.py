#!/usr/bin/env python3
"""What the pipeline costs, and what company brings: ratios of paired runs (A B A B ..), medians and spreads.

  processes  tokens a second through all processes / in one process (--topology full / solo): 1 = a hop costs nothing more
  streams    tokens a second of N streams together / of one alone

usage: pipeline_bench.py MODEL [--pairs 7] [--tokens 300] [--streams 4] [--only processes|streams] [OPTIONS of wisp ...]

The programs are those of build/release/bin, or of $WISP_BIN. A machine at other work measures that work.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

WISP = os.path.join(os.environ.get("WISP_BIN", os.path.join(os.path.dirname(__file__), "../../build/release/bin")), "wisp")
PROMPT = [7, 11, 13, 17, 19, 23, 29, 31]


def speed(model, tokens, topology, options):
    """Tokens a second after the first one, of one answer."""
    out = subprocess.run([WISP, "run", model, "--ids", ",".join(map(str, PROMPT)), "-n", str(tokens), "--ignore-eos", "--json",
                          "--topology", topology, *options], capture_output=True, text=True, check=True).stdout
    return json.loads(out.strip().splitlines()[-1])["decode_tok_s"]


class Server:
    def __init__(self, model, streams, options):
        self.process = subprocess.Popen([WISP, "serve", model, "--port", "0", "--parallel", str(streams), *options],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        self.url = re.match(r"listening on (\S+)", line).group(1).rstrip("/") + "/v1/completions"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def answer(self, tokens, first):
        body = {"prompt": [first, *PROMPT], "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        usage = json.load(urllib.request.urlopen(request))["usage"]
        assert usage["completion_tokens"] == tokens, usage

    def speed(self, tokens, streams):
        threads = [threading.Thread(target=self.answer, args=(tokens, 100 + i)) for i in range(streams)]
        start = time.monotonic()
        [t.start() for t in threads]
        [t.join() for t in threads]
        return streams * tokens / (time.monotonic() - start)


def report(name, pairs):
    a, b = zip(*pairs)
    ratios = sorted(x / y for x, y in pairs)
    print(f"{name}: {statistics.median(ratios):.3f} of {len(pairs)} pairs, {ratios[0]:.3f} to {ratios[-1]:.3f}; "
          f"medians {statistics.median(a):.1f} and {statistics.median(b):.1f} tokens a second", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("--tokens", type=int, default=300)
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--only", choices=["processes", "streams"])
    a, options = p.parse_known_args()
    print(f"load {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} cores, options {' '.join(options) or 'none'}", flush=True)
    if a.only != "streams":
        one = lambda topology: speed(a.model, a.tokens, topology, options)
        one("full")                                               # the files are in the page cache from here on
        report("processes / one process", [(one("full"), one("solo")) for _ in range(a.pairs)])
    if a.only != "processes":
        with Server(a.model, a.streams, options) as server:
            server.speed(a.tokens, 1)
            report(f"{a.streams} streams / one",
                   [(server.speed(a.tokens, a.streams), server.speed(a.tokens, 1)) for _ in range(a.pairs)])


if __name__ == "__main__":
    sys.exit(main())
