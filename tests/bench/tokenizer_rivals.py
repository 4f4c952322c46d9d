"""Encoding speed beside the reference libraries, in turns on the same texts, each on one thread.

    TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 /tmp/tok/bin/python tests/bench/tokenizer_rivals.py \
        build/release/bin/tokenizer_bench ROUNDS DOCUMENT_BYTES FILE... -- FOLDER...

FOLDER: as tests/oracle/real_tokenizers.py makes them. A round is one pass of each over the file: ours, `tokenizers`
(the quicker of encode_batch_fast, which keeps no offsets, and encode_batch), `tiktoken` where the folder has its form or the split is one pattern. Prints the
medians in MB/s of processor time, which a busy machine disturbs less, and the quartiles of the rounds' ratios. The ids must be as many.
"""

import base64
import json
import pathlib
import statistics
import subprocess
import sys
import time

import tiktoken
from tokenizers import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import patterns
import real_tokenizers


def documents(text, size):
    out = []
    while text:
        end = text.find(b"\n", size) if 0 < size < len(text) else -1
        out.append(text if end < 0 else text[: end + 1])
        text = text[len(out[-1]) :]
    return [d.decode() for d in out]


def ranks_of(folder):
    if (folder / "tiktoken.model").exists():
        return patterns.KIMI, real_tokenizers.ranks_of((folder / "tiktoken.model").read_bytes())
    file = json.loads((folder / "tokenizer.json").read_text())
    steps = (file["pre_tokenizer"] or {}).get("pretokenizers", [])
    if len(steps) != 2:
        return None, None
    back = {c: b for b, c in real_tokenizers.alphabet().items()}
    return steps[0]["pattern"]["Regex"], {
        bytes(back[c] for c in token): i for token, i in file["model"]["vocab"].items()
    }


class Ours:
    def __init__(self, program, folder, path, size):
        self.process = subprocess.Popen(
            [program, folder, path, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self):
        print(file=self.process.stdin, flush=True)
        seconds, ids = self.process.stdout.readline().split()
        return float(seconds), int(ids)


def timed(encode):
    begin = time.process_time()
    ids = encode()
    return time.process_time() - begin, ids


def rivals(folder, texts):
    found = {}
    if (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        encoders = [tokenizer.encode_batch_fast, tokenizer.encode_batch]
        run = lambda f: timed(lambda: f(texts, add_special_tokens=False))
        quicker = min(encoders, key=lambda f: min(run(f)[0] for _ in range(1)))
        found["tokenizers"] = lambda: (lambda r: (r[0], sum(len(e) for e in r[1])))(run(quicker))
    pattern, ranks = ranks_of(folder)
    if ranks:
        encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        found["tiktoken"] = lambda: timed(lambda: sum(len(encoding.encode_ordinary(t)) for t in texts))
    return found


def main():
    program, rounds, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    split = sys.argv.index("--")
    for folder in map(pathlib.Path, sys.argv[split + 1 :]):
        for path in map(pathlib.Path, sys.argv[4:split]):
            data = path.read_bytes()
            texts = documents(data, size)
            ours = Ours(program, folder, path, size)
            others = rivals(folder, texts)
            ours.run()
            for other in others.values():
                other()
            rows = [{"ours": ours.run(), **{name: other() for name, other in others.items()}} for _ in range(rounds)]
            line = f"{folder.name} {path.stem}: ours {len(data) / 1e6 / statistics.median(r['ours'][0] for r in rows):.1f} MB/s"
            for name in others:
                ratios = sorted(r[name][0] / r["ours"][0] for r in rows)
                low, middle, high = statistics.quantiles(ratios, n=4)
                speed = len(data) / 1e6 / statistics.median(r[name][0] for r in rows)
                line += (
                    f"; {name} {speed:.1f} MB/s, ratio {middle:.2f} ({low:.2f} to {high:.2f}, least {ratios[0]:.2f})"
                )
                if name == "tokenizers" or folder.name.startswith("kimi"):
                    line += "" if rows[0][name][1] == rows[0]["ours"][1] else " OTHER IDS"
            print(line, flush=True)


main()
