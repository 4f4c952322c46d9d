"""gpt-oss: sinks, sliding windows, biases everywhere, clamped GLU; experts fused and transposed, not MXFP4."""
from formats import Mxfp4
from oracle import ABSENT, PREFILL_AND_GREEDY
from weights import decoder, grouped_query

PUBLISHED = dict(
    architectures=["GptOssForCausalLM"], attention_bias=True, attention_dropout=0.0, eos_token_id=159,
    experts_per_token=2, head_dim=32, hidden_act="silu", hidden_size=48, initial_context_length=4096,
    initializer_range=0.02, intermediate_size=40,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    max_position_embeddings=131072, model_type="gpt_oss", num_attention_heads=4, num_experts_per_tok=2,
    num_hidden_layers=4, num_key_value_heads=2, num_local_experts=6, output_router_logits=False, pad_token_id=158,
    rms_norm_eps=1e-5,
    rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096,
                      rope_type="yarn", truncate=False),
    rope_theta=150000, router_aux_loss_coef=0.9, sliding_window=16, swiglu_limit=7.0, tie_word_embeddings=False,
    torch_dtype="bfloat16", transformers_version="4.55.0.dev0", use_cache=True, vocab_size=160)

CASES = {
    "gpt_oss_published": dict(
        about="the publisher's config without its quantisation: windows of 16 in layers 0 and 2, YaRN 32 from 4096 "
              "with truncate false",
        form="published", seed=6000, **PREFILL_AND_GREEDY, config={}),
    "gpt_oss_mxfp4": dict(
        about="experts as published, in MXFP4 blocks and scales, rows 2j and 2j + 1 gate and up; the rest bfloat16",
        form="published", storage=lambda rng: Mxfp4(),
        packed=lambda name: name.endswith((".gate_up_proj", ".down_proj")), seed=6300, **PREFILL_AND_GREEDY,
        config=dict(hidden_size=64, intermediate_size=32, num_local_experts=5, vocab_size=128, eos_token_id=127,
                    pad_token_id=126, quantization_config=dict(
                        quant_method="mxfp4", modules_to_not_convert=[
                            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                            "lm_head"]))),
    "gpt_oss_odd": dict(
        about="layer_types full, sliding, sliding; no biases in attention, no YaRN, swiglu_limit 2.5, swiglu_alpha "
              "1.3, 7 experts of which 4 are chosen, tied head, sizes no vector width divides; float32; config as "
              "transformers >= 5 saves it",
        form="saved", seed=6100, **PREFILL_AND_GREEDY,
        config=dict(layer_types=["full_attention", "sliding_attention", "sliding_attention"], num_hidden_layers=3,
                    attention_bias=False, rope_scaling=dict(rope_type="default"), swiglu_limit=2.5, swiglu_alpha=1.3,
                    num_local_experts=7, num_experts_per_tok=4, experts_per_token=ABSENT, hidden_size=44,
                    intermediate_size=36, head_dim=20, num_attention_heads=3, num_key_value_heads=1,
                    sliding_window=21, vocab_size=131, eos_token_id=1, pad_token_id=None, tie_word_embeddings=True,
                    torch_dtype="float32")),
    "gpt_oss_yarn": dict(
        about="no layer_types key (layers 0 and 2 slide), YaRN 4 from 24 with truncate false and a ramp that begins "
              "and ends between two frequencies; config as transformers >= 5 saves it",
        form="saved", seed=6200, **PREFILL_AND_GREEDY,
        config=dict(layer_types=ABSENT, num_hidden_layers=3, num_local_experts=5, num_experts_per_tok=3,
                    experts_per_token=3, rope_theta=500.0, sliding_window=30, max_position_embeddings=96,
                    initial_context_length=24,
                    rope_scaling=dict(beta_fast=2.0, beta_slow=0.5, factor=4.0, original_max_position_embeddings=24,
                                      rope_type="yarn", truncate=False))),
}


def weights(cfg, rng):
    hidden, width, count = cfg["hidden_size"], cfg["intermediate_size"], cfg["num_local_experts"]

    def attention(w, p, layer):
        grouped_query(w, p, bias="qkvo" if cfg["attention_bias"] else "")
        w.normal(p + "self_attn.sinks", (cfg["num_attention_heads"],), 1.5, 1.0)

    def feed_forward(w, p, layer):
        w.linear(p + "mlp.router", count, hidden, 1.5, bias=True)
        # [in, out] per expert; columns 2j and 2j + 1 are gate and up of unit j. Wide enough to reach the clamps.
        w.normal(p + "mlp.experts.gate_up_proj", (count, hidden, 2 * width), 3.5 / hidden ** 0.5)
        w.normal(p + "mlp.experts.gate_up_proj_bias", (count, 2 * width), 1.0)
        w.normal(p + "mlp.experts.down_proj", (count, width, hidden), 0.5 / width ** 0.5)
        w.normal(p + "mlp.experts.down_proj_bias", (count, hidden), 0.5)

    return decoder(cfg, rng, attention, feed_forward)
