"""Writes tests/unit/text/split_vectors.json: 500 texts for each kind of vocabulary, and their ids by the references.

    python3 -m venv /tmp/tok && /tmp/tok/bin/pip install tokenizers==0.23.3 tiktoken==0.14.0 unicodedata2==16.0.0
    /tmp/tok/bin/python tests/oracle/split_vectors.py

The vocabulary of bytes is trained on such texts without any split, so that its tokens lie across every boundary: a wrong
boundary changes ids. `bytes` and `marked` are tokenizer.json files, `kinds` their overrides and rows [text index, ids with
control tokens as text, ids with them as ids where they differ]; `kimi` has the ranks of `bytes` in Kimi's form. `cuts` has
texts as [part, times] and the characters of each part that Kimi's cuts leave.
"""

import json
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import real_tokenizers
import patterns
import tiktoken_form
import tokenizer_corpus
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/unit/text/split_vectors.json"
NAMES = ["<|im_start|>", "<|im_end|>", "<|user|>", "<think>"]
COUNT = 500


def texts():
    edges = ["a'\u017fab", "a\U00016d63b", "x   c    d", "'\u017fab", "\u9fa5\u9fa6"]
    found = [t[:36] for t in tokenizer_corpus.texts(NAMES, seed=31, scale=0.06)]
    return edges + random.Random(32).sample(sorted(set(found) - set(edges)), COUNT - len(edges))


def trained(training, pre_tokenizer, size, alphabet, characters=1000):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False, max_token_length=12, limit_alphabet=characters
    )
    tokenizer.train_from_iterator(training, trainer)
    return json.loads(tokenizer.to_str())["model"]


def byte_file(training):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model = trained(training, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), 2000, alphabet)
    back = {c: b for b, c in real_tokenizers.alphabet().items()}
    ranks = {bytes(back[c] for c in token): i for token, i in model["vocab"].items()}
    file = real_tokenizers.byte_level_file(ranks, None, [(len(ranks) + i, c, i < 2) for i, c in enumerate(NAMES)])
    file["model"]["merges"] = model["merges"]
    return file, ranks


def marked_file(training):
    # A mark only begins a token, but several may be one: as in Mixtral's.
    words = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(split=False), pre_tokenizers.Split(Regex("\u2581*[^\u2581]+|\u2581+"), "isolated")]
    )
    model = trained(training, words, 1200, [], 220)
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    names += sorted(model["vocab"], key=model["vocab"].get)
    return patterns.marked_file(
        {n: i for i, n in enumerate(names)},
        model["merges"],
        [(i, n, True) for i, n in enumerate(names[:3])],
        patterns.LEGACY_MARKS,
    )


KINDS = {
    "qwen": ("bytes", {"normalizer": real_tokenizers.NFC, "pre_tokenizer": patterns.byte_split(patterns.QWEN)}),
    "qwen_marks": (
        "bytes",
        {"normalizer": real_tokenizers.NFC, "pre_tokenizer": patterns.byte_split(patterns.QWEN_MARKS)},
    ),
    "glm": ("bytes", {"pre_tokenizer": patterns.byte_split(patterns.GLM)}),
    "deepseek": ("bytes", {"pre_tokenizer": patterns.byte_split(*patterns.DEEPSEEK)}),
    "gpt_oss": ("bytes", {"pre_tokenizer": patterns.byte_split(patterns.O200K)}),
    "olmoe": ("bytes", {"normalizer": real_tokenizers.NFC, "pre_tokenizer": patterns.GPT2}),
    "mixtral": ("marked", {}),
    "mixtral_first": ("marked", patterns.FIRST_MARK),
}
CUTS = [
    [["a", 25000]],
    [["a", 25001]],
    [["a", 60000]],
    [[" ", 25000], ["b", 25001]],
    [["ab ", 200000]],
    [["\u4e2d", 30000], ["\n", 3]],
    [["\x1c", 13000], [" ", 13000]],
    [["x", 399_990 // 2], [" ", 399_990 // 2], ["y", 40]],
    [["\u00a0\u3000", 13000], ["\u200b", 26000]],
    [["word ", 80000], ["z", 5]],
]


def rows(reference, all_texts):
    out = []
    for i, text in enumerate(all_texts):
        plain, special = reference.plain(text), reference.special(text)
        out.append([i, plain] if plain == special else [i, plain, special])
    return out


def main():
    rng = random.Random(33)
    training = [t for t in tokenizer_corpus.texts([], seed=34, scale=0.5) if len(t) < 400 and "<|" not in t]
    training += (
        list(tokenizer_corpus.edges(rng, 6000)) + ["'\u017fab", "a\U00016d63b", "   c    d", "\u9fa5\u9fa6"] * 300
    )
    rng.shuffle(training)
    files = {}
    files["bytes"], ranks = byte_file(training)
    files["marked"] = marked_file(training)
    all_texts = texts()
    kinds = {
        name: {
            "file": base,
            "overrides": changes,
            "rows": rows(real_tokenizers.Reference(json.loads(json.dumps({**files[base], **changes}))), all_texts),
        }
        for name, (base, changes) in KINDS.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        reference = tiktoken_form.write_folder(pathlib.Path(folder), ranks)
        kimi = {
            "ranks": (pathlib.Path(folder) / "tiktoken.model").read_text(),
            "config": json.loads((pathlib.Path(folder) / "tokenizer_config.json").read_text()),
            "rows": rows(reference, all_texts),
        }
    cuts = [
        [parts, [len(p) for p in tiktoken_form.cut("".join(unit * times for unit, times in parts))]] for parts in CUTS
    ]
    OUT.write_text(
        json.dumps(
            {"texts": all_texts, "files": files, "kinds": kinds, "kimi": kimi, "cuts": cuts}, separators=(",", ":")
        )
        + "\n"
    )
    print(OUT.stat().st_size, "bytes,", len(KINDS) + 1, "kinds of", len(all_texts), "texts")


main()
