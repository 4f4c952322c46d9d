"""Qwen3-MoE: norms on every head of q and k, softmax router."""
import torch

from formats import FP8_CONFIG, Fp8, Packed, expert_linears, linears
from oracle import PREFILL_AND_GREEDY
from weights import decoder, experts, glu, grouped_query

# The keys of a published Qwen3-MoE config, in the published order. Every case changes some of them.
PUBLISHED = dict(
    architectures=["Qwen3MoeForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=None,
    decoder_sparse_step=1, eos_token_id=1, head_dim=16, hidden_act="silu", hidden_size=64, initializer_range=0.02,
    intermediate_size=96, max_position_embeddings=256, max_window_layers=2, mlp_only_layers=[],
    model_type="qwen3_moe", moe_intermediate_size=32, norm_topk_prob=True, num_attention_heads=6, num_experts=8,
    num_experts_per_tok=2, num_hidden_layers=2, num_key_value_heads=2, output_router_logits=False, rms_norm_eps=1e-6,
    rope_scaling=None, rope_theta=1e6, router_aux_loss_coef=0.001, sliding_window=None, tie_word_embeddings=False,
    torch_dtype="bfloat16", transformers_version="4.51.0", use_cache=True, use_sliding_window=False, vocab_size=160)

# What compressed-tensors writes for int4.
def packed(ignore, **how):
    return dict(
        quant_method="compressed-tensors", format="pack-quantized", quantization_status="compressed",
        kv_cache_scheme=None, ignore=ignore,
        config_groups=dict(group_0=dict(
            targets=["Linear"], input_activations=None, output_activations=None,
            weights=dict(dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32, dynamic=False,
                              actorder=None), **how))))


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
        form="published", storage=lambda rng: Packed(), packed=expert_linears, seed=700, positions=48,
        config=dict(hidden_size=96, moe_intermediate_size=64, num_attention_heads=4, tie_word_embeddings=True,
                    quantization_config=packed(["lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$"]))),
    "int4_asymmetric": dict(
        about="compressed-tensors with zero points, groups of 64, in the experts and in attention",
        form="published", storage=lambda rng: Packed(group=64, symmetric=False), packed=linears, seed=800,
        **PREFILL_AND_GREEDY,
        config=dict(hidden_size=128, moe_intermediate_size=64, head_dim=32, num_attention_heads=4,
                    num_key_value_heads=1, num_experts=5, vocab_size=128,
                    quantization_config=packed(["lm_head", "re:.*mlp\\.gate$"], symmetric=False, group_size=64))),
    "fp8_bf16_scales": dict(
        about="fp8 in blocks of 128 x 128 with partial edge blocks (hidden 136, width 132) in the experts and in "
              "attention, scales in bfloat16 as some Qwen releases have them",
        form="published", storage=lambda rng: Fp8(torch.bfloat16), packed=linears, seed=900, **PREFILL_AND_GREEDY,
        config=dict(hidden_size=136, moe_intermediate_size=132, head_dim=18, num_attention_heads=8, num_experts=4,
                    vocab_size=128, quantization_config=FP8_CONFIG)),
}


def weights(cfg, rng):
    def attention(w, p, layer):
        grouped_query(w, p, bias="qkvo" if cfg["attention_bias"] else "", norm="head")

    def feed_forward(w, p, layer):
        if layer in cfg["mlp_only_layers"] or (layer + 1) % cfg["decoder_sparse_step"]:
            glu(w, p + "mlp.", cfg["intermediate_size"])
        else:
            experts(w, p + "mlp.", cfg["num_experts"], cfg["moe_intermediate_size"])

    return decoder(cfg, rng, attention, feed_forward)
