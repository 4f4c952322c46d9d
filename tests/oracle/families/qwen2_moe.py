"""Qwen2-MoE: biases on q, k, v; softmax router, by default not renormalised; a shared expert behind a gate."""
from formats import Gptq, linears
from oracle import ABSENT, PREFILL_AND_GREEDY
from weights import decoder, experts, glu, grouped_query

PUBLISHED = dict(
    architectures=["Qwen2MoeForCausalLM"], attention_dropout=0.0, bos_token_id=1, decoder_sparse_step=1,
    eos_token_id=1, hidden_act="silu", hidden_size=64, initializer_range=0.02, intermediate_size=96,
    max_position_embeddings=8192, max_window_layers=21, model_type="qwen2_moe", moe_intermediate_size=32,
    norm_topk_prob=False, num_attention_heads=4, num_experts=8, num_experts_per_tok=4, num_hidden_layers=2,
    num_key_value_heads=4, output_router_logits=False, rms_norm_eps=1e-6, rope_theta=1e6, router_aux_loss_coef=0.001,
    shared_expert_intermediate_size=80, sliding_window=16, tie_word_embeddings=False, torch_dtype="bfloat16",
    transformers_version="4.39.0.dev0", use_cache=True, use_sliding_window=False, vocab_size=160)

CASES = {
    "qwen2_moe_published": dict(
        about="the plain case in the publisher's form: no qkv_bias key (the biases are there), weights not "
              "renormalised; sliding_window 16 is there but use_sliding_window is false",
        form="published", seed=2000, **PREFILL_AND_GREEDY, config={}),
    "qwen2_moe_dense": dict(
        about="MoE only in layers 1 and 5 (decoder_sparse_step 2, mlp_only_layers [3]), no biases (qkv_bias false), "
              "weights renormalised, tied head, sizes no vector width divides; float32; config as transformers >= 5 "
              "saves it",
        form="saved", seed=2100, **PREFILL_AND_GREEDY,
        config=dict(num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3], qkv_bias=False,
                    norm_topk_prob=True, hidden_size=40, num_attention_heads=5, num_key_value_heads=1,
                    intermediate_size=52, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=20,
                    shared_expert_intermediate_size=28, vocab_size=131, rope_theta=1e4, tie_word_embeddings=True,
                    torch_dtype="float32")),
    "qwen2_moe_yarn": dict(
        about="YaRN as users add it: factor 4 from 32 positions under the older key `type`; two query heads to a KV "
              "head; config as transformers >= 5 saves it",
        form="saved", seed=2200, **PREFILL_AND_GREEDY,
        config=dict(hidden_size=96, num_attention_heads=4, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2,
                    mlp_only_layers=[], sliding_window=ABSENT, vocab_size=128, max_position_embeddings=32,
                    rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32))),
    "qwen2_moe_gptq_v2": dict(
        about="GPTQ in its second form (zero points as they are), one group for all columns, in experts, shared expert "
              "and attention",
        form="published", storage=lambda rng: Gptq(rng, group=-1, version=2), packed=linears, seed=2300,
        **PREFILL_AND_GREEDY,
        config=dict(hidden_size=72, moe_intermediate_size=40, num_experts=6, vocab_size=128,
                    num_attention_heads=6, num_key_value_heads=2,
                    quantization_config=dict(bits=4, checkpoint_format="gptq_v2", desc_act=False, group_size=-1,
                                             quant_method="gptq", sym=False))),
}


def weights(cfg, rng):
    def attention(w, p, layer):
        grouped_query(w, p, bias="qkv" if cfg.get("qkv_bias", True) else "")

    def feed_forward(w, p, layer):
        if layer in cfg.get("mlp_only_layers", ()) or (layer + 1) % cfg["decoder_sparse_step"]:
            glu(w, p + "mlp.", cfg["intermediate_size"])
        else:
            experts(w, p + "mlp.", cfg["num_experts"], cfg["moe_intermediate_size"])
            glu(w, p + "mlp.shared_expert.", cfg["shared_expert_intermediate_size"])
            w.linear(p + "mlp.shared_expert_gate", 1, cfg["hidden_size"], 2.0)

    return decoder(cfg, rng, attention, feed_forward)
