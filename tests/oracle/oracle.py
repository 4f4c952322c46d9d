"""One case: write a random checkpoint and what Hugging Face transformers computes from it. README.md has the format."""
import json
import os
import shutil
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from torch.overrides import TorchFunctionMode

from checkpoint import read_checkpoint, write_checkpoint, write_json, write_tensors
from formats import pack_where

MIN_ROUTER_MARGIN = 1e-5  # below this, another summation order could choose other experts
MIN_GREEDY_MARGIN = 1e-4  # between the two largest logits where the next token is chosen
MIN_GREEDY_KINDS = 8  # different tokens in the greedy continuation; one that repeats itself tests little
MAX_DECODE_DIFFERENCE = 3e-5  # of the largest logit, between decoding with a cache and one pass over everything
MAX_CASE_BYTES = 1_000_000
PREFILL_AND_GREEDY = dict(positions=64, greedy=32)  # ids of the prompt, and how many greedy ones follow
ABSENT = object()  # as a value in a case's config: this key of the family's published config is not there
DTYPES = dict(float32=torch.float32, bfloat16=torch.bfloat16)


def prepare():
    assert int(transformers.__version__.split(".")[0]) >= 5, "the saved form of transformers >= 5 is wanted"
    torch.set_num_threads(1)  # one summation order, whatever the machine has
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


# --- transformers ----------------------------------------------------------------------------------------------

def load(folder, dtype=torch.float32):
    """Load with transformers: eager attention, the plain loop over experts. Refuses a checkpoint that does not fit."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    # transformers would fill a missing tensor with random numbers and only warn. A layer past the last one is there
    # for speculative decoding and rightly goes unused; nothing else may.
    unused = f"model.layers.{model.config.num_hidden_layers}."
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        bad = [k for k in info[kind] if kind != "unexpected_keys" or not k.startswith(unused)]
        assert not bad, (folder, kind, bad)
    assert model.config._attn_implementation == "eager"
    return model.eval()


def load_exact(folder):
    """Load in float32, unpacking int4 first: transformers itself would round code x scale to bfloat16."""
    with open(os.path.join(folder, "config.json")) as f:
        cfg = json.load(f)
    if "quantization_config" not in cfg:
        return load(folder)
    del cfg["quantization_config"]
    with tempfile.TemporaryDirectory() as tmp:
        write_checkpoint(tmp, cfg, read_checkpoint(folder))
        return load(tmp)


def router_of(layer):
    return getattr(layer.mlp, "gate", None) or getattr(layer.mlp, "router", None)


def margin_at(scores, k):
    """The smallest distance between the k-th and the next score of a row; rows may hold -inf."""
    if k >= scores.shape[-1]:
        return float("inf")
    s = scores.sort(-1, descending=True).values
    return (s[..., k - 1] - s[..., k]).min().item()


def router_margin(router, logits, chosen):
    """How far, at its closest, any choice of experts is from another one. Checks `chosen` on the way."""
    k, z = chosen.shape[-1], logits.double()
    margin = float("inf")
    if hasattr(router, "e_score_correction_bias"):
        scores = z.sigmoid() + router.e_score_correction_bias.double()
        if router.num_group > 1:
            groups = scores.unflatten(-1, (router.num_group, -1))
            of_group = groups.topk(2, -1).values.sum(-1)
            margin = margin_at(of_group, router.topk_group)
            worst_kept = of_group.topk(router.topk_group, -1).values[:, -1:]
            scores = groups.masked_fill((of_group < worst_kept)[..., None], -float("inf")).flatten(-2)
    elif getattr(router, "bias", None) is not None:
        scores = z
    else:
        scores = z.softmax(-1)
    margin = min(margin, margin_at(scores, k))
    if margin > 0:
        assert torch.equal(scores.topk(k, -1).indices.sort(-1).values, chosen.sort(-1).values), "another choice"
    return margin


class IndexScores(TorchFunctionMode):
    """Records what an indexer of sparse attention takes its top-k of, [1, positions, positions]."""

    def __init__(self, layers):
        super().__init__()
        self.margin, self.hooks = float("inf"), []
        for layer in layers:
            indexer = getattr(layer.self_attn, "indexer", None)
            if indexer is not None:
                self.hooks += [indexer.register_forward_pre_hook(lambda *a: self.__enter__() and None),
                               indexer.register_forward_hook(lambda *a: self.__exit__(None, None, None))]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.topk:
            scores, k = args
            self.margin = min(self.margin, margin_at(scores[0, k:], k))  # before, there is no choice
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def run(model, ids):
    """Logits [positions, vocab] and, per MoE layer, the chosen experts and their weights, and the smallest margin."""
    index = IndexScores(model.model.layers)
    seen = {}
    routers = {i: router_of(layer) for i, layer in enumerate(model.model.layers) if router_of(layer) is not None}
    hooks = [r.register_forward_hook(lambda m, a, out, i=i: seen.__setitem__(i, out)) for i, r in routers.items()]
    logits = model(ids[None], use_cache=False).logits[0]
    for h in hooks + index.hooks:
        h.remove()
    margin, routes = index.margin, {}
    for i, (router_logits, weights, experts) in sorted(seen.items()):
        margin = min(margin, router_margin(routers[i], router_logits, experts))
        order = weights.sort(dim=-1, descending=True, stable=True).indices
        routes[i] = experts.gather(-1, order), weights.gather(-1, order)
    return logits.float(), routes, margin


@torch.no_grad()
def decode(model, prompt, count):
    """Greedy tokens with a cache: the ids of prompt and answer, and the logits that every token was taken from."""
    out, ids, rows = model(prompt[None], use_cache=True), prompt, []
    for _ in range(count):
        rows.append(out.logits[0, -1].float())
        ids = torch.cat([ids, rows[-1].argmax()[None]])
        out = model(ids[None, -1:], cache=out.cache, use_cache=True)
    return ids, torch.stack(rows)


# --- a case ----------------------------------------------------------------------------------------------------

def random_ids(cfg, positions, rng):
    ids = rng.randint(0, cfg["vocab_size"], positions)
    ids[[0, 1, -1]] = cfg["vocab_size"] - 1, 0, ids[2]  # both ends of the embedding, and a token seen before
    return torch.from_numpy(ids.astype(np.int64))


def build(folder, family, case, seed):
    """Write the checkpoint of one case with one seed, and compute what is expected of it."""
    cfg = {k: v for k, v in dict(family.PUBLISHED, **case["config"]).items() if v is not ABSENT}
    # RandomState's stream is frozen for good by NumPy's policy, unlike the newer generators' and torch's.
    rng = np.random.RandomState(seed)
    ids = random_ids(cfg, case["positions"], rng)
    tensors = family.weights(cfg, rng, **case.get("weights", {}))
    stored = DTYPES[cfg.get("torch_dtype") or cfg["dtype"]]
    kept = getattr(family, "FLOAT32", ())  # suffixes of tensors that publishers store in float32 whatever the rest is
    packed = case.get("packed", lambda name: False)
    tensors = {k: t if k.endswith(kept) or packed(k) else t.to(stored) for k, t in tensors.items()}
    if "storage" in case:
        tensors = pack_where(tensors, packed, case["storage"](rng))
    if case["form"] == "published":
        write_checkpoint(folder, cfg, tensors, case.get("shards", 1))
    else:
        with tempfile.TemporaryDirectory() as tmp:
            write_checkpoint(tmp, cfg, tensors)
            load(tmp, stored).save_pretrained(folder)
        # Saving splits the experts again: the file must hold exactly the tensors we made.
        saved = read_checkpoint(folder)
        assert saved.keys() == tensors.keys(), saved.keys() ^ tensors.keys()
        assert all(torch.equal(saved[k], t.float()) for k, t in tensors.items())
    model, greedy = load_exact(folder), case.get("greedy", 0)
    gap = float("inf")
    if greedy:
        prompt = len(ids)
        ids, rows = decode(model, ids, greedy)
        gap = margin_at(rows, 1) if len(ids[prompt:].unique()) >= MIN_GREEDY_KINDS else 0.0
    logits, routes, margin = run(model, ids)
    if greedy:
        difference = (logits[prompt - 1:-1] - rows).abs().max() / logits.abs().max()
        assert difference <= MAX_DECODE_DIFFERENCE, difference
        assert torch.equal(logits[prompt - 1:-1].argmax(-1), ids[prompt:])
    return ids, logits, routes, margin, gap


def make(out, name, family, case):
    folder, seed, refused = os.path.join(out, name), case["seed"], []
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        ids, logits, routes, margin, gap = build(folder, family, case, seed)
        if margin >= MIN_ROUTER_MARGIN and gap >= MIN_GREEDY_MARGIN:
            break
        refused.append(seed)
        seed += 1
    if "same_as" in case:
        with safe_open(os.path.join(out, case["same_as"], "expected.safetensors"), "pt") as f:
            assert torch.equal(f.get_tensor("input_ids"), ids) and torch.equal(f.get_tensor("logits"), logits)
    expected = {"input_ids": ids, "logits": logits}
    for i, (experts, weights) in routes.items():
        expected[f"layers.{i}.experts"], expected[f"layers.{i}.expert_weights"] = experts.long(), weights.float()
    write_tensors(os.path.join(folder, "expected.safetensors"), expected)
    top = logits.double().sort(-1, descending=True).values
    greedy = {"greedy": case["greedy"], "smallest_greedy_margin": float(f"{gap:.4g}")} if "greedy" in case else {}
    write_json(os.path.join(folder, "expected.json"), {
        "case": name, "about": case["about"], "seed": seed, "refused_seeds": refused,
        "positions": len(ids), **greedy, "vocab": logits.shape[1],
        **({"smallest_router_margin": float(f"{margin:.4g}")} if routes else {}),
        "smallest_top2_gap": float(f"{(top[:, 0] - top[:, 1]).min():.4g}"),
        "largest_logit_magnitude": float(f"{logits.abs().max():.5g}"),
        "logit_standard_deviation": float(f"{logits.std():.5g}"),
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
                      "numpy": np.__version__}})
    files = [os.path.join(folder, f) for f in os.listdir(folder)]
    for f in files:
        os.chmod(f, 0o644)  # safetensors makes its files private to their owner
    size = sum(map(os.path.getsize, files))
    assert size <= MAX_CASE_BYTES, (name, size)
    print(f"{name}: seed {seed}, refused {refused}, router margin {margin:.3g}, greedy margin {gap:.3g}, "
          f"|logit| <= {logits.abs().max():.3f}, {size} bytes", flush=True)
    return size
