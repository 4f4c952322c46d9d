"""Writes tests/unit/text/marked_tokenizer.json: a small vocabulary with byte fallback and space marks, as Mixtral's and
Llama's, and what the reference implementation makes of texts with each way to mark spaces.

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install tokenizers
    /tmp/oracle/bin/python tests/oracle/marked_tokenizer.py

`file` is a tokenizer.json; `variants` gives a name, the keys to override in it, and rows of text, ids with specials as
ids, ids with specials as text, and the text that decoding the latter gives.
"""
import json
import pathlib
import random

from tokenizers import Tokenizer, models, normalizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/unit/text/marked_tokenizer.json"
MARK = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
LEGACY = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, REPLACE]}


def metaspace(scheme, split):
    return {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme,
                                                  "split": split}}


VARIANTS = {
    "legacy": {},
    "replace_only": {"normalizer": REPLACE},
    "first": metaspace("first", False),
    "always_split": metaspace("always", True),
    "never_split": metaspace("never", True),
}


def train():
    words = (ROOT / "tests/data/pocket-dictionary/reference.json").read_text()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(" ", MARK)])
    tokenizer.train_from_iterator(words.splitlines(), trainers.BpeTrainer(vocab_size=700, show_progress=False))
    return json.loads(tokenizer.to_str())["model"]


def make_file():
    trained = train()
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    names += sorted(trained["vocab"], key=trained["vocab"].get)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, c in enumerate(names[:3])],
        "normalizer": LEGACY, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {n: i for i, n in enumerate(names)}, "merges": trained["merges"]}}


def texts():
    rng = random.Random(11)
    rows = ["", " ", "  ", "a", " a", "a ", "a  b", "\n", "\t x", MARK, MARK + "a", "a" + MARK + " b", "What is a dog?",
            "dog (noun): a member", "caf\u00e9 na\u00efve", "e\u0301", "\u65e5\u672c\u8a9e", "\U0001F468\u200D\U0001F469", "<0x41>",
            "<s>", "<s>a", "<s> a</s> b", "a<s>b", "</s></s> x", "[INST] hi [/INST]", "<unk>", "\u00a0x", "\r\n\r\n", "0123456789" * 3]
    alphabet = ["a", "e", "t", "dog", " ", "  ", "\n", MARK, "\u00e9", "\u4e2d", "\U0001F600", "<s>", "</s>", "1", "?", "the ", " of"]
    rows += ["".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 14))) for _ in range(90)]
    return rows


def main():
    file = make_file()
    out = {"file": file, "variants": {}}
    for name, overrides in VARIANTS.items():
        tokenizer = Tokenizer.from_str(json.dumps({**file, **overrides}))
        plain = Tokenizer.from_str(json.dumps({**file, **overrides}))
        plain.encode_special_tokens = True
        rows = []
        for text in texts():
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            as_text = plain.encode(text, add_special_tokens=False).ids
            rows.append([text, ids, as_text, tokenizer.decode(as_text, skip_special_tokens=False)])
        out["variants"][name] = {"overrides": overrides, "rows": rows}
    OUT.write_text(json.dumps(out, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(OUT.stat().st_size, "bytes,", sum(len(v["rows"]) for v in out["variants"].values()), "rows")


main()
