#!/usr/bin/env python3
"""Write tiny random Qwen3-MoE checkpoints and the logits that Hugging Face transformers computes from them.

usage: python tests/oracle/qwen3_moe.py [--out tests/data/oracle] [--only CASE ...]

Each case is one folder: a checkpoint as it would be published (config.json, safetensors), expected.safetensors with
the input ids, the float32 logits at every position and the router's choices, and expected.json with the seed and the
margins for people to read. README.md beside this file says what each case is for.
"""
import argparse
import json
import os
import shutil
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

MIN_ROUTER_MARGIN = 1e-5  # below this, another summation order could choose other experts
MAX_CASE_BYTES = 400_000
GROUP = 32  # inputs per scale of the int4 format

# The keys of a published Qwen3-MoE config, in the published order. Every case changes some of them.
PUBLISHED = dict(
    architectures=["Qwen3MoeForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=None,
    decoder_sparse_step=1, eos_token_id=1, head_dim=16, hidden_act="silu", hidden_size=64, initializer_range=0.02,
    intermediate_size=96, max_position_embeddings=256, max_window_layers=2, mlp_only_layers=[],
    model_type="qwen3_moe", moe_intermediate_size=32, norm_topk_prob=True, num_attention_heads=6, num_experts=8,
    num_experts_per_tok=2, num_hidden_layers=2, num_key_value_heads=2, output_router_logits=False, rms_norm_eps=1e-6,
    rope_scaling=None, rope_theta=1e6, router_aux_loss_coef=0.001, sliding_window=None, tie_word_embeddings=False,
    torch_dtype="bfloat16", transformers_version="4.51.0", use_cache=True, use_sliding_window=False, vocab_size=160)

# What compressed-tensors writes for int4 experts with the attention, the router and the head left alone.
QUANTIZATION = dict(
    quant_method="compressed-tensors", format="pack-quantized", quantization_status="compressed",
    kv_cache_scheme=None, ignore=["lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$"],
    config_groups=dict(group_0=dict(
        targets=["Linear"], input_activations=None, output_activations=None,
        weights=dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP, dynamic=False,
                     actorder=None))))

# form: "published" = config and tensors as written by the model's publisher; "saved" = by save_pretrained.
CASES = {
    "untied_bf16": dict(
        about="untied head, heads x head_dim (96) differs from hidden (64); config as transformers >= 5 saves it",
        form="saved", seed=100, positions=48, config={}),
    "tied_bias_f32": dict(
        about="tied head, biases on q, k, v and o, stored in float32",
        form="published", seed=200, positions=40,
        config=dict(attention_bias=True, tie_word_embeddings=True, torch_dtype="float32", hidden_size=48,
                    num_attention_heads=4, num_experts=6, moe_intermediate_size=24, vocab_size=128)),
    "dense_layers": dict(
        about="MoE only in layers 1 and 5 (decoder_sparse_step 2, mlp_only_layers [3]), weights not renormalised, "
              "rms_norm_eps 1e-5, rope_theta 1e4",
        form="published", seed=300, positions=32,
        config=dict(num_hidden_layers=6, max_window_layers=6, decoder_sparse_step=2, mlp_only_layers=[3],
                    norm_topk_prob=False, hidden_size=48, num_attention_heads=4, num_experts=6,
                    moe_intermediate_size=24, intermediate_size=64, vocab_size=128, rms_norm_eps=1e-5,
                    rope_theta=1e4)),
    "yarn": dict(
        about="YaRN as publishers describe it: factor 4 from 64 positions, the rest by default",
        form="published", seed=400, positions=80,
        config=dict(head_dim=64, num_attention_heads=2, num_key_value_heads=1, num_experts=6,
                    moe_intermediate_size=24, vocab_size=128, max_position_embeddings=64,
                    rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64))),
    "yarn_explicit": dict(
        about="YaRN with beta_fast, beta_slow and attention_factor given, under the older key `type`; saved by "
              "transformers >= 5 (rope_parameters)",
        form="saved", seed=500, positions=80,
        config=dict(head_dim=64, num_attention_heads=2, num_key_value_heads=1, num_experts=6,
                    moe_intermediate_size=24, vocab_size=128, max_position_embeddings=256,
                    rope_scaling=dict(type="yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=2.0,
                                      beta_slow=0.5, attention_factor=1.25))),
    "odd_sizes": dict(
        about="sizes no vector width divides: hidden 72, width 40, head_dim 24, 5 heads on 1, 7 experts, 3 chosen, "
              "131 tokens; config as transformers >= 5 saves it",
        form="saved", seed=600, positions=33,
        config=dict(hidden_size=72, moe_intermediate_size=40, head_dim=24, num_attention_heads=5,
                    num_key_value_heads=1, num_experts=7, num_experts_per_tok=3, vocab_size=131)),
    "sharded": dict(
        about="the weights and ids of untied_bf16 in the publishers' form, in three shards with an index",
        form="published", shards=3, same_as="untied_bf16", seed=100, positions=48, config={}),
    "int4": dict(
        about="experts as compressed-tensors pack-quantized int4 (groups of 32, bfloat16 scales), the rest bfloat16, "
              "tied head; logits from code x scale in float32",
        form="published", int4=True, seed=700, positions=48,
        config=dict(hidden_size=96, moe_intermediate_size=64, num_attention_heads=4, tie_word_embeddings=True,
                    quantization_config=QUANTIZATION)),
}


# --- random weights --------------------------------------------------------------------------------------------

def random_weights(cfg, rng):
    """Float32 tensors under their published names.

    The spreads are much larger than a fresh model's (0.02), so that routing and attention are peaky, norm weights and
    biases matter, and a mistake anywhere moves the logits far beyond rounding.
    """
    hidden, d, heads, kv = (cfg[k] for k in ("hidden_size", "head_dim", "num_attention_heads", "num_key_value_heads"))
    out = {}

    def normal(name, shape, std, mean=0.0):
        out[name] = torch.from_numpy((mean + std * rng.standard_normal(shape)).astype(np.float32))

    def linear(name, rows, cols, gain=1.0, bias=False):
        normal(name + ".weight", (rows, cols), gain / cols ** 0.5)
        if bias:
            normal(name + ".bias", (rows,), 0.5)

    def mlp(prefix, width):
        linear(prefix + "gate_proj", width, hidden, 1.5)
        linear(prefix + "up_proj", width, hidden, 1.5)
        linear(prefix + "down_proj", hidden, width, 1.5)

    # A tied matrix is embedding and head at once: 0.5 keeps the logits in the range of the untied cases.
    normal("model.embed_tokens.weight", (cfg["vocab_size"], hidden), 0.5 if cfg["tie_word_embeddings"] else 1.0)
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        normal(p + "input_layernorm.weight", (hidden,), 0.3, 1.0)
        bias = cfg["attention_bias"]
        linear(p + "self_attn.q_proj", heads * d, hidden, 1.0, bias)
        linear(p + "self_attn.k_proj", kv * d, hidden, 1.0, bias)
        linear(p + "self_attn.v_proj", kv * d, hidden, 1.0, bias)
        linear(p + "self_attn.o_proj", hidden, heads * d, 1.5, bias)
        # q and k are normalised, so their sharpness can only come from these weights.
        normal(p + "self_attn.q_norm.weight", (d,), 0.5, 1.4)
        normal(p + "self_attn.k_norm.weight", (d,), 0.5, 1.4)
        normal(p + "post_attention_layernorm.weight", (hidden,), 0.3, 1.0)
        if is_moe(cfg, i):
            linear(p + "mlp.gate", cfg["num_experts"], hidden, 2.0)
            for e in range(cfg["num_experts"]):
                mlp(f"{p}mlp.experts.{e}.", cfg["moe_intermediate_size"])
        else:
            mlp(p + "mlp.", cfg["intermediate_size"])
    normal("model.norm.weight", (hidden,), 0.3, 1.0)
    if not cfg["tie_word_embeddings"]:
        linear("lm_head", cfg["vocab_size"], hidden, 3.0)
    return out


def is_moe(cfg, layer):
    return layer not in cfg["mlp_only_layers"] and (layer + 1) % cfg["decoder_sparse_step"] == 0


def random_ids(cfg, positions, rng):
    ids = rng.randint(0, cfg["vocab_size"], positions)
    ids[[0, 1, -1]] = cfg["vocab_size"] - 1, 0, ids[2]  # both ends of the embedding, and a token seen before
    return torch.from_numpy(ids.astype(np.int64))


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


# --- the oracle ------------------------------------------------------------------------------------------------

def load(folder, dtype=torch.float32):
    """Load with transformers: eager attention, the plain loop over experts. Refuses a checkpoint that does not fit."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    # transformers would fill a missing tensor with random numbers and only warn.
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (folder, kind, info[kind])
    assert model.config._attn_implementation == "eager"
    return model.eval()


def load_exact(folder):
    """Load in float32, unpacking int4 first: transformers itself would round code x scale to bfloat16."""
    with open(os.path.join(folder, "config.json")) as f:
        cfg = json.load(f)
    if "quantization_config" not in cfg:
        return load(folder)
    del cfg["quantization_config"]
    with tempfile.TemporaryDirectory() as tmp:
        write_checkpoint(tmp, cfg, read_checkpoint(folder))
        return load(tmp)


@torch.no_grad()
def run(model, ids):
    """Logits [positions, vocab] and, per MoE layer, the chosen experts and their weights, and the smallest margin."""
    seen = {}
    hooks = [layer.mlp.gate.register_forward_hook(lambda m, a, out, i=i: seen.__setitem__(i, out))
             for i, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "gate")]
    logits = model(ids[None]).logits[0]
    for h in hooks:
        h.remove()
    margin, routes = float("inf"), {}
    for i, (router_logits, weights, experts) in sorted(seen.items()):
        k = experts.shape[-1]
        p = router_logits.double().softmax(-1).sort(-1, descending=True).values
        if k < p.shape[-1]:
            margin = min(margin, (p[:, k - 1] - p[:, k]).min().item())
        routes[i] = experts, weights
    return logits.float(), routes, margin


def build(folder, case, seed):
    """Write the checkpoint of one case with one seed, and compute what is expected of it."""
    cfg = dict(PUBLISHED, **case["config"])
    # RandomState's stream is frozen for good by NumPy's policy, unlike the newer generators' and torch's.
    rng = np.random.RandomState(seed)
    ids = random_ids(cfg, case["positions"], rng)
    tensors = random_weights(cfg, rng)
    if case.get("int4"):
        tensors = pack_experts(tensors)
    stored = dict(float32=torch.float32, bfloat16=torch.bfloat16)[cfg["torch_dtype"]]
    tensors = {k: t.to(stored) if t.dtype == torch.float32 else t for k, t in tensors.items()}
    if case["form"] == "published":
        write_checkpoint(folder, cfg, tensors, case.get("shards", 1))
    else:
        with tempfile.TemporaryDirectory() as tmp:
            write_checkpoint(tmp, cfg, tensors)
            load(tmp, stored).save_pretrained(folder)
        # Saving splits the experts again: the file must hold exactly the tensors we made.
        saved = read_checkpoint(folder)
        assert saved.keys() == tensors.keys()
        assert all(torch.equal(saved[k], t.float()) for k, t in tensors.items())
    return (ids, *run(load_exact(folder), ids))


def make(out, name, case):
    folder, seed, refused = os.path.join(out, name), case["seed"], []
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        ids, logits, routes, margin = build(folder, case, seed)
        if margin >= MIN_ROUTER_MARGIN:
            break
        refused.append(seed)
        seed += 1
    if "same_as" in case:
        with safe_open(os.path.join(out, case["same_as"], "expected.safetensors"), "pt") as f:
            assert torch.equal(f.get_tensor("input_ids"), ids) and torch.equal(f.get_tensor("logits"), logits)
    expected = {"input_ids": ids, "logits": logits}
    for i, (experts, weights) in routes.items():
        expected[f"layers.{i}.experts"], expected[f"layers.{i}.expert_weights"] = experts.long(), weights.float()
    write_tensors(os.path.join(folder, "expected.safetensors"), expected)
    top = logits.double().sort(-1, descending=True).values
    write_json(os.path.join(folder, "expected.json"), {
        "case": name, "about": case["about"], "seed": seed, "refused_seeds": refused,
        "positions": len(ids), "vocab": logits.shape[1],
        "smallest_router_margin": float(f"{margin:.4g}"),
        "smallest_top2_gap": float(f"{(top[:, 0] - top[:, 1]).min():.4g}"),
        "largest_logit_magnitude": float(f"{logits.abs().max():.5g}"),
        "logit_standard_deviation": float(f"{logits.std():.5g}"),
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
                      "numpy": np.__version__}})
    files = [os.path.join(folder, f) for f in os.listdir(folder)]
    for f in files:
        os.chmod(f, 0o644)  # safetensors makes its files private to their owner
    size = sum(map(os.path.getsize, files))
    assert size <= MAX_CASE_BYTES, (name, size)
    print(f"{name}: seed {seed}, refused {refused}, router margin {margin:.3g}, "
          f"|logit| <= {logits.abs().max():.3f}, {size} bytes", flush=True)
    return size


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default="tests/data/oracle")
    ap.add_argument("--only", nargs="*", choices=list(CASES), help="write these cases only")
    args = ap.parse_args()
    assert int(transformers.__version__.split(".")[0]) >= 5, "the saved form of transformers >= 5 is wanted"
    torch.set_num_threads(1)  # one summation order, whatever the machine has
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.makedirs(args.out, exist_ok=True)
    total = sum(make(args.out, name, case) for name, case in CASES.items() if not args.only or name in args.only)
    print(f"{total} bytes in all")


if __name__ == "__main__":
    main()
