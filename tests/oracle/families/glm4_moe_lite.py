"""GLM-4.7-Flash: the latent attention of GLM-5 without an indexer."""
from oracle import ABSENT, PREFILL_AND_GREEDY
from weights import decoder, latent, sigmoid_moe

PUBLISHED = dict(
    architectures=["Glm4MoeLiteForCausalLM"], attention_bias=False, attention_dropout=0.0, pad_token_id=125,
    eos_token_id=[125, 126, 127], hidden_act="silu", hidden_size=48, intermediate_size=64,
    max_position_embeddings=202752, model_type="glm4_moe_lite", moe_intermediate_size=16, topk_method="noaux_tc",
    norm_topk_prob=True, num_attention_heads=4, n_group=1, topk_group=1, n_routed_experts=8, n_shared_experts=1,
    routed_scaling_factor=1.8, num_experts_per_tok=3, first_k_dense_replace=1, num_hidden_layers=3,
    num_key_value_heads=4, num_nextn_predict_layers=1, partial_rotary_factor=1.0, rms_norm_eps=1e-5,
    rope_scaling=None, rope_theta=1000000, tie_word_embeddings=False, torch_dtype="bfloat16",
    transformers_version="4.57.0", q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=16,
    v_head_dim=20, vocab_size=128)
FLOAT32 = ("e_score_correction_bias",)

CASES = {
    "glm4_moe_lite_published": dict(
        about="the publisher's form: query latent, layer 0 dense, and an MTP layer to be skipped",
        form="published", seed=9000, **PREFILL_AND_GREEDY, weights=dict(mtp=True), config={}),
    "glm4_moe_lite_saved": dict(
        about="no query latent, rope_interleave false, mlp_layer_types sparse, dense, sparse against "
              "first_k_dense_replace, 8 experts in 2 groups of which 1 is kept, weights not renormalised, two shared "
              "experts, tied head, odd sizes; float32; config as transformers >= 5 saves it",
        form="saved", seed=9100, **PREFILL_AND_GREEDY,
        config=dict(q_lora_rank=None, rope_interleave=False, mlp_layer_types=["sparse", "dense", "sparse"],
                    first_k_dense_replace=ABSENT, n_group=2, norm_topk_prob=False, n_shared_experts=2, hidden_size=44,
                    num_attention_heads=3, num_key_value_heads=3, qk_nope_head_dim=10, qk_rope_head_dim=8,
                    v_head_dim=14, moe_intermediate_size=12, intermediate_size=36, num_nextn_predict_layers=0,
                    vocab_size=131, eos_token_id=1, pad_token_id=None, tie_word_embeddings=True,
                    torch_dtype="float32")),
}


def weights(cfg, rng, mtp=False):
    return decoder(cfg, rng, latent, sigmoid_moe, mtp)
