#!/usr/bin/env python3
"""Write what the draft heads (MTP layers) of the committed checkpoints compute, in float64.

usage: python tests/oracle/draft_heads.py [--out tests/data/draft_heads] [--compare]

transformers has no draft head, so this one is written from the published definition, in NumPy and float64: the trunk's
rows come from transformers, the rest from here. The checkpoints are those of tests/data/oracle that have such a layer.
README.md beside this file says what is in a file. With --compare nothing is written: everything is made again and
compared with what is in --out.
"""
import argparse
import json
import os
import sys

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

import oracle
from checkpoint import read_checkpoint

CASES = {"deepseek_v3_published": 9000, "glm4_moe_published": 9100, "glm4_moe_lite_published": 9200,
         "glm_moe_dsa_draft": 9300}
POSITIONS = 64
LENGTHS = (2, 3, 16, 17, 18, 33, 63)  # of what a chain goes on from: a page of 16 rows ends, begins, is one row long
CHAIN = 7
MIN_GAP = 2e-3  # of the row's largest logit, between the two largest where a chain goes on with one of them
MAX_BLOCK_DIFFERENCE = 1e-6  # transformers has some steps in float32 whatever the weights are
ROUNDING = 1e-5  # of the largest magnitude in the tensor


# --- blocks ----------------------------------------------------------------------------------------------------

def rms_norm(x, weight, eps):
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def silu(x):
    return x / (1.0 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Rope:
    """Rotates the first `width` entries of x [rows, heads, entries]; `sharper` is what YaRN makes of the scale."""

    def __init__(self, cfg, width, interleaved):
        i = np.arange(width // 2)
        self.width, self.interleaved, self.sharper = width, interleaved, 1.0
        theta = cfg.get("rope_parameters", cfg)["rope_theta"]
        self.turn = theta ** (-2.0 * i / width)
        yarn = cfg.get("rope_scaling")
        if yarn is None:
            return
        s, length = yarn["factor"], yarn["original_max_position_embeddings"]
        first, last = (width * np.log(length / (2 * np.pi * beta)) / (2 * np.log(theta))
                       for beta in (yarn["beta_fast"], yarn["beta_slow"]))
        first, last = max(np.floor(first), 0.0), min(np.ceil(last), width - 1.0)
        slowed = np.clip((i - first) / max(last - first, 1e-3), 0.0, 1.0)
        self.turn = self.turn * (1.0 - slowed) + self.turn / s * slowed
        assert yarn["mscale"] == yarn["mscale_all_dim"]  # then cosines and sines keep their size
        self.sharper = (0.1 * yarn["mscale_all_dim"] * np.log(s) + 1.0) ** 2

    def __call__(self, x, positions):
        angle = positions[:, None, None] * self.turn
        half = self.width // 2
        a = slice(0, self.width, 2) if self.interleaved else slice(0, half)
        b = slice(1, self.width, 2) if self.interleaved else slice(half, self.width)
        out = x.copy()
        out[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        out[..., b] = x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle)
        return out


class Block:
    """One decoder layer below `prefix` with the rows that it has seen; each call appends to them."""

    def __init__(self, cfg, weights, prefix):
        self.cfg, self.w, self.prefix = cfg, weights, prefix
        self.latent = "kv_lora_rank" in cfg
        self.margin = np.inf  # how far any choice of experts was from another one
        if self.latent:
            self.rope = Rope(cfg, cfg["qk_rope_head_dim"], cfg.get("rope_interleave", True))
        else:
            self.rope = Rope(cfg, int(cfg["head_dim"] * cfg["partial_rotary_factor"]), False)
        self.indexer = None
        if "index_topk" in cfg:
            self.indexer = Rope(cfg, cfg["qk_rope_head_dim"], cfg["indexer_rope_interleave"])
        self.keys, self.values, self.index_keys = None, None, None

    def at(self, name):
        return self.w[self.prefix + name]

    def linear(self, x, name):
        bias = self.w.get(self.prefix + name + ".bias")
        y = x @ self.at(name + ".weight").T
        return y if bias is None else y + bias

    def norm(self, x, name, eps=None):
        return rms_norm(x, self.at(name + ".weight"), self.cfg["rms_norm_eps"] if eps is None else eps)

    def queries_keys_values(self, x, positions):
        """Of all heads, [rows, heads, entries] each; latents are taken apart before anything is kept."""
        cfg, n, heads = self.cfg, len(x), self.cfg["num_attention_heads"]
        a = "self_attn."
        if not self.latent:
            d, kv = cfg["head_dim"], cfg["num_key_value_heads"]
            q = self.linear(x, a + "q_proj").reshape(n, heads, d)
            k = self.linear(x, a + "k_proj").reshape(n, kv, d)
            v = self.linear(x, a + "v_proj").reshape(n, kv, d)
            if cfg.get("use_qk_norm"):
                q, k = self.norm(q, a + "q_norm"), self.norm(k, a + "k_norm")
            q, k = self.rope(q, positions), self.rope(k, positions)
            return q, np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1), d ** -0.5
        nope, rope, value, rank = (cfg[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                                                    "kv_lora_rank"))
        eps = 1e-6  # of the latents' norms, whatever rms_norm_eps is
        self.query_latent = self.norm(self.linear(x, a + "q_a_proj"), a + "q_a_layernorm", eps)
        q = self.linear(self.query_latent, a + "q_b_proj").reshape(n, heads, nope + rope)
        both = self.linear(x, a + "kv_a_proj_with_mqa")
        kv = self.linear(self.norm(both[:, :rank], a + "kv_a_layernorm", eps), a + "kv_b_proj")
        kv = kv.reshape(n, heads, nope + value)
        turned = np.repeat(self.rope(both[:, None, rank:], positions), heads, 1)
        q = np.concatenate([q[..., :nope], self.rope(q[..., nope:], positions)], -1)
        k = np.concatenate([kv[..., :nope], turned], -1)
        return q, k, kv[..., nope:], (nope + rope) ** -0.5 * self.rope.sharper

    def chosen(self, x, positions):
        """Which positions each row sees, [rows, positions so far]: the best by the indexer's scores."""
        cfg, a = self.cfg, "self_attn.indexer."
        heads, d, k = cfg["index_n_heads"], cfg["index_head_dim"], cfg["index_topk"]
        q = self.indexer(self.linear(self.query_latent, a + "wq_b").reshape(len(x), heads, d), positions)
        key = self.linear(x, a + "wk")
        key = key - key.mean(-1, keepdims=True)
        key = key / np.sqrt((key * key).mean(-1, keepdims=True) + 1e-6)
        key = self.indexer((key * self.at(a + "k_norm.weight") + self.at(a + "k_norm.bias"))[:, None], positions)[:, 0]
        self.index_keys = key if self.index_keys is None else np.concatenate([self.index_keys, key])
        weights = self.linear(x, a + "weights_proj") * heads ** -0.5
        scores = np.maximum(np.einsum("qhd,sd->qhs", q, self.index_keys) * d ** -0.5, 0.0)
        scores = np.einsum("qh,qhs->qs", weights, scores)
        seen = np.zeros(scores.shape, bool)
        for row, position, mine in zip(scores, positions, seen):
            order = np.argsort(-row[:position + 1])
            if position >= k:
                self.margin = min(self.margin, row[order[k - 1]] - row[order[k]])
            mine[order[:k]] = True
        return seen

    def attention(self, x, positions):
        q, k, v, scale = self.queries_keys_values(x, positions)
        self.keys = k if self.keys is None else np.concatenate([self.keys, k])
        self.values = v if self.values is None else np.concatenate([self.values, v])
        scores = np.einsum("qhd,shd->hqs", q, self.keys) * scale
        seen = np.arange(len(self.keys)) <= positions[:, None]
        if self.indexer:
            seen &= self.chosen(x, positions)
        scores = np.where(seen, scores, -np.inf)
        mixed = np.einsum("hqs,shd->qhd", softmax(scores), self.values)
        return self.linear(mixed.reshape(len(x), -1), "self_attn.o_proj")

    def glu(self, x, name):
        return self.linear(silu(self.linear(x, name + "gate_proj")) * self.linear(x, name + "up_proj"),
                           name + "down_proj")

    def route(self, row):
        """Experts of one row and their weights. The bias chooses and does not weigh."""
        cfg = self.cfg
        scores = 1.0 / (1.0 + np.exp(-(self.at("mlp.gate.weight") @ row)))
        choice = scores + self.at("mlp.gate.e_score_correction_bias")
        groups, kept = cfg["n_group"], cfg["topk_group"]
        if groups > 1:
            of_group = np.sort(choice.reshape(groups, -1), -1)[:, -2:].sum(-1)
            order = np.argsort(-of_group)
            self.margin = min(self.margin, of_group[order[kept - 1]] - of_group[order[kept]])
            out = np.repeat(~np.isin(np.arange(groups), order[:kept]), len(choice) // groups)
            choice = np.where(out, -np.inf, choice)
        order, k = np.argsort(-choice), cfg["num_experts_per_tok"]
        self.margin = min(self.margin, choice[order[k - 1]] - choice[order[k]])
        weights = scores[order[:k]]
        if cfg["norm_topk_prob"]:
            weights = weights / (weights.sum() + 1e-20)
        return order[:k], weights * cfg["routed_scaling_factor"]

    def mixture(self, x):
        y = self.glu(x, "mlp.shared_experts.")
        for r, row in enumerate(x):
            for expert, weight in zip(*self.route(row)):
                y[r] += weight * self.glu(row[None], f"mlp.experts.{expert}.")[0]
        return y

    def __call__(self, x, positions):
        x = x + self.attention(self.norm(x, "input_layernorm"), positions)
        return x + self.mixture(self.norm(x, "post_attention_layernorm"))


class DraftHead:
    """x = eh_proj [enorm(embedding of the next token) ; hnorm(hidden row)], one block, shared_head.norm, head."""

    def __init__(self, cfg, weights):
        self.cfg, self.w = cfg, weights
        self.prefix = f"model.layers.{cfg['num_hidden_layers']}."
        for copy, trunk in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
            assert (weights[self.prefix + copy + ".weight"] == weights[trunk + ".weight"]).all()
        self.block, self.position = Block(cfg, weights, self.prefix), 0

    def __call__(self, hidden, following):
        """Rows hidden [n, H] of the positions behind the last call's, and the token that follows each. Returns the
        rows that a chain goes on with, and logits of the token after the following one."""
        b, embedded = self.block, self.w["model.embed_tokens.weight"][following]
        x = b.linear(np.concatenate([b.norm(embedded, "enorm"), b.norm(hidden, "hnorm")], -1), "eh_proj")
        positions = self.position + np.arange(len(x))
        self.position += len(x)
        rows = b.norm(b(x, positions), "shared_head.norm")
        return rows, rows @ self.w["lm_head.weight"].T


# --- cases -----------------------------------------------------------------------------------------------------

def trunk_rows(folder, cfg, weights, ids):
    """The trunk's rows behind model.norm, in float64 from transformers, as the float32 that a head is fed with. On the
    way the trunk's last layer is computed by Block too: what stands above is what transformers does."""
    model, seen = oracle.load_exact(folder).double(), {}
    last = model.model.layers[-1]
    last.register_forward_pre_hook(lambda m, args, kw: seen.update(x=args[0] if args else kw["hidden_states"]),
                                   with_kwargs=True)
    last.register_forward_hook(lambda m, args, out: seen.update(y=out[0] if isinstance(out, tuple) else out))
    with torch.no_grad():
        hidden = model.model(torch.from_numpy(ids)[None], use_cache=False).last_hidden_state[0]
    x, y = (seen[k].reshape(hidden.shape).numpy() for k in "xy")
    mine = Block(cfg, weights, f"model.layers.{cfg['num_hidden_layers'] - 1}.")(x, np.arange(len(ids)))
    difference = abs(mine - y).max() / abs(y).max()
    assert difference <= MAX_BLOCK_DIFFERENCE, difference
    return hidden.float().numpy()


def build(folder, cfg, weights, ids):
    hidden = trunk_rows(folder, cfg, weights, ids)
    margin, gap = np.inf, np.inf
    whole = DraftHead(cfg, weights)
    rows, logits = whole(hidden[:-1].astype(np.float64), ids[1:])
    margin = whole.block.margin
    out = {"ids": ids, "hidden": hidden, "logits": logits, "rows": rows, "lengths": np.array(LENGTHS)}
    chain_ids = np.zeros((len(LENGTHS), CHAIN), np.int64)
    chain_logits = np.zeros((len(LENGTHS), CHAIN, logits.shape[1]))
    for i, n in enumerate(LENGTHS):
        head = DraftHead(cfg, weights)
        rows, logits = head(hidden[:n - 1].astype(np.float64), ids[1:n])
        for step in range(CHAIN):
            order = np.argsort(-logits[-1])
            gap = min(gap, (logits[-1, order[0]] - logits[-1, order[1]]) / abs(logits[-1]).max())
            chain_ids[i, step], chain_logits[i, step] = order[0], logits[-1]
            rows, logits = head(rows[-1:], order[:1])
        margin = min(margin, head.block.margin)
    out["chain_ids"], out["chain_logits"] = chain_ids, chain_logits
    return {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in out.items()}, margin, gap


def make(name, seed):
    folder = os.path.join("tests/data/oracle", name)
    with open(os.path.join(folder, "config.json")) as f:
        cfg = json.load(f)
    weights = {k: t.double().numpy() for k, t in read_checkpoint(folder).items()}
    while True:
        ids = oracle.random_ids(cfg, POSITIONS, np.random.RandomState(seed)).numpy()
        tensors, margin, gap = build(folder, cfg, weights, ids)
        if margin >= oracle.MIN_ROUTER_MARGIN and gap >= MIN_GAP:
            break
        seed += 1
    print(f"{name}: seed {seed}, router margin {margin:.3g}, gap {gap:.3g} of the largest logit, "
          f"|logit| <= {abs(tensors['logits']).max():.4g}", flush=True)
    return tensors


def differences(made, path):
    if not os.path.isfile(path):
        return ["is not there"]
    kept, out = load_file(path), []
    for name in sorted(made.keys() | kept.keys()):
        a, b = made.get(name), kept.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            out.append(f"{name} is missing or of another shape or type")
        elif a.dtype.kind != "f" and (a != b).any():
            out.append(f"{name} differs")
        elif a.dtype.kind == "f" and abs(a - b).max() > ROUNDING * abs(b).max():
            out.append(f"{name} differs by {abs(a - b).max():.3g}")
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default="tests/data/draft_heads")
    ap.add_argument("--compare", action="store_true", help="compare with --out instead of writing there")
    args = ap.parse_args()
    oracle.prepare()
    os.makedirs(args.out, exist_ok=True)
    bad = 0
    for name, seed in CASES.items():
        path, tensors = os.path.join(args.out, name + ".safetensors"), make(name, seed)
        if args.compare:
            for line in differences(tensors, path):
                print(f"  {line}")
                bad += 1
        else:
            save_file(tensors, path)
            os.chmod(path, 0o644)
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
