"""Quantised weights as their publishers store them, written from the published definitions (spec 3).

A format has `pack(name, weight)`, which gives the tensors that stand for one Linear [out, in], and the decoder
`unpack(tensors, base, config)`, which takes them out of a checkpoint again and gives the exact float32 weights.
"""
import torch

SHIFTS = 4 * torch.arange(8)


def words(codes):
    """Eight codes 0..15 along the last axis to an int32, the first in the lowest four bits; filled up with zeros."""
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % 8))
    packed = (codes.to(torch.int64).unflatten(-1, (-1, 8)) << SHIFTS).sum(-1)
    return torch.where(packed >= 2 ** 31, packed - 2 ** 32, packed).to(torch.int32)


def nibbles(packed, count):
    return ((packed.to(torch.int64)[..., None] >> SHIFTS) & 15).flatten(-2)[..., :count]


def asymmetric(groups, half):
    """Codes, scales and zero points of groups [.., group]."""
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scale = ((high - low) / 15).to(half)
    zero = (-low / scale.float()).round().clamp(0, 15)
    codes = (groups / scale.float()[..., None] + zero[..., None]).round().clamp(0, 15)
    return codes.to(torch.int64), scale, zero.to(torch.int64)


def grouped(weight, group):
    """[out, in] -> [out, groups, group], the last group filled up with zeros."""
    return torch.nn.functional.pad(weight, (0, -weight.shape[-1] % group)).unflatten(-1, (-1, group))


class Packed:
    """compressed-tensors pack-quantized: int4, bfloat16 scales; zero points where asymmetric, packed along the rows."""

    def __init__(self, group=32, symmetric=True):
        self.group, self.symmetric = group, symmetric

    def pack(self, name, weight):
        groups = grouped(weight, self.group)
        if self.symmetric:
            scale = (groups.abs().amax(-1) / 7.5).to(torch.bfloat16)
            codes = (groups / scale.float()[..., None]).round().clamp(-8, 7) + 8
            zero = {}
        else:
            codes, scale, points = asymmetric(groups, torch.bfloat16)
            zero = {name + "_zero_point": words(points.T).T}
        codes = codes.flatten(-2)[:, :weight.shape[1]]
        return {name + "_packed": words(codes), name + "_scale": scale, **zero,
                name + "_shape": torch.tensor(weight.shape, dtype=torch.int64)}

    @staticmethod
    def unpack(raw, base, quantization):
        group = quantization["config_groups"]["group_0"]["weights"]["group_size"]
        scale = raw.pop(base + "_scale").float()
        rows, cols = raw.pop(base + "_shape").tolist()
        codes = nibbles(raw.pop(base + "_packed"), cols)
        zero = torch.full_like(scale, 8)
        if base + "_zero_point" in raw:
            zero = nibbles(raw.pop(base + "_zero_point").T, rows).T.float()
        return ((codes - zero.repeat_interleave(group, -1)[:, :cols]) * scale.repeat_interleave(group, -1)[:, :cols])


class Fp8:
    """E4M3 with a multiplier for each block of 128 x 128; `power`: powers of two alone."""
    BLOCK = 128

    def __init__(self, dtype=torch.float32, power=False):
        self.dtype, self.power = dtype, power

    def pack(self, name, weight):
        b, (rows, cols) = self.BLOCK, weight.shape
        padded = torch.nn.functional.pad(weight, (0, -cols % b, 0, -rows % b))
        blocks = padded.unflatten(0, (-1, b)).unflatten(2, (-1, b))
        scale = blocks.abs().amax((1, 3)) / 448
        scale = torch.exp2(scale.log2().ceil()) if self.power else scale
        stored = scale.to(self.dtype)
        codes = (blocks / stored.float()[:, None, :, None]).flatten(2, 3).flatten(0, 1)[:rows, :cols]
        return {name: codes.clamp(-448, 448).to(torch.float8_e4m3fn), name + "_scale_inv": stored}

    @classmethod
    def unpack(cls, raw, base, quantization):
        codes, scale = raw.pop(base).float(), raw.pop(base + "_scale_inv").float()
        tall = scale.repeat_interleave(cls.BLOCK, 0)[:codes.shape[0]]
        return codes * tall.repeat_interleave(cls.BLOCK, 1)[:, :codes.shape[1]]


class Gptq:
    """qweight [in / 8, out], qzeros [groups, out / 8], scales f16 [groups, out], g_idx [in]. The first form stores a
    zero point less one. With act order the columns belong to groups in an order of their own."""

    def __init__(self, rng, group=32, version=1, act_order=False):
        self.rng, self.group, self.version, self.act_order = rng, group, version, act_order

    def pack(self, name, weight):
        base, cols = name.removesuffix("weight"), weight.shape[1]
        group = cols if self.group == -1 else self.group
        order = torch.from_numpy(self.rng.permutation(cols)) if self.act_order else torch.arange(cols)
        codes, scale, zero = asymmetric(grouped(weight[:, order], group), torch.float16)
        index, stored = torch.empty(cols, dtype=torch.int32), torch.empty(weight.shape, dtype=torch.int64)
        index[order] = (torch.arange(cols) // group).to(torch.int32)
        stored[:, order] = codes.flatten(-2)[:, :cols]
        zero = (zero - (1 if self.version == 1 else 0)) & 15
        return {base + "qweight": words(stored).T, base + "qzeros": words(zero.T), base + "scales": scale.T,
                base + "g_idx": index}

    @staticmethod
    def unpack(raw, base, quantization):
        base = base.removesuffix("weight")
        packed, index = raw.pop(base + "qweight"), raw.pop(base + "g_idx").long()
        scale = raw.pop(base + "scales").float()
        codes = nibbles(packed.T, index.shape[0]).T  # [in, out]
        zero = nibbles(raw.pop(base + "qzeros"), scale.shape[1])
        if quantization.get("checkpoint_format", "gptq") == "gptq":
            zero = (zero + 1) & 15
        return ((codes - zero[index]) * scale[index]).T


class Awq:
    """qweight [in, out / 8], qzeros [groups, out / 8], scales f16 [groups, out]; a word holds its eight outputs in the
    order 0, 2, 4, 6, 1, 3, 5, 7."""
    ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

    def __init__(self, group=32):
        self.group = group

    def words(self, codes):
        return words(codes.unflatten(-1, (-1, 8))[..., self.ORDER].flatten(-2))

    def pack(self, name, weight):
        base = name.removesuffix("weight")
        codes, scale, zero = asymmetric(grouped(weight, self.group), torch.float16)
        return {base + "qweight": self.words(codes.flatten(-2).T), base + "qzeros": self.words(zero.T),
                base + "scales": scale.T}

    @classmethod
    def unpack(cls, raw, base, quantization):
        base = base.removesuffix("weight")

        def outputs(packed):
            out = torch.empty(packed.shape[0], packed.shape[1], 8, dtype=torch.int64)
            out[..., cls.ORDER] = nibbles(packed, packed.shape[1] * 8).unflatten(-1, (-1, 8))
            return out.flatten(-2)

        scale, group = raw.pop(base + "scales").float(), quantization["group_size"]
        codes, zero = outputs(raw.pop(base + "qweight")), outputs(raw.pop(base + "qzeros"))
        return ((codes - zero.repeat_interleave(group, 0)) * scale.repeat_interleave(group, 0)).T


# --- MXFP4 -----------------------------------------------------------------------------------------------------

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def to_mxfp4(weight):
    """[.., rows, cols] -> blocks U8 [.., rows, cols / 32, 16] and scales U8 [.., rows, cols / 32]."""
    groups = weight.unflatten(-1, (-1, 32))
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


class Mxfp4:
    """gpt-oss as published: fused experts as blocks and scales, rows being outputs."""

    @staticmethod
    def pack(name, weight):
        blocks, scales = to_mxfp4(weight.transpose(-1, -2).contiguous())
        return {name + "_blocks": blocks, name + "_scales": scales}

    @staticmethod
    def unpack(raw, base, quantization):
        return from_mxfp4(raw.pop(base + "_blocks"), raw.pop(base + "_scales")).transpose(-1, -2)


# --- checkpoints -----------------------------------------------------------------------------------------------

def pack_where(tensors, chosen, form):
    """Every tensor whose name `chosen` picks, packed; the others as they are."""
    out = {}
    for name, t in tensors.items():
        out.update(form.pack(name, t) if chosen(name) else {name: t})
    return out


def unpack_all(raw, quantization):
    """Every weight in float32, under the names of plain checkpoints."""
    awq = (quantization or {}).get("quant_method") == "awq"
    for suffix, form, base_of in (("_packed", Packed, lambda b: b), ("_blocks", Mxfp4, lambda b: b),
                                  ("_scale_inv", Fp8, lambda b: b),
                                  ("qweight", Awq if awq else Gptq, lambda b: b + "weight")):
        for name in [k for k in raw if k.endswith(suffix)]:
            base = base_of(name.removesuffix(suffix))
            raw[base] = form.unpack(raw, base, quantization)
    return {k: t.float() for k, t in raw.items()}


def linears(name):
    """What publishers quantise: attention and MLPs, not routers, norms, embedding and head."""
    module = name.removesuffix(".weight").rsplit(".", 1)[-1]
    return name.startswith("model.layers.") and name.endswith(".weight") and (
        module in ("w1", "w2", "w3", "wq_b", "wk", "kv_a_proj_with_mqa") or
        module.endswith("_proj") and module not in ("weights_proj", "eh_proj"))


def expert_linears(name):
    return ".experts." in name and linears(name)


FP8_CONFIG = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128])
