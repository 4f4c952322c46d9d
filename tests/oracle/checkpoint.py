"""Checkpoints on disk: safetensors in one file or in shards, and int4 experts as compressed-tensors packs them."""
import json
import os

import torch
from safetensors import safe_open
from safetensors.torch import save_file

GROUP = 32  # inputs per scale of the int4 format


# --- int4 ------------------------------------------------------------------------------------------------------

def quantize(weight):
    """[out, in] -> codes 0..15 [out, in] and bfloat16 scales [out, in / 32]; a code c stands for (c - 8) x scale."""
    groups = weight.unflatten(-1, (-1, GROUP))
    scale = (groups.abs().amax(-1) / 7.5).to(torch.bfloat16)
    codes = (groups / scale.float()[..., None]).round().clamp(-8, 7) + 8
    return codes.flatten(-2).to(torch.int64), scale


def pack(codes):
    """Eight codes to an int32, the first input in the lowest four bits."""
    words = (codes.unflatten(-1, (-1, 8)) << (4 * torch.arange(8))).sum(-1)
    return torch.where(words >= 2 ** 31, words - 2 ** 32, words).to(torch.int32)


def unpack(packed, scale, shape):
    """The exact float32 weights: a 4-bit code times a bfloat16 scale fits in 24 bits of mantissa."""
    codes = (packed.to(torch.int64)[..., None] >> (4 * torch.arange(8))) & 15
    codes = codes.flatten(-2)[:, :shape[1]] - 8
    assert codes.shape == tuple(shape)
    return codes.float() * scale.float().repeat_interleave(GROUP, -1)[:, :shape[1]]


def pack_experts(tensors):
    out = {}
    for name, t in tensors.items():
        if ".experts." not in name:
            out[name] = t
            continue
        codes, scale = quantize(t)
        out[name + "_packed"], out[name + "_scale"] = pack(codes), scale
        out[name + "_shape"] = torch.tensor(t.shape, dtype=torch.int64)
    return out


# --- files -----------------------------------------------------------------------------------------------------

def read_checkpoint(folder):
    """Every weight of a checkpoint in float32, int4 experts unpacked exactly."""
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    raw = {}
    for name in files:
        with safe_open(os.path.join(folder, name), "pt") as f:
            raw.update({k: f.get_tensor(k) for k in f.keys()})
    for name in [k for k in raw if k.endswith("_packed")]:
        base = name.removesuffix("_packed")
        raw[base] = unpack(raw.pop(name), raw.pop(base + "_scale"), raw.pop(base + "_shape").tolist())
    return {k: t.float() for k, t in raw.items()}


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
