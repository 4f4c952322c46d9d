#!/usr/bin/env python3
"""Tokens per second of a whole decode: WISP against llama.cpp on the same weights, in turns (A B A B ..).

    wisp synth --like qwen3-30b --layers 8 --vocab 25344 --dense-format int4 --out DIR/m --gguf DIR/m.gguf
    tests/bench/decode_against_llama.py --llama-bench PATH --model DIR/m --gguf DIR/m.gguf --pairs 7

The vocabulary shrinks with the layers, so that the head keeps its share of a step.

llama.cpp comes from PyPI's source package of llama-cpp-python (vendor/llama.cpp), built outside of the repository:
    cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON && cmake --build build --target llama-bench

Both run on the same number of threads, continue a prompt of the same length by the same number of tokens, and keep keys and
values in 16 bits. Differences that remain: llama-bench feeds random tokens and samples nothing; WISP samples its own at a high
temperature (a random model's greedy answer runs in circles, and its experts then come out of the cache) and passes them
through all its processes. WISP's figure counts only where every expert was in memory: a run with misses ends the script."""
import argparse
import json
import os
import statistics
import subprocess
import sys


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(c) for c in command)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def wisp_once(a, seed):
    # Ids spread over the vocabulary, so that the prompt meets every expert.
    ids = ",".join(str((seed * 7919 + i * 104729) % a.vocab) for i in range(a.prompt))
    command = [a.wisp, "run", a.model, "--ids", ids, "-n", a.tokens, "--ignore-eos", "--json", "--threads", a.threads,
               "--profile", a.profile, "--kv", "bf16", "--ctx", a.prompt + a.tokens, "--temp", "2", "--top-k", "0",
               "--top-p", "1", "--seed", seed, "--topology", a.topology]
    if a.ram:
        command += ["--ram", a.ram]
    answer = json.loads(run(command).splitlines()[-1])
    if answer["completion_tokens"] != a.tokens:
        sys.exit(f"wisp wrote {answer['completion_tokens']} tokens of {a.tokens}")
    if answer["hit_rate"] is not None and answer["hit_rate"] < a.hit_rate:
        sys.exit(f"wisp found {100 * answer['hit_rate']:.2f} % of the experts in memory: not a resident run; give more --ram "
                 "or a longer --prompt")
    return answer["decode_tok_s"], answer["hit_rate"]


def llama_once(a):
    out = run([a.llama_bench, "-m", a.gguf, "-p", 0, "-n", a.tokens, "-d", a.prompt, "-t", a.threads, "-r", 1, "-o", "json",
               *a.llama_args.split()])
    result = json.loads(out)[-1]
    return result["avg_ts"], result


def spread(numbers):
    if len(numbers) < 2:
        return f"{numbers[0]:.3f}"
    low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--model", required=True, help="the folder of wisp synth")
    p.add_argument("--gguf", required=True, help="its GGUF file")
    p.add_argument("--wisp", default=os.path.join(here, "../../build/release/bin/wisp"))
    p.add_argument("--pairs", type=int, default=7)
    p.add_argument("--prompt", type=int, default=256, help="tokens before the first that counts")
    p.add_argument("--tokens", type=int, default=64, help="tokens that count")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--profile", default="fast", help="of WISP; llama.cpp has bytes for activations too")
    p.add_argument("--topology", default="full")
    p.add_argument("--ram", help="of WISP; without it what it takes by itself")
    p.add_argument("--hit-rate", type=float, default=0.999, help="what WISP must find in memory")
    p.add_argument("--llama-args", default="", help="more arguments of llama-bench")
    a = p.parse_args()
    with open(os.path.join(a.model, "manifest.json")) as f:
        a.vocab = json.load(f)["spec"]["vocab"]

    ours, theirs, ratios, hits = [], [], [], []
    with open("/proc/loadavg") as f:
        load = f.read().split()[0]
    for pair in range(a.pairs):
        wisp, hit = wisp_once(a, pair + 1)
        llama, about = llama_once(a)
        if pair == 0:
            print(f"{about['cpu_info']}; llama.cpp {about['build_number']} ({about['build_commit']}), {about['model_type']}, "
                  f"KV {about['type_k']}; WISP profile {a.profile}, KV bf16, topology {a.topology}; {a.threads} threads, prompt "
                  f"{a.prompt}, {a.tokens} tokens; load before: {load}")
        ours.append(wisp)
        theirs.append(llama)
        ratios.append(wisp / llama)
        hits.append(hit if hit is not None else 1.0)
        print(f"pair {pair + 1}: wisp {wisp:8.2f} tok/s   llama.cpp {llama:8.2f} tok/s   ratio {wisp / llama:.3f}", flush=True)
    print(f"wisp       {spread(ours)} tok/s, experts found in memory at least {100 * min(hits):.2f} %")
    print(f"llama.cpp  {spread(theirs)} tok/s")
    print(f"ratio      {spread(ratios)}: median of {len(ratios)} pairs and quartiles")


if __name__ == "__main__":
    main()
