"""Random weights under their published names, and the building blocks that the families share.

The spreads are much larger than a fresh model's (0.02), so that routing and attention are peaky, norm weights and
biases matter, and a mistake anywhere moves the logits far beyond rounding.
"""
import numpy as np
import torch


class Weights:
    """Float32 tensors in the order they are drawn."""

    def __init__(self, cfg, rng):
        self.cfg, self.rng, self.tensors = cfg, rng, {}

    def normal(self, name, shape, std, mean=0.0):
        values = (mean + std * self.rng.standard_normal(shape)).astype(np.float32)
        self.tensors[name] = torch.from_numpy(values)

    def linear(self, name, rows, cols, gain=1.0, bias=False):
        self.normal(name + ".weight", (rows, cols), gain / cols ** 0.5)
        if bias:
            self.normal(name + ".bias", (rows,), 0.5)

    def norm(self, name, width):
        self.normal(name + ".weight", (width,), 0.3, 1.0)


def decoder(cfg, rng, attention, feed_forward, mtp=False):
    """The skeleton of every family; attention(w, prefix, layer) and feed_forward(w, prefix, layer) draw the rest."""
    w, hidden = Weights(cfg, rng), cfg["hidden_size"]

    def block(p, layer):
        w.norm(p + "input_layernorm", hidden)
        attention(w, p, layer)
        w.norm(p + "post_attention_layernorm", hidden)
        feed_forward(w, p, layer)

    # A tied matrix is embedding and head at once: 0.5 keeps the logits in the range of the untied cases.
    tied = cfg["tie_word_embeddings"]
    w.normal("model.embed_tokens.weight", (cfg["vocab_size"], hidden), 0.5 if tied else 1.0)
    layers = cfg["num_hidden_layers"]
    for i in range(layers):
        block(f"model.layers.{i}.", i)
    w.norm("model.norm", hidden)
    if not tied:
        w.linear("lm_head", cfg["vocab_size"], hidden, 3.0)
    if mtp:  # the layer that predicts the token after the next, which only speculative decoding uses
        p = f"model.layers.{layers}."
        w.norm(p + "enorm", hidden)
        w.norm(p + "hnorm", hidden)
        w.linear(p + "eh_proj", hidden, 2 * hidden)
        block(p, layers)
        w.norm(p + "shared_head.norm", hidden)
        w.tensors[p + "shared_head.head.weight"] = w.tensors["lm_head.weight"].clone()
        w.tensors[p + "embed_tokens.weight"] = w.tensors["model.embed_tokens.weight"].clone()
    return w.tensors


# --- attention -------------------------------------------------------------------------------------------------

def grouped_query(w, p, bias="", norm=None):
    """q, k, v, o with biases on those in `bias`; q and k normalised by "head", as a "whole" vector, or not."""
    cfg = w.cfg
    hidden, heads, kv = (cfg[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    d = cfg.get("head_dim") or hidden // heads
    sharp = 1.0 if norm else 1.5
    w.linear(p + "self_attn.q_proj", heads * d, hidden, sharp, "q" in bias)
    w.linear(p + "self_attn.k_proj", kv * d, hidden, sharp, "k" in bias)
    w.linear(p + "self_attn.v_proj", kv * d, hidden, 1.0, "v" in bias)
    w.linear(p + "self_attn.o_proj", hidden, heads * d, 1.5, "o" in bias)
    if norm:  # then the sharpness can only come from these weights
        q, k = (d, d) if norm == "head" else (heads * d, kv * d)
        w.normal(p + "self_attn.q_norm.weight", (q,), 0.5, 1.4)
        w.normal(p + "self_attn.k_norm.weight", (k,), 0.5, 1.4)


def latent(w, p, layer=None):
    """Multi-head latent attention; without q_lora_rank the queries come from one projection."""
    cfg, a = w.cfg, p + "self_attn."
    hidden, heads, rank, query_rank = (cfg[k] for k in ("hidden_size", "num_attention_heads", "kv_lora_rank",
                                                        "q_lora_rank"))
    nope, rope, value = (cfg[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    bias = cfg["attention_bias"]
    if query_rank:
        w.linear(a + "q_a_proj", query_rank, hidden, 1.0, bias)
        w.norm(a + "q_a_layernorm", query_rank)
        w.linear(a + "q_b_proj", heads * (nope + rope), query_rank, 1.5)
    else:
        w.linear(a + "q_proj", heads * (nope + rope), hidden, 1.5)
    w.linear(a + "kv_a_proj_with_mqa", rank + rope, hidden, 1.0, bias)
    w.norm(a + "kv_a_layernorm", rank)
    w.linear(a + "kv_b_proj", heads * (nope + value), rank, 1.3)
    w.linear(a + "o_proj", hidden, heads * value, 1.5, bias)


def indexed(w, p, layer):
    """Latent attention whose own indexer chooses the tokens it sees."""
    latent(w, p)
    cfg, a = w.cfg, p + "self_attn.indexer."
    heads, d = cfg["index_n_heads"], cfg["index_head_dim"]
    w.linear(a + "wq_b", heads * d, cfg["q_lora_rank"], 1.5)
    w.linear(a + "wk", d, cfg["hidden_size"])
    w.norm(a + "k_norm", d)
    w.normal(a + "k_norm.bias", (d,), 0.3)
    w.linear(a + "weights_proj", heads, cfg["hidden_size"], 1.5)


# --- feed-forward ----------------------------------------------------------------------------------------------

def glu(w, p, width, names=("gate_proj", "up_proj", "down_proj")):
    hidden = w.cfg["hidden_size"]
    gate, up, down = names
    w.linear(p + gate, width, hidden, 1.5)
    w.linear(p + up, width, hidden, 1.5)
    w.linear(p + down, hidden, width, 1.5)


def experts(w, p, count, width, names=("gate_proj", "up_proj", "down_proj"), selection_bias=False):
    """The router and the routed experts of one layer."""
    w.linear(p + "gate", count, w.cfg["hidden_size"], 2.0)
    if selection_bias:  # all distinct, and as wide as the scores they are added to
        values = np.linspace(-0.3, 0.3, count)[w.rng.permutation(count)] + w.rng.uniform(-0.01, 0.01, count)
        w.tensors[p + "gate.e_score_correction_bias"] = torch.from_numpy(values.astype(np.float32))
    for e in range(count):
        glu(w, f"{p}experts.{e}.", width, names)


def sigmoid_moe(w, p, layer):
    """Dense in the first layers or where the config says; else a router with a selection bias, and shared experts."""
    cfg = w.cfg
    kinds = cfg.get("mlp_layer_types") or ["dense"] * cfg["first_k_dense_replace"]
    if kinds[layer:layer + 1] == ["dense"]:
        glu(w, p + "mlp.", cfg["intermediate_size"])
        return
    experts(w, p + "mlp.", cfg["n_routed_experts"], cfg["moe_intermediate_size"], selection_bias=True)
    glu(w, p + "mlp.shared_experts.", cfg["moe_intermediate_size"] * cfg["n_shared_experts"])
