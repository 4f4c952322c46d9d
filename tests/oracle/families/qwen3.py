"""Qwen3: norms on every head of q and k, no experts."""
from oracle import PREFILL_AND_GREEDY
from weights import decoder, glu, grouped_query

PUBLISHED = dict(
    architectures=["Qwen3ForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=1, eos_token_id=2,
    head_dim=24, hidden_act="silu", hidden_size=64, initializer_range=0.02, intermediate_size=96,
    max_position_embeddings=40960, max_window_layers=3, model_type="qwen3", num_attention_heads=4,
    num_hidden_layers=3, num_key_value_heads=2, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1e6,
    sliding_window=None, tie_word_embeddings=True, torch_dtype="bfloat16", transformers_version="4.51.0",
    use_cache=True, use_sliding_window=False, vocab_size=160)

CASES = {
    "qwen3_published": dict(
        about="the plain case in the publisher's form, as the small releases are: tied head; heads x head_dim (96) "
              "differs from hidden (64), two query heads to a KV head",
        form="published", seed=11000, **PREFILL_AND_GREEDY, config={}),
    "qwen3_odd": dict(
        about="own head, biases on q, k, v and o, sizes no vector width divides: hidden 56, width 76, head_dim 20, 5 "
              "heads on 1, 131 tokens; rope_theta 1e4, rms_norm_eps 1e-5; float32; config as transformers >= 5 saves "
              "it",
        form="saved", seed=11100, **PREFILL_AND_GREEDY,
        config=dict(hidden_size=56, intermediate_size=76, head_dim=20, num_attention_heads=5, num_key_value_heads=1,
                    num_hidden_layers=2, max_window_layers=2, vocab_size=131, attention_bias=True, rope_theta=1e4,
                    rms_norm_eps=1e-5, tie_word_embeddings=False, torch_dtype="float32")),
}


def weights(cfg, rng):
    def attention(w, p, layer):
        grouped_query(w, p, bias="qkvo" if cfg["attention_bias"] else "", norm="head")

    def feed_forward(w, p, layer):
        glu(w, p + "mlp.", cfg["intermediate_size"])

    return decoder(cfg, rng, attention, feed_forward)
