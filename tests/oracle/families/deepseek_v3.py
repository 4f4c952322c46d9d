"""DeepSeek V3, R1, V3.1 and Moonlight: latent attention, YaRN with mscale, grouped sigmoid router, MTP."""
from formats import FP8_CONFIG, Fp8, linears
from oracle import PREFILL_AND_GREEDY
from weights import decoder, latent, sigmoid_moe

PUBLISHED = dict(
    architectures=["DeepseekV3ForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=0,
    eos_token_id=1, ep_size=1, first_k_dense_replace=1, hidden_act="silu", hidden_size=64, initializer_range=0.02,
    intermediate_size=96, kv_lora_rank=32, max_position_embeddings=163840, model_type="deepseek_v3",
    moe_intermediate_size=24, moe_layer_freq=1, n_group=4, n_routed_experts=16, n_shared_experts=1,
    norm_topk_prob=True, num_attention_heads=4, num_experts_per_tok=4, num_hidden_layers=3, num_key_value_heads=4,
    num_nextn_predict_layers=1, q_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=16, rms_norm_eps=1e-6,
    rope_scaling=dict(beta_fast=32, beta_slow=1, factor=40, mscale=1.0, mscale_all_dim=1.0,
                      original_max_position_embeddings=4096, type="yarn"),
    rope_theta=10000, routed_scaling_factor=2.5, scoring_func="sigmoid", tie_word_embeddings=False, topk_group=2,
    topk_method="noaux_tc", torch_dtype="bfloat16", transformers_version="4.33.1", use_cache=True, v_head_dim=12,
    vocab_size=160)
FLOAT32 = ("e_score_correction_bias",)

CASES = {
    "deepseek_v3_published": dict(
        about="the publisher's form: query latent, YaRN 40 from 4096 with mscale = mscale_all_dim = 1 (the softmax "
              "scale alone changes), 16 experts in 4 groups of which 2 are kept, layer 0 dense, and an MTP layer to "
              "be skipped; v_head_dim 12 differs from the other widths",
        form="published", seed=5000, **PREFILL_AND_GREEDY, weights=dict(mtp=True), config={}),
    "deepseek_v3_direct_q": dict(
        about="no query latent, biases on kv_a_proj_with_mqa and o_proj, YaRN 8 from 32 with mscale 0.7 and "
              "mscale_all_dim 1.2 (cos and sin shrink, the softmax scale grows), no groups, weights not renormalised, "
              "two shared experts, tied head, odd sizes; float32; config as transformers >= 5 saves it",
        form="saved", seed=5100, **PREFILL_AND_GREEDY,
        config=dict(q_lora_rank=None, attention_bias=True, n_group=1, topk_group=1, n_routed_experts=9,
                    num_experts_per_tok=3, n_shared_experts=2, norm_topk_prob=False, hidden_size=44,
                    num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=20, qk_nope_head_dim=10,
                    qk_rope_head_dim=8, v_head_dim=14, moe_intermediate_size=20, intermediate_size=52,
                    num_nextn_predict_layers=0, vocab_size=131, tie_word_embeddings=True, torch_dtype="float32",
                    max_position_embeddings=256,
                    rope_scaling=dict(beta_fast=4, beta_slow=1, factor=8, mscale=0.7, mscale_all_dim=1.2,
                                      original_max_position_embeddings=32, type="yarn"))),
    "deepseek_v3_moonlight": dict(
        about="the publisher's form as in Moonlight: no query latent, no YaRN, no groups, two shared experts, "
              "rope_theta 5e4, rms_norm_eps 1e-5, routed_scaling_factor 2.446, six of twelve experts",
        form="published", seed=5200, **PREFILL_AND_GREEDY,
        config=dict(q_lora_rank=None, n_group=1, topk_group=1, n_routed_experts=12, num_experts_per_tok=6,
                    n_shared_experts=2, rope_scaling=None, rope_theta=50000.0, rms_norm_eps=1e-5,
                    routed_scaling_factor=2.446, num_nextn_predict_layers=0, max_position_embeddings=8192)),
    "deepseek_v3_halves": dict(
        about="rope_interleave false (pairs i and i + half), YaRN 16 from 32 without mscale keys (cos and sin grow, "
              "the softmax scale stays), 9 experts in 3 groups of which 2 are kept, biases about -0.8 so that kept "
              "experts have negative scores, no dense layer; config as transformers >= 5 saves it",
        form="saved", seed=5300, **PREFILL_AND_GREEDY, weights=dict(bias_shift=-0.8),
        config=dict(rope_interleave=False, n_routed_experts=9, n_group=3, topk_group=2, num_experts_per_tok=4,
                    first_k_dense_replace=0, num_hidden_layers=2, num_nextn_predict_layers=0,
                    rope_scaling=dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=32))),
    "deepseek_v3_fp8": dict(
        about="as published: attention, dense MLP, experts and shared expert in fp8 blocks of 128 x 128 with float32 "
              "scales, partial blocks at every edge (hidden 144, latent 136, kv_b of heads 32 + 32 wide)",
        form="published", storage=lambda rng: Fp8(), packed=linears, seed=5400, **PREFILL_AND_GREEDY,
        config=dict(hidden_size=144, kv_lora_rank=136, q_lora_rank=132, qk_nope_head_dim=32, v_head_dim=32,
                    num_hidden_layers=2, num_nextn_predict_layers=0, n_routed_experts=4, n_group=2, topk_group=1,
                    num_experts_per_tok=2, moe_intermediate_size=56, intermediate_size=136, vocab_size=128,
                    quantization_config=FP8_CONFIG)),
}


def weights(cfg, rng, mtp=False, bias_shift=0.0):
    tensors = decoder(cfg, rng, latent, sigmoid_moe, mtp)
    for name, t in tensors.items():
        if name.endswith("e_score_correction_bias"):
            t += bias_shift
    return tensors
