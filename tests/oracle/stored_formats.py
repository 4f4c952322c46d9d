#!/usr/bin/env python3
"""Writes tests/data/stored_formats: one matrix in every quantised form, and its exact float32 numbers.

usage: python tests/oracle/stored_formats.py [--out tests/data/stored_formats]

FORM/config.json has the quantisation, FORM/model.safetensors the tensors of the module `m` and `expected` [rows, cols],
which the decoders of formats.py give: written from the published definitions. Where the package compressed-tensors is
installed, its decoder must agree. No size is a multiple of a block, a group or a tile where the form allows it.
"""
import argparse
import os

import numpy as np
import torch

from checkpoint import write_json, write_tensors
from formats import FP8_CONFIG, Awq, Fp8, Gptq, Packed, unpack_all


def packed_config(group, symmetric):
    weights = dict(num_bits=4, type="int", symmetric=symmetric, strategy="group", group_size=group)
    return dict(quant_method="compressed-tensors", format="pack-quantized",
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)))


def gptq_config(group, act_order=False, form="gptq"):
    return dict(quant_method="gptq", bits=4, group_size=group, desc_act=act_order, checkpoint_format=form, sym=False)


def forms(rng):
    awq = dict(quant_method="awq", bits=4, group_size=32, version="GEMM", zero_point=True)
    for group in (32, 64, 128):
        for symmetric in (True, False):
            name = f"packed_{group}" + ("" if symmetric else "_asymmetric")
            yield name, Packed(group, symmetric), packed_config(group, symmetric), (21, 2 * group)
    yield "fp8", Fp8(), FP8_CONFIG, (150, 135)
    yield "fp8_bf16_scales", Fp8(torch.bfloat16), FP8_CONFIG, (130, 131)
    yield "fp8_e8m0_scales", Fp8(torch.float8_e8m0fnu, power=True), dict(FP8_CONFIG, scale_fmt="ue8m0"), (17, 129)
    yield "gptq", Gptq(rng, 64), gptq_config(64), (24, 104)
    yield "gptq_one_group", Gptq(rng, -1), gptq_config(-1), (24, 104)
    yield "gptq_act_order", Gptq(rng, 32, act_order=True), gptq_config(32, True), (40, 104)
    yield "gptq_v2_act_order", Gptq(rng, 32, 2, True), gptq_config(32, True, "gptq_v2"), (40, 72)
    yield "awq", Awq(32), awq, (40, 96)


def check_with_library(raw, config, expected):
    """Whatever compressed-tensors makes of the words must be what we make of them."""
    try:
        from compressed_tensors.compressors.quantized_compressors.pack_quantized import unpack_from_int32
    except ImportError:
        try:
            from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
        except ImportError:
            return False
    rows, cols = raw["m.weight_shape"].tolist()
    group = config["config_groups"]["group_0"]["weights"]["group_size"]
    codes = unpack_from_int32(raw["m.weight_packed"].contiguous(), 4, torch.Size((rows, cols))).float()
    zero = torch.zeros(rows, cols // group)
    if "m.weight_zero_point" in raw:
        zero = unpack_from_int32(raw["m.weight_zero_point"].contiguous(), 4, torch.Size((rows, cols // group)), packed_dim=0)
    scale = raw["m.weight_scale"].float().repeat_interleave(group, -1)
    assert torch.equal((codes - zero.float().repeat_interleave(group, -1)) * scale, expected)
    return True


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default="tests/data/stored_formats")
    out, rng, by_library = ap.parse_args().out, np.random.RandomState(31), 0
    for name, form, config, shape in forms(rng):
        weight = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
        raw = form.pack("m.weight", weight)
        expected = unpack_all(dict(raw), config)["m.weight"]
        assert expected.shape == weight.shape and (expected - weight).abs().max() < 0.8, name
        if name.startswith("packed"):
            by_library += check_with_library(raw, config, expected)
        os.makedirs(os.path.join(out, name), exist_ok=True)
        write_json(os.path.join(out, name, "config.json"), dict(quantization_config=config))
        write_tensors(os.path.join(out, name, "model.safetensors"), dict(raw, expected=expected))
        os.chmod(os.path.join(out, name, "model.safetensors"), 0o644)
    print(f"compressed-tensors agreed on {by_library} forms")


if __name__ == "__main__":
    main()
