"""Mixtral: experts w1 (gate), w3 (up), w2 (down) in every layer, weights always renormalised."""
from formats import Awq, Gptq, linears
from oracle import PREFILL_AND_GREEDY
from weights import decoder, experts, grouped_query

PUBLISHED = dict(
    architectures=["MixtralForCausalLM"], attention_dropout=0.0, bos_token_id=1, eos_token_id=2, hidden_act="silu",
    hidden_size=64, initializer_range=0.02, intermediate_size=48, max_position_embeddings=32768,
    model_type="mixtral", num_attention_heads=4, num_experts_per_tok=2, num_hidden_layers=2, num_key_value_heads=2,
    num_local_experts=8, output_router_logits=False, rms_norm_eps=1e-5, rope_theta=1e6, router_aux_loss_coef=0.02,
    sliding_window=None, tie_word_embeddings=False, torch_dtype="bfloat16", transformers_version="4.36.0.dev0",
    use_cache=True, vocab_size=160)

CASES = {
    "mixtral_published": dict(
        about="the plain case in the publisher's form; no head_dim, no sliding window",
        form="published", seed=1000, **PREFILL_AND_GREEDY, config={}),
    "mixtral_odd": dict(
        about="hidden 56, width 36, head_dim 24 (3 x 24 differs from hidden), 7 experts, 3 chosen, 131 tokens, tied "
              "head, rope_theta 1e4; float32; config as transformers >= 5 saves it",
        form="saved", seed=1100, **PREFILL_AND_GREEDY,
        config=dict(hidden_size=56, intermediate_size=36, head_dim=24, num_attention_heads=3, num_key_value_heads=1,
                    num_hidden_layers=3, num_local_experts=7, num_experts_per_tok=3, vocab_size=131, rope_theta=1e4,
                    tie_word_embeddings=True, torch_dtype="float32")),
    "mixtral_window": dict(
        about="sliding_window 20, exceeded in every layer",
        form="published", seed=1200, **PREFILL_AND_GREEDY,
        config=dict(sliding_window=20, hidden_size=48, intermediate_size=32, num_local_experts=6, vocab_size=128,
                    num_key_value_heads=4)),
    "mixtral_awq": dict(
        about="AWQ (gemm): experts and attention in groups of 32 with zero points, words of eight outputs in their "
              "own order",
        form="published", storage=lambda rng: Awq(), packed=linears, seed=1300, **PREFILL_AND_GREEDY,
        config=dict(hidden_size=96, intermediate_size=64, num_local_experts=5, vocab_size=128,
                    quantization_config=dict(bits=4, group_size=32, modules_to_not_convert=["gate"],
                                             quant_method="awq", version="gemm", zero_point=True))),
    "mixtral_gptq_act_order": dict(
        about="GPTQ in its first form (zero points stored less one) with act order: the columns of each matrix belong "
              "to groups of 32 in an order of their own",
        form="published", storage=lambda rng: Gptq(rng, act_order=True), packed=linears, seed=1400,
        **PREFILL_AND_GREEDY,
        config=dict(hidden_size=80, intermediate_size=72, num_local_experts=5, vocab_size=128,
                    quantization_config=dict(bits=4, damp_percent=0.1, desc_act=True, group_size=32,
                                             quant_method="gptq", sym=False, true_sequential=True))),
}


def weights(cfg, rng):
    def attention(w, p, layer):
        grouped_query(w, p)

    def feed_forward(w, p, layer):
        experts(w, p + "block_sparse_moe.", cfg["num_local_experts"], cfg["intermediate_size"], ("w1", "w3", "w2"))

    return decoder(cfg, rng, attention, feed_forward)
