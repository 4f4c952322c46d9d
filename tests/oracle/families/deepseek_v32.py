"""DeepSeek V3.2: V3 with an indexer in every layer that chooses which earlier tokens attention may see."""
import torch

from families import deepseek_v3
from formats import FP8_CONFIG, Fp8, linears
from oracle import PREFILL_AND_GREEDY
from weights import decoder, indexed, sigmoid_moe

PUBLISHED = dict(
    deepseek_v3.PUBLISHED, architectures=["DeepseekV32ForCausalLM"], hidden_size=48, index_head_dim=24,
    index_n_heads=16, index_topk=24, intermediate_size=64, model_type="deepseek_v32", moe_intermediate_size=20,
    n_routed_experts=8, num_experts_per_tok=3, num_nextn_predict_layers=0, transformers_version="4.44.2",
    vocab_size=128)
FLOAT32 = deepseek_v3.FLOAT32

CASES = {
    "deepseek_v32_published": dict(
        about="the publisher's form: attention to 24 of up to 96 tokens, the indexer rotating pairs i and i + half "
              "while attention rotates neighbours; YaRN 40 from 4096, 8 experts in 4 groups, layer 0 dense",
        form="published", seed=7000, **PREFILL_AND_GREEDY, config={}),
    "deepseek_v32_saved": dict(
        about="attention to 17 tokens, no YaRN, biases on q_a_proj, kv_a_proj_with_mqa and o_proj, no groups, weights "
              "not renormalised, two shared experts, tied head, odd sizes; float32; config as transformers >= 5 saves "
              "it",
        form="saved", seed=7100, **PREFILL_AND_GREEDY,
        config=dict(index_topk=17, index_head_dim=14, rope_scaling=None, attention_bias=True, n_group=1, topk_group=1,
                    n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=2, norm_topk_prob=False,
                    hidden_size=44, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=20, q_lora_rank=18,
                    qk_nope_head_dim=10, qk_rope_head_dim=8, v_head_dim=14, moe_intermediate_size=12,
                    intermediate_size=36, vocab_size=131, tie_word_embeddings=True, torch_dtype="float32")),
    "deepseek_v32_fp8": dict(
        about="fp8 blocks with scales that are powers of two, stored in one byte (F8_E8M0); heads of 24 + 20, so that "
              "no block of kv_b ends with a head; indexer projections in fp8 as well",
        form="published", storage=lambda rng: Fp8(torch.float8_e8m0fnu, power=True), packed=linears, seed=7200,
        **PREFILL_AND_GREEDY,
        config=dict(hidden_size=132, kv_lora_rank=40, q_lora_rank=40, qk_nope_head_dim=24, v_head_dim=20,
                    qk_rope_head_dim=8, index_head_dim=16, num_hidden_layers=2, n_routed_experts=4, n_group=1,
                    topk_group=1, num_experts_per_tok=2, moe_intermediate_size=40, intermediate_size=72,
                    quantization_config=dict(FP8_CONFIG, scale_fmt="ue8m0"))),
}


def weights(cfg, rng):
    return decoder(cfg, rng, indexed, sigmoid_moe)
