"""Mistral: as Llama, with a window where sliding_window is not null; no experts."""
from oracle import PREFILL_AND_GREEDY
from weights import decoder, glu, grouped_query

PUBLISHED = dict(
    architectures=["MistralForCausalLM"], attention_dropout=0.0, bos_token_id=1, eos_token_id=2, hidden_act="silu",
    hidden_size=64, initializer_range=0.02, intermediate_size=96, max_position_embeddings=32768,
    model_type="mistral", num_attention_heads=4, num_hidden_layers=2, num_key_value_heads=2, rms_norm_eps=1e-5,
    rope_theta=1e6, sliding_window=None, tie_word_embeddings=False, torch_dtype="bfloat16",
    transformers_version="4.42.0.dev0", use_cache=True, vocab_size=160)

CASES = {
    "mistral_published": dict(
        about="the plain case in the publisher's form of v0.3: no head_dim, no sliding window",
        form="published", seed=13000, **PREFILL_AND_GREEDY, config={}),
    "mistral_window": dict(
        about="as v0.1: sliding_window (20), exceeded in every layer; heads x head_dim (96) differs from hidden (48), "
              "131 tokens, tied head; float32; config as transformers >= 5 saves it",
        form="saved", seed=13100, **PREFILL_AND_GREEDY,
        config=dict(sliding_window=20, hidden_size=48, intermediate_size=68, head_dim=24, num_key_value_heads=1,
                    num_hidden_layers=3, vocab_size=131, rope_theta=1e4, tie_word_embeddings=True,
                    torch_dtype="float32")),
}


def weights(cfg, rng):
    def attention(w, p, layer):
        grouped_query(w, p)

    def feed_forward(w, p, layer):
        glu(w, p + "mlp.", cfg["intermediate_size"])

    return decoder(cfg, rng, attention, feed_forward)
