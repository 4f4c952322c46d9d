"""GLM-4.5 to 4.7: rotation of a part of each head, sigmoid router with a selection bias, shared experts, MTP."""
import torch

from oracle import ABSENT, PREFILL_AND_GREEDY
from weights import decoder, grouped_query, sigmoid_moe

PUBLISHED = dict(
    architectures=["Glm4MoeForCausalLM"], attention_bias=True, attention_dropout=0.0, pad_token_id=157,
    eos_token_id=[157, 158, 159], head_dim=16, hidden_act="silu", hidden_size=64, partial_rotary_factor=0.5,
    initializer_range=0.02, intermediate_size=96, max_position_embeddings=131072, model_type="glm4_moe",
    moe_intermediate_size=24, norm_topk_prob=True, num_attention_heads=6, n_group=1, topk_group=1,
    n_routed_experts=10, n_shared_experts=1, routed_scaling_factor=1.0, num_experts_per_tok=3,
    first_k_dense_replace=1, num_hidden_layers=3, num_key_value_heads=2, num_nextn_predict_layers=1,
    rms_norm_eps=1e-5, rope_scaling=None, rope_theta=1000000, tie_word_embeddings=False, torch_dtype="bfloat16",
    transformers_version="4.54.0", use_cache=True, use_qk_norm=False, vocab_size=160)
FLOAT32 = ("e_score_correction_bias",)

CASES = {
    "glm4_moe_published": dict(
        about="the publisher's form as in GLM-4.5-Air: biases on q, k, v, no norm on q and k, half of each head "
              "rotated, layer 0 dense, and an MTP layer to be skipped",
        form="published", seed=4000, **PREFILL_AND_GREEDY, weights=dict(mtp=True), config={}),
    "glm4_moe_groups": dict(
        about="norm on q and k, no biases, partial_rotary_factor 0.25 of head_dim 24 (6 rotated), 16 experts in 4 "
              "groups of which 2 are kept, weights not renormalised, routed_scaling_factor 2.5, two shared experts, "
              "layers 0 and 1 dense, tied head; float32; config as transformers >= 5 saves it",
        form="saved", seed=4100, **PREFILL_AND_GREEDY,
        config=dict(attention_bias=False, use_qk_norm=True, head_dim=24, partial_rotary_factor=0.25, hidden_size=40,
                    num_attention_heads=4, num_key_value_heads=1, n_routed_experts=16, n_group=4, topk_group=2,
                    norm_topk_prob=False, routed_scaling_factor=2.5, n_shared_experts=2, num_hidden_layers=4,
                    first_k_dense_replace=2, intermediate_size=60, moe_intermediate_size=20, vocab_size=131,
                    eos_token_id=1, pad_token_id=None, tie_word_embeddings=True, num_nextn_predict_layers=0,
                    torch_dtype="float32")),
    "glm4_moe_tiny_scores": dict(
        about="as in GLM-4.6 norm on q and k and biases; no partial_rotary_factor key (0.5); half of the experts "
              "score near 1e-8, have a selection bias around 12 and are chosen: a weight must not be taken back "
              "from the sum of score and bias, and the scores may be all that a denominator has",
        form="published", seed=4200, **PREFILL_AND_GREEDY, weights=dict(tiny_scores=True),
        config=dict(use_qk_norm=True, partial_rotary_factor=ABSENT, routed_scaling_factor=2.5, n_routed_experts=8,
                    num_nextn_predict_layers=0)),
}


def weights(cfg, rng, mtp=False, tiny_scores=False):
    def attention(w, p, layer):
        grouped_query(w, p, bias="qkv" if cfg["attention_bias"] else "", norm="head" if cfg["use_qk_norm"] else None)

    tensors = decoder(cfg, rng, attention, sigmoid_moe, mtp)
    if tiny_scores:
        make_scores_tiny(cfg, tensors)
    return tensors


def make_scores_tiny(cfg, tensors):
    """Channel 0 of the residual is 8 for every token, nothing adds to it, and it puts every second expert off."""
    tensors["model.embed_tokens.weight"][:, 0] = 8.0
    for name, t in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            t[0] = 0.0
    count = cfg["n_routed_experts"]
    for i in range(cfg["first_k_dense_replace"], cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        tensors[p + "post_attention_layernorm.weight"][0] = 1.0
        tensors[p + "mlp.gate.weight"][::2, 0] = -6.3 * i  # the other channels grow from layer to layer
        tensors[p + "mlp.gate.weight"][1::2, 0] = 0.0
        bias = tensors[p + "mlp.gate.e_score_correction_bias"]
        rank = bias.argsort().argsort().float() / count  # distinct, in [0, 1)
        bias[:] = torch.where(torch.arange(count) % 2 == 0, 12.0 + 0.4 * rank, 11.3 + 0.4 * rank)
