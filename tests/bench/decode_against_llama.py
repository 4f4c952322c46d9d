#!/usr/bin/env python3
"""Tokens per second of a whole decode: WISP against llama.cpp on the same weights, in turns (A B A B ..).

    wisp synth --like qwen3-30b --layers 8 --vocab 25344 --dense-format int4 --out DIR/m --gguf DIR/m.gguf
    tests/bench/decode_against_llama.py --llama-bench PATH --model DIR/m --gguf DIR/m.gguf --pairs 7
    tests/bench/decode_against_llama.py ... --cap 25 --prompt 32 --tokens 16      (as root; see against_llama.sh)

The vocabulary shrinks with the layers, so that the head keeps its share of a step.

llama.cpp comes from PyPI's source package of llama-cpp-python (vendor/llama.cpp), built outside of the repository:
    cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON && cmake --build build --target llama-bench

Both run on the same number of threads, continue a prompt of the same length by the same number of tokens, and keep keys and
values in 16 bits. Differences that remain: llama-bench feeds random tokens and samples nothing; WISP samples its own at a high
temperature (a random model's greedy answer runs in circles, and its experts then come out of the cache) and passes them
through all its processes. WISP's figure counts only where every expert was in memory: a run with misses ends the script.

With --cap PERCENT each runs alone in a memory cgroup of that share of the GGUF file's bytes, with a cold page cache, and WISP
gets the cap as --ram. WISP then draws from the whole vocabulary, so that its tokens are as random as llama-bench's. Around each run of
WISP fio reads the same files directly, by blocks of an expert's stride. llama.cpp maps its file and does not repack: a repacked
copy is anonymous memory, for which the kernel kills it under the cap."""
import argparse
import json
import os
import statistics
import subprocess
import sys

from under_cap import direct_read, run_cold

IN_FLIGHT = 4 << 20  # what the engine keeps on its way by default



def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(c) for c in command)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def wisp_command(a, seed):
    # Ids spread over the vocabulary, so that the prompt meets every expert.
    ids = ",".join(str((seed * 7919 + i * 104729) % a.vocab) for i in range(a.prompt))
    return [a.wisp, "run", a.model, "--ids", ids, "-n", a.tokens, "--ignore-eos", "--json", "--threads", a.threads,
            "--profile", a.profile, "--kv", "bf16", "--ctx", a.prompt + a.tokens, "--temp", "2",
            "--top-k", "0" if a.cap else "64", "--top-p", "1", "--seed", seed, "--topology", a.topology]


def wisp_answer(a, out):
    answer = json.loads(out.splitlines()[-1])
    if answer["completion_tokens"] != a.tokens:
        sys.exit(f"wisp wrote {answer['completion_tokens']} tokens of {a.tokens}")
    return answer


def wisp_once(a, seed):
    command = wisp_command(a, seed)
    if a.ram:
        command += ["--ram", a.ram]
    answer = wisp_answer(a, run(command))
    if answer["hit_rate"] is not None and answer["hit_rate"] < a.hit_rate:
        sys.exit(f"wisp found {100 * answer['hit_rate']:.2f} % of the experts in memory: not a resident run; give more --ram "
                 "or a longer --prompt")
    return answer["decode_tok_s"], answer["hit_rate"]


def llama_command(a):
    return [a.llama_bench, "-m", a.gguf, "-p", 0, "-n", a.tokens, "-d", a.prompt, "-t", a.threads, "-r", 1, "-o", "json",
            *a.llama_args.split()]


def llama_once(a):
    result = json.loads(run(llama_command(a)))[-1]
    return result["avg_ts"], result


def wisp_capped(a, seed, limit, drive):
    """The figures of one run under the cap; `drive` returns fio's bytes per second, asked before and after."""
    before = drive()
    # No learned cache: each run starts as the first one did.
    out, seen = run_cold(wisp_command(a, seed) + ["--ram", f"{limit >> 20}M", "--no-learned-cache"], limit, a.limit_s)
    answer, rate = wisp_answer(a, out), (before + drive()) / 2
    step = answer["decode"]
    decode_s = (a.tokens - 1) / answer["decode_tok_s"]
    missed = (answer["decode_accesses"] - answer["decode_hits"]) * a.stride
    prompt = answer["expert_bytes_read"] - missed
    return {"tok/s": answer["decode_tok_s"],
            "hit rate": answer["hit_rate"],
            "GB/s of missed experts": missed / decode_s / 1e9,
            "fio GB/s": rate / 1e9,
            "P1 decode / fio": missed / decode_s / rate,
            "P1 while it waits (bytes / expert wait / fio)": missed / (step["expert_wait_ms"] / 1e3) / rate,
            "P2 device bytes, its own count": (answer["device_bytes_read"] - a.dense) / answer["expert_bytes_read"],
            "P2 device bytes, the kernel's count (with programs)": seen["device_bytes"] / (answer["expert_bytes_read"] + a.dense),
            "P12 step / max(I/O, compute)": decode_s / max(missed / rate, decode_s - step["expert_wait_ms"] / 1e3),
            "P20 first token / bound, from the request": answer["ttft_s"] / (prompt / rate),
            "P20 first token / bound, from the start": (seen["wall_s"] - decode_s) / ((prompt + a.dense) / rate),
            "P24 cgroup peak / budget": seen["peak_bytes"] / limit}


def capped(a):
    limit = (os.path.getsize(a.gguf) * a.cap // 100) >> 20 << 20
    files = [os.path.join(a.model, f) for f in sorted(os.listdir(a.model)) if f.startswith("experts-")]

    def drive():
        return direct_read(files, a.stride, IN_FLIGHT, a.fio_s)

    print(f"cap {a.cap} % = {limit} bytes; {a.prompt} tokens of prompt, {a.tokens} tokens; {a.threads} threads; "
          f"profile {a.profile}; topology {a.topology}; load before: {load()}", flush=True)
    ours, theirs = [], []
    for pair in range(a.pairs):
        ours.append(wisp_capped(a, pair + 1, limit, drive))
        here = ours[-1]
        line = (f"pair {pair + 1}: wisp {here['tok/s']:.2f} tok/s, {here['P1 decode / fio']:.3f} of fio's "
                f"{here['fio GB/s']:.2f} GB/s")
        if a.llama_bench:
            out, seen = run_cold(llama_command(a) + ["--repack", 0, "--load-mode", "mmap", "--no-warmup"], limit, a.limit_s)
            result = json.loads(out)[-1]
            theirs.append({"tok/s": result["avg_ts"], "device GB": seen["device_bytes"] / 1e9,
                           "device GB/s": seen["device_bytes"] / seen["wall_s"] / 1e9,
                           "cgroup peak / cap": seen["peak_bytes"] / limit})
            line += f"   llama.cpp {result['avg_ts']:.3f} tok/s   ratio {here['tok/s'] / result['avg_ts']:.2f}"
        print(line, flush=True)
    for key in ours[0]:
        print(f"wisp       {key}: {spread([o[key] for o in ours])}")
    if theirs:
        for key in theirs[0]:
            print(f"llama.cpp  {key}: {spread([t[key] for t in theirs])}")
        ratios = [o["tok/s"] / t["tok/s"] for o, t in zip(ours, theirs)]
        print(f"ratio      {spread(ratios)}: median of {len(ratios)} pairs and quartiles")


def load():
    with open("/proc/loadavg") as f:
        return f.read().split()[0]


def spread(numbers):
    if len(numbers) < 2:
        return f"{numbers[0]:.3f}"
    low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--llama-bench", help="without it, and with --cap, WISP runs alone")
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
    p.add_argument("--cap", type=int, help="percent of the GGUF file's bytes that each may use, page cache included (root)")
    p.add_argument("--fio-s", type=float, default=1.5, help="seconds of each direct read beside WISP, with --cap")
    p.add_argument("--limit-s", type=float, default=60, help="seconds that a run may take, with --cap")
    a = p.parse_args()
    with open(os.path.join(a.model, "manifest.json")) as f:
        manifest = json.load(f)
    a.vocab, a.stride, a.dense = manifest["spec"]["vocab"], manifest["spec"]["expert"]["stride"], manifest["dense"]["bytes"]
    if a.cap:
        return capped(a)
    if not a.llama_bench:
        p.error("--llama-bench is required without --cap")

    ours, theirs, ratios, hits = [], [], [], []
    before = load()
    for pair in range(a.pairs):
        wisp, hit = wisp_once(a, pair + 1)
        llama, about = llama_once(a)
        if pair == 0:
            print(f"{about['cpu_info']}; llama.cpp {about['build_number']} ({about['build_commit']}), {about['model_type']}, "
                  f"KV {about['type_k']}; WISP profile {a.profile}, KV bf16, topology {a.topology}; {a.threads} threads, prompt "
                  f"{a.prompt}, {a.tokens} tokens; load before: {before}")
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
