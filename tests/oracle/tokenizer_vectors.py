"""Writes tests/unit/text/tokenizer_vectors.json: what the reference implementation makes of texts and chats.

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install tokenizers transformers jinja2
    /tmp/oracle/bin/python tests/oracle/tokenizer_vectors.py

Sections: `encode` (name -> overrides of the bundled tokenizer.json, so that each pattern and option is tried,
and rows of text, ids with specials as ids, ids with specials as text where they differ), `decode` (ids ->
text, with and without specials), `utf8` (pieces of bytes -> pieces of text by Python's incremental decoder),
`chats` (template and messages -> rendered text; chat_vectors.py).
"""

import codecs
import json
import pathlib
import random
import unicodedata

from tokenizers import Tokenizer

from chat_vectors import chats

ROOT = pathlib.Path(__file__).resolve().parents[2]
POCKET = ROOT / "tests/data/pocket-dictionary"
OUT = ROOT / "tests/unit/text/tokenizer_vectors.json"
SEED = 20240607

GLM = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
THREE_SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex=False):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(number, content, **flags):
    token = {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
    return {**token, "normalized": False, "special": True, **flags}


def variants(base):
    """Overrides of the bundled tokenizer.json; the test applies them, so the fixture stays small."""
    pre = "pre_tokenizer"
    found = {
        "pocket": {},
        "glm": {pre: sequence(split(GLM), byte_level())},
        "marks": {pre: sequence(split(MARKS), byte_level())},
        "three_splits": {
            "normalizer": {"type": "Sequence", "normalizers": []},
            pre: sequence(*[split(p) for p in THREE_SPLITS], byte_level()),
        },
        "o200k": {"normalizer": None, pre: sequence(split(O200K), byte_level())},
        "gpt2": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}, pre: byte_level(True)},
        "digits": {pre: sequence({"type": "Digits", "individual_digits": True}, byte_level(True))},
        "digit_runs": {pre: sequence({"type": "Digits", "individual_digits": False}, byte_level(True))},
        "ignore_merges": {"ignore_merges": True},
    }
    for behavior in ["Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous", "Isolated"]:
        for invert in [False, True]:
            steps = sequence(split(r"[aeiou\s]", behavior, invert), byte_level())
            found[f"{behavior}_{invert}"] = {pre: steps}
    found["literal"] = {pre: sequence(split("an", "MergedWithPrevious", kind="String"), byte_level())}
    found["empty_match"] = {pre: sequence(split("x*"), byte_level())}
    found["added"] = {
        "added_tokens": base["added_tokens"]
        + [
            added(4096, "<left>", lstrip=True),
            added(4097, "<right>", rstrip=True),
            added(4098, "<both>", lstrip=True, rstrip=True, special=False),
            added(4099, "word", single_word=True, special=False),
            added(4100, "<think>", special=False),
            added(4101, "<thinking>", special=False),
            added(4102, "caf\u00e9!", special=False, normalized=True),
            added(4103, "e\u0301ditions", special=False, normalized=True),
            added(4104, "<|im_start|><think>", special=False),
            added(4105, "\U0001f600"),
        ]
    }
    return found


def apply(base, overrides):
    data = json.loads(json.dumps(base))
    for key, value in overrides.items():
        target = data["model"] if key == "ignore_merges" else data
        target[key] = value
    return json.dumps(data)


def class_texts():
    """For every general category some characters, alone, doubled, and between letters, digits and blanks."""
    classes = {}
    for number in range(0x110000):
        char = chr(number)
        category = unicodedata.category(char)
        if category not in ("Cs", "Cn"):
            classes.setdefault(category, []).append(char)
    picker = random.Random(SEED)
    for category in sorted(classes):
        for char in picker.sample(classes[category], min(4, len(classes[category]))):
            yield f"{char}a{char}{char} 1{char}2 {char} x {char}\n{char}"


FIXED = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "a",
    "Hello world",
    "What is a dog?",
    "  leading and trailing  ",
    "a\r\nb\r\n\r\nc\n\n\nd\r\re",
    "tab\tand\t\tmore\t \t",
    "1234567890 12 345 6,789.01",
    "x1y22z333",
    "I'm you're he'll we've it's I'd don't",
    "I'M YOU'RE HE'LL WE'VE IT'S I'D DON'T",
    "'S 'sS ''s '\u017f",
    "naive na\u00efve nai\u0308ve",
    "A\u030a \u212b \u00c5",
    "\u1100\u1161\u11a8 \uac01",
    "\u0344 \u0958 \u2126 \ufb01",
    "a\u0301\u0323 a\u0323\u0301 \u0301\u0323",
    "q\u0307\u0323\u0301",
    "x\u08ca\u0334 a\u08ca\u0301 \U00011935\U00011930 \U00011938",
    "\u0d95\u0d4d",
    "\u0928\u093f \u0915\u094d\u0937",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002"
    "\u3053\u3093\u306b\u3061\u306f \u30ab\u30bf\u30ab\u30ca\u30fc \ud55c\uad6d\uc5b4",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "\u0661\u0662\u0663 \u216b \u00bd \u00b2",
    "\u00a0nbsp\u2003em\u3000ideographic\u2028line\u2029para\u0085nel\u1680ogham\u200bzero\ufeffbom\u180e",
    "def f(x):\n    return {'a': [1, 2, 3]}\n\n\n# end",
    "https://example.org/a?b=c&d=%20#e",
    "\x00\x01\x1f\x7f\x80\u009f",
    "<|im_start|>",
    "<|im_end|>",
    "a<|im_end|>b",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_end|",
    "|im_end|>",
    "<|<|im_end|>|>",
    "<|im_start|><|im_end|><|endoftext|>",
    " <|im_end|> ",
    "<|IM_END|>",
    "<|im_e\u0301nd|>",
    "<|im_start|><think>",
    "<think><thinking><thinkin>",
    "a  <left>  b  <right>  c  <both>  d<both><both> \n <right> <left>",
    "word words sword word, a-word_word 1word \u00e9word word\u0301 (word)",
    "caf\u00e9! cafe\u0301! cafe!",
    "\u00e9ditions e\u0301ditions",
    "smile \U0001f600!",
    "x" * 50,
    "ab" * 40,
    " " * 70 + "z",
    "\n" * 9 + " " * 9 + "\n" + " " * 9,
    "a" * 300 + " " * 300,
    "xxaxx bx",
    "banana bandana an",
    "\u00df\u1e9e \u0130\u0131 \u01c5\u01c6",
    "\U00010400\U00010428 \U0001d54f\U0001d7d8",
]


def random_texts(words):
    picker = random.Random(SEED + 1)
    alphabet = list("abcdeSTRE  \n\r\t0123456789.,!?'-_\"<|>") + [
        "\u00e9",
        "e\u0301",
        "\u4e2d",
        "\u3042",
        "\U0001f600",
        "\u00a0",
        "\u0301",
        "\u0e01",
        "<|im_end|>",
        "'LL",
        "  ",
        "\r\n",
        "\u00bd",
    ]
    for _ in range(60):
        yield "".join(picker.choice(alphabet) for _ in range(picker.randint(1, 80)))
    for _ in range(20):
        yield " ".join(picker.choice(words) for _ in range(picker.randint(1, 30)))


def encode_section(base):
    words = [w.replace("\u0120", "") for w in base["model"]["vocab"] if w.isascii() or w.startswith("\u0120")]
    pocket = FIXED + list(class_texts()) + list(random_texts([w for w in words if w]))
    others = FIXED + list(random_texts([w for w in words if w]))[:24]
    few = FIXED[:40] + FIXED[-16:]
    section = {}
    for name, overrides in variants(base).items():
        tokenizer = Tokenizer.from_str(apply(base, overrides))
        rows = []
        texts = pocket if name in ("pocket", "glm", "marks", "three_splits", "o200k", "gpt2") else few if "_" in name else others
        for text in texts:
            tokenizer.encode_special_tokens = False
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = True
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            rows.append([text, ids] if plain == ids else [text, ids, plain])
        section[name] = {"overrides": overrides, "rows": rows}
    return section


def decode_section(base):
    tokenizer = Tokenizer.from_str(json.dumps(base))
    picker = random.Random(SEED + 2)
    rows = []
    for _ in range(60):
        ids = [
            picker.choice([picker.randrange(4096), picker.randrange(256)])
            for _ in range(picker.randint(1, 12))
        ]
        rows.append([ids, tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids)])
    return rows


def utf8_section():
    picker = random.Random(SEED + 3)
    rows = []
    sources = [
        "\u00e9\u4e2d\U0001f600a".encode(),
        b"\xe2\x82\xff",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98",
        b"\xc0\xaf\xe0\x80",
        b"\xf4\x90\x80\x80",
    ]
    for _ in range(120):
        data = b"".join(picker.choice(sources)[: picker.randint(1, 8)] for _ in range(picker.randint(1, 6)))
        data += bytes(picker.randrange(256) for _ in range(picker.randint(0, 3)))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces = []
        while data:
            size = picker.randint(1, 3)
            pieces.append([list(data[:size]), decoder.decode(data[:size])])
            data = data[size:]
        rows.append({"pieces": pieces, "flush": decoder.decode(b"", True)})
    return rows


def main():
    base = json.loads((POCKET / "tokenizer.json").read_text())
    data = {
        "encode": encode_section(base),
        "decode": decode_section(base),
        "utf8": utf8_section(),
        "chats": list(chats(POCKET)),
    }
    # One row a line: small, and a change shows as the rows it touches.
    text = json.dumps(data, separators=(",", ":"))
    OUT.write_text(text.replace('],["', '],\n["').replace('},"', '},\n"') + "\n")
    assert json.loads(OUT.read_text()) == json.loads(text)
    print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
