"""Checkpoints on disk: safetensors in one file or in shards."""
import json
import os

from safetensors import safe_open
from safetensors.torch import save_file

from formats import unpack_all


def read_checkpoint(folder):
    """Every weight of a checkpoint in float32, coded ones unpacked exactly."""
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    raw = {}
    for name in files:
        with safe_open(os.path.join(folder, name), "pt") as f:
            raw.update({k: f.get_tensor(k) for k in f.keys()})
    with open(os.path.join(folder, "config.json")) as f:
        quantization = json.load(f).get("quantization_config")
    return unpack_all(raw, quantization)


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def write_tensors(path, tensors):
    save_file({k: t.contiguous() for k, t in tensors.items()}, path, metadata={"format": "pt"})


def write_checkpoint(folder, cfg, tensors, shards=1):
    """Publishers' form. Shards are cut by bytes alone, so a cut may fall inside an expert, as in real releases."""
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), cfg)
    if shards == 1:
        write_tensors(os.path.join(folder, "model.safetensors"), tensors)
        return
    total = sum(t.nbytes for t in tensors.values())
    parts, seen = [{} for _ in range(shards)], 0
    for name, t in tensors.items():
        parts[min(seen * shards // total, shards - 1)][name] = t
        seen += t.nbytes
    weight_map = {}
    for i, part in enumerate(parts):
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        write_tensors(os.path.join(folder, name), part)
        weight_map.update({k: name for k in part})
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               dict(metadata=dict(total_size=total), weight_map=dict(sorted(weight_map.items()))))
