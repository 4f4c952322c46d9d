"""GLM-5 to 5.3: latent attention with an indexer; layers without one use the choice of the layer before."""
from oracle import ABSENT, PREFILL_AND_GREEDY
from weights import decoder, indexed, latent, sigmoid_moe

PUBLISHED = dict(
    architectures=["GlmMoeDsaForCausalLM"], attention_bias=False, attention_dropout=0.0, dtype="bfloat16",
    eos_token_id=[125, 126, 127], ep_size=1, first_k_dense_replace=1, hidden_act="silu", head_dim=12, hidden_size=48,
    index_head_dim=24, index_n_heads=16, index_share_for_mtp_iteration=True, index_skip_topk_offset=2, index_topk=20,
    index_topk_freq=2, index_topk_pattern=None, indexer_rope_interleave=True,
    indexer_types=["full", "full", "shared", "full"], initializer_range=0.02, intermediate_size=64, kv_lora_rank=24,
    max_position_embeddings=1048576, mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    model_type="glm_moe_dsa", moe_intermediate_size=16, moe_layer_freq=1, moe_router_dtype="float32", n_group=1,
    n_routed_experts=6, n_shared_experts=1, norm_topk_prob=True, num_attention_heads=4, num_experts_per_tok=2,
    num_hidden_layers=4, num_key_value_heads=4, num_nextn_predict_layers=0, pad_token_id=125, pretraining_tp=1,
    q_lora_rank=20, qk_head_dim=28, qk_nope_head_dim=12, qk_rope_head_dim=16, rms_norm_eps=1e-5, rope_interleave=True,
    rope_parameters=dict(rope_theta=8000000, rope_type="default"), routed_scaling_factor=2.5, scoring_func="sigmoid",
    tie_word_embeddings=False, topk_group=1, topk_method="noaux_tc", transformers_version="5.12.0", use_cache=True,
    v_head_dim=20, vocab_size=128)
FLOAT32 = ("e_score_correction_bias",)

OLDER = dict(rope_parameters=ABSENT, rope_theta=1000000, dtype=ABSENT, torch_dtype="bfloat16", indexer_types=ABSENT,
             mlp_layer_types=ABSENT)

CASES = {
    "glm_moe_dsa_published": dict(
        about="the publisher's form as in GLM-5.2 (rope_parameters and dtype, as it was published): attention to 20 "
              "of up to 96 tokens, indexers in layers 0, 1 and 3, layer 0 dense; head_dim means nothing",
        form="published", seed=8000, **PREFILL_AND_GREEDY, weights=dict(full=[0, 1, 3]), config={}),
    "glm_moe_dsa_older": dict(
        about="rope_theta and torch_dtype, no indexer_types and no mlp_layer_types: index_topk_freq 3 and "
              "index_skip_topk_offset 1 put indexers into layers 0 and 3",
        form="published", seed=8100, **PREFILL_AND_GREEDY, weights=dict(full=[0, 3]),
        config=dict(OLDER, index_topk_freq=3, index_skip_topk_offset=1, index_topk_pattern=ABSENT)),
    "glm_moe_dsa_draft": dict(
        about="a draft head (MTP layer) with an indexer of its own, to be skipped by the model; three layers, indexers "
              "in layers 0 and 2",
        form="published", seed=8300, **PREFILL_AND_GREEDY, weights=dict(full=[0, 2, 3], mtp=True),
        config=dict(num_hidden_layers=3, indexer_types=["full", "shared", "full"],
                    mlp_layer_types=["dense", "sparse", "sparse"], num_nextn_predict_layers=1)),
    "glm_moe_dsa_saved": dict(
        about="index_topk_pattern FSF, which becomes indexer_types; attention to 15 tokens, biases, weights not "
              "renormalised, two shared experts, two dense layers, tied head, odd sizes; float32; config as "
              "transformers >= 5 saves it",
        form="saved", seed=8200, **PREFILL_AND_GREEDY, weights=dict(full=[0, 2]),
        config=dict(OLDER, torch_dtype="float32", index_topk_pattern="FSF", index_topk=15, num_hidden_layers=3,
                    first_k_dense_replace=1, attention_bias=True, norm_topk_prob=False, n_shared_experts=2,
                    hidden_size=44, num_attention_heads=3, num_key_value_heads=3, qk_nope_head_dim=10,
                    qk_rope_head_dim=8, qk_head_dim=18, index_head_dim=14, v_head_dim=14, moe_intermediate_size=12,
                    n_routed_experts=5, vocab_size=131, eos_token_id=1, pad_token_id=None,
                    tie_word_embeddings=True)),
}


def weights(cfg, rng, full, mtp=False):
    def attention(w, p, layer):
        (indexed if layer in full else latent)(w, p, layer)

    return decoder(cfg, rng, attention, sigmoid_moe, mtp)
