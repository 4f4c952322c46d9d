"""OLMoE: q and k normalised as whole vectors, optionally clipped; softmax router, by default not renormalised."""
from oracle import PREFILL_AND_GREEDY
from weights import decoder, experts, grouped_query

PUBLISHED = dict(
    architectures=["OlmoeForCausalLM"], attention_bias=False, attention_dropout=0.0, clip_qkv=None,
    eos_token_id=159, hidden_act="silu", hidden_size=64, initializer_range=0.02, intermediate_size=32,
    max_position_embeddings=4096, model_type="olmoe", norm_topk_prob=False, num_attention_heads=4, num_experts=8,
    num_experts_per_tok=3, num_hidden_layers=2, num_key_value_heads=4, output_router_logits=False, pad_token_id=1,
    rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000.0, router_aux_loss_coef=0.01, tie_word_embeddings=False,
    torch_dtype="bfloat16", transformers_version="4.43.0.dev0", use_cache=True, vocab_size=160)

CASES = {
    "olmoe_published": dict(
        about="the plain case in the publisher's form: as many KV heads as heads, clip_qkv null, weights not "
              "renormalised",
        form="published", seed=3000, **PREFILL_AND_GREEDY, config={}),
    "olmoe_clip": dict(
        about="clip_qkv 1.5 (a quarter of the values are clipped), biases on q, k, v and o, two query "
              "heads to a KV head (k_norm is as wide as k), weights renormalised, tied head, sizes no vector width "
              "divides; float32; config as transformers >= 5 saves it",
        form="saved", seed=3200, **PREFILL_AND_GREEDY,
        config=dict(clip_qkv=1.5, attention_bias=True, norm_topk_prob=True, hidden_size=60, num_attention_heads=6,
                    num_key_value_heads=3, num_hidden_layers=3, intermediate_size=28, num_experts=9,
                    num_experts_per_tok=4, vocab_size=131, eos_token_id=1, tie_word_embeddings=True,
                    torch_dtype="float32")),
}


def weights(cfg, rng):
    def attention(w, p, layer):
        grouped_query(w, p, bias="qkvo" if cfg["attention_bias"] else "", norm="whole")

    def feed_forward(w, p, layer):
        experts(w, p + "mlp.", cfg["num_experts"], cfg["intermediate_size"])

    return decoder(cfg, rng, attention, feed_forward)
