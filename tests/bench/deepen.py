#!/usr/bin/env python3
"""A checkpoint with the same answers, each token of which costs a multiple: every layer is followed by copies of it that add nothing.

    tests/bench/deepen.py CHECKPOINT DESTINATION [--times N]

The copies' last matrices (o_proj, and down_proj of every expert) are zeros: attention, router and experts are computed and read like any
other's, and what they add is 0. So a trained model keeps its text, and its draft what it is right about, while a pass takes N times as
long. CHECKPOINT: Hugging Face folder with one model.safetensors and "model.layers.<n>." names (tests/data/pocket-dictionary).
"""
import argparse
import json
import os
import re
import shutil
import struct

LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
LAST = re.compile(r".*(o_proj|down_proj)\.weight(_scale)?$")     # of packed weights the scales: codes times 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("checkpoint")
    p.add_argument("destination")
    p.add_argument("--times", type=int, default=4)
    a = p.parse_args()
    shutil.copytree(a.checkpoint, a.destination, ignore=shutil.ignore_patterns("model.safetensors", "reference.json"))
    with open(os.path.join(a.checkpoint, "config.json")) as f:
        config = json.load(f)
    config["num_hidden_layers"] *= a.times
    if "max_window_layers" in config:
        config["max_window_layers"] = config["num_hidden_layers"]
    with open(os.path.join(a.destination, "config.json"), "w") as f:
        json.dump(config, f, indent=1)

    with open(os.path.join(a.checkpoint, "model.safetensors"), "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    out, pieces, at = {"__metadata__": {"format": "pt"}}, [], 0
    header.pop("__metadata__", None)
    for name, t in header.items():
        begin, end = t["data_offsets"]
        layer = LAYER.match(name)
        for n in range(a.times if layer else 1):
            to = f"model.layers.{int(layer[1]) * a.times + n}.{layer[2]}" if layer else name
            out[to] = dict(t, data_offsets=[at, at + end - begin])
            pieces.append(bytes(end - begin) if n > 0 and LAST.match(name) else data[begin:end])
            at += end - begin
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(a.destination, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(pieces)


if __name__ == "__main__":
    main()
