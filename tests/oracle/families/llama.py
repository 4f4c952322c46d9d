"""Llama: grouped-query attention without norms, no experts; from 3.1 on with rotation frequencies of its own."""
from oracle import ABSENT, PREFILL_AND_GREEDY
from weights import decoder, glu, grouped_query

PUBLISHED = dict(
    architectures=["LlamaForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=1, eos_token_id=[2, 3],
    head_dim=32, hidden_act="silu", hidden_size=64, initializer_range=0.02, intermediate_size=96,
    max_position_embeddings=131072, mlp_bias=False, model_type="llama", num_attention_heads=4, num_hidden_layers=2,
    num_key_value_heads=2, pretraining_tp=1, rms_norm_eps=1e-5,
    rope_scaling=dict(factor=32.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=8192,
                      rope_type="llama3"),
    rope_theta=5e5, tie_word_embeddings=True, torch_dtype="bfloat16", transformers_version="4.45.0.dev0",
    use_cache=True, vocab_size=160)

CASES = {
    "llama_published": dict(
        about="the publisher's form of Llama 3.2, with its rope_scaling (llama3, factor 32 from 8192 positions); tied "
              "head; heads x head_dim (128) differs from hidden (64)",
        form="published", seed=12000, **PREFILL_AND_GREEDY, config={}),
    "llama_scaled": dict(
        about="llama3 with factor 8 from 32 positions: waves that are kept, mixed and slowed all turn within the 96 "
              "tokens; factors 1.5 and 6 for low and high; config as transformers >= 5 saves it",
        form="saved", seed=12100, **PREFILL_AND_GREEDY,
        config=dict(hidden_size=96, num_attention_heads=2, num_key_value_heads=1, head_dim=64, vocab_size=128,
                    rope_theta=1e4, tie_word_embeddings=False,
                    rope_scaling=dict(factor=8.0, high_freq_factor=6.0, low_freq_factor=1.5,
                                      original_max_position_embeddings=32, rope_type="llama3"))),
    "llama_older": dict(
        about="as Llama 2 was published: no head_dim, rope_theta, rope_scaling or bias keys; every head has its own KV "
              "head; float32, sizes no vector width divides",
        form="published", seed=12200, **PREFILL_AND_GREEDY,
        config=dict(attention_bias=ABSENT, mlp_bias=ABSENT, head_dim=ABSENT, rope_theta=ABSENT, rope_scaling=ABSENT,
                    hidden_size=60, intermediate_size=84, num_attention_heads=3, num_key_value_heads=ABSENT,
                    num_hidden_layers=3, max_position_embeddings=4096, vocab_size=131, tie_word_embeddings=False,
                    torch_dtype="float32")),
    "llama_biases": dict(
        about="biases on q, k, v and o; config as transformers >= 5 saves it",
        form="saved", seed=12300, **PREFILL_AND_GREEDY,
        config=dict(attention_bias=True, rope_scaling=None, hidden_size=48, intermediate_size=64, head_dim=16,
                    num_attention_heads=6, num_key_value_heads=3, vocab_size=128)),
}


def weights(cfg, rng):
    heads = dict(num_key_value_heads=cfg["num_attention_heads"])  # where the key is missing

    def attention(w, p, layer):
        w.cfg = dict(heads, **cfg)
        grouped_query(w, p, bias="qkvo" if cfg.get("attention_bias") else "")

    def feed_forward(w, p, layer):
        glu(w, p + "mlp.", cfg["intermediate_size"])

    return decoder(cfg, rng, attention, feed_forward)
