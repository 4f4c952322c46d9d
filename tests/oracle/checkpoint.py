"""Checkpoints on disk: safetensors in one file or in shards, int4 experts as compressed-tensors packs them, and MXFP4 ones."""
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


# --- MXFP4 -----------------------------------------------------------------------------------------------------

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def to_mxfp4(weight):
    """[.., rows, cols] -> blocks U8 [.., rows, cols / 32, 16] and scales U8 [.., rows, cols / 32]."""
    groups = weight.unflatten(-1, (-1, GROUP))
    power = (groups.abs().amax(-1) / 6).log2().ceil().clamp(-127, 127)
    scaled = groups / torch.exp2(power)[..., None]
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (scaled < 0)
    low, high = codes[..., 0::2], codes[..., 1::2]
    return (low + 16 * high).to(torch.uint8), (power + 127).to(torch.uint8)


def from_mxfp4(blocks, scales):
    """The exact float32 weights [.., rows, cols]."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).to(torch.int64)
    values = torch.where(codes < 8, E2M1[codes & 7], -E2M1[codes & 7])
    return (values * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)


def block_experts(tensors):
    """gpt-oss as published: fused experts as blocks and scales, rows being outputs."""
    out = {}
    for name, t in tensors.items():
        if name.endswith((".gate_up_proj", ".down_proj")):
            out[name + "_blocks"], out[name + "_scales"] = to_mxfp4(t.transpose(-1, -2).contiguous())
        else:
            out[name] = t
    return out


# --- files -----------------------------------------------------------------------------------------------------

def read_checkpoint(folder):
    """Every weight of a checkpoint in float32, coded experts unpacked exactly."""
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
    for name in [k for k in raw if k.endswith("_blocks")]:
        base = name.removesuffix("_blocks")
        raw[base] = from_mxfp4(raw.pop(name), raw.pop(base + "_scales")).transpose(-1, -2)
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
