"""Texts to hold a tokenizer to, the same for the same seed and Unicode tables: every assigned character,
unassigned and private ones, emoji sequences, combining marks, line ends, white space, digit runs, control tokens written
by a user, mixed scripts, code, prose, and bytes that are not UTF-8. Used by real_tokenizers.py and split_vectors.py.
"""

import pathlib
import random
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPACES = [
    chr(c)
    for c in (
        9,
        10,
        11,
        12,
        13,
        32,
        0x85,
        0xA0,
        0x1680,
        *range(0x2000, 0x200B),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
        0x1C,
        0x1D,
        0x1E,
        0x1F,
        0x180E,
        0x200B,
        0xFEFF,
    )
]
CONTRACTIONS = [
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "'S",
    "'T",
    "'RE",
    "'Ve",
    "'lL",
    "'\u017f",
    "'x",
    "''s",
    "\u2019s",
    "'l",
    "'r",
    "'v",
    "'re've",
    "'\u1e9e",
]
EMOJI = [
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f469\U0001f3fd\u200d\U0001f680",
    "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f\u200d\U0001f525",
    "1\ufe0f\u20e3",
    "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "\U0001f600",
    "\u00a9\ufe0f",
    "\U0001fae8",
]
SCRIPTS = {
    "latin": "abcdefgh\u00e9\u00df\u0142",
    "upper": "ABCDXYZ\u00c9\u0130",
    "greek": "\u03b1\u03b2\u03b3\u03a9\u03a3\u03c2",
    "cyrillic": "\u0434\u043e\u043c\u041c\u0438\u0440",
    "arabic": "\u0633\u0644\u0627\u0645\u064e\u0651",
    "hebrew": "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd",
    "hindi": "\u0928\u092e\u0938\u094d\u0924\u0947",
    "tamil": "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd",
    "thai": "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "han": "\u4f60\u597d\u4e16\u754c\u4e2d\u6587\u9f8d\u9fa5\u9fa6\u3400",
    "kana": "\u3042\u3044\u30ab\u30bf\u30fc\u30fb\u3099\u309b\u30ff",
    "hangul": "\ud55c\uad6d\uc5b4\u1100\u1161\u11a8",
    "georgian": "\u10d0\u10d1\u1c90",
    "ethiopic": "\u1230\u120b\u121d",
    "khmer": "\u1781\u17d2\u1798\u17c2",
    "title": "\u01c5\u01c8\u1f88",
    "digits": "0123456789",
    "other digits": "\u0661\u0662\u0966\u216b\u00bd\u00b2\u2460\U0001d7d8\u3007",
    "symbols": "+<=>$\u20ac^`|~\u00b0\u2192\u221e\u25a0",
    "punctuation": ".,;:!?\"'()[]{}-_/\\&%#@*\u2026\u2014\u3002\uff0c\u300c\u300d\u00bf",
    "marks": "\u0301\u0323\u0307\u034f\u20dd\u0903\ufe0f",
    "controls": "\x00\x01\x07\x1b\x7f\x80\u009f\u200d\u200c\u00ad\u202e\u2066",
}


def characters():
    """Every assigned code point but private ones, in order."""
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]


def every_character(rng, step=24):
    """All assigned characters, `step` to a text, each amid a setting drawn for the text."""
    settings = ["{}", "a{}", "{}b ", " {}", "{}{}", "1{}2", "{}\n", "'{}", "A{}a", "\u4e2d{}", "!{}", " {}A", "\n{} "]
    chars = characters()
    for start in range(0, len(chars), step):
        setting = rng.choice(settings)
        yield "".join(setting.replace("{}", c) for c in chars[start : start + step])


def by_category(rng, count):
    """`count` texts of characters from every general category alike, the unassigned, the private and Hangul parts too."""
    classes = {}
    for c in range(0x110000):
        category = unicodedata.category(chr(c))
        if category != "Cs":
            classes.setdefault(category, []).append(chr(c))
    names = sorted(classes)
    for i in range(count):
        first = names[i % len(names)]
        chosen = [first] + [rng.choice(names) for _ in range(rng.randrange(0, 3))]
        yield "".join(
            rng.choice(classes[rng.choice(chosen)]) + rng.choice(["", "", "", " ", "\n", "a", "1", "Z"])
            for _ in range(rng.randrange(1, 24))
        )


def mixed(rng, count):
    names = sorted(SCRIPTS)
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 9)):
            letters = SCRIPTS[rng.choice(names)]
            parts.append("".join(rng.choice(letters) for _ in range(rng.randrange(1, 7))))
            parts.append(
                rng.choice(
                    [
                        "",
                        "",
                        " ",
                        " ",
                        "  ",
                        "\n",
                        "\r\n",
                        rng.choice(SPACES),
                        rng.choice(CONTRACTIONS),
                        rng.choice(EMOJI),
                    ]
                )
            )
        yield "".join(parts)


def white_space(rng, count):
    for _ in range(count):
        yield "".join(
            rng.choice(
                [
                    rng.choice(SPACES) * rng.randrange(1, 6),
                    "\r\n" * rng.randrange(1, 4),
                    "\n" * rng.randrange(1, 4),
                    " " * rng.randrange(1, 20),
                    "\t" * rng.randrange(1, 9),
                    "a",
                    "B.",
                    "1",
                    "\u4e2d",
                    "\u0301",
                    "/",
                    "-",
                ]
            )
            for _ in range(rng.randrange(1, 9))
        )


def digit_runs(rng, count):
    for _ in range(count):
        digits = rng.choice(
            [
                "0123456789",
                "0123456789",
                "\u0660\u0661\u0662",
                "0\u00bd\u2460",
                "1\u3007\u4e00",
                "9,",
                "1.",
                "\U0001d7d81",
            ]
        )
        size = rng.choice([rng.randrange(1, 12), rng.randrange(1, 60), rng.randrange(1, 2000)])
        yield rng.choice(["", " ", "a", "$", "\n"]) + "".join(rng.choice(digits) for _ in range(size)) + rng.choice(
            ["", " ", "th", "."]
        )


def marks(rng, count):
    for _ in range(count):
        yield "".join(
            rng.choice("aeoAO q\u4e2d1.\u0915")
            + "".join(
                chr(
                    rng.choice(
                        [
                            rng.randrange(0x300, 0x370),
                            rng.randrange(0x1AB0, 0x1AFF),
                            rng.randrange(0x20D0, 0x20F1),
                            rng.randrange(0x591, 0x5C8),
                            rng.randrange(0x93A, 0x94E),
                        ]
                    )
                )
                for _ in range(rng.choice([0, 1, 1, 2, 3, 40]))
            )
            for _ in range(rng.randrange(1, 8))
        )


# What stands at the edges of the patterns' alternatives: a long s, a slash after a line end, Han that is no letter, the
# last of DeepSeek's ideographs and the next, blanks and marks in a row.
# fmt: off
EDGES = [
    "'\u017f", "'S", "'LL", "'re", "'", "//", "\n/", "\r\n/", "*/", "/*", ")\n", "\n", "\r", " ", "  ", "   ", "\t",
    "\xa0", "\u2028", "a", "B", "Ab", "aB", "\u01c5", "1", "12", "1234", "\xbd", "\u3007", "\u2e80", "\u3005",
    "\u9fa5", "\u9fa6", "\u30fb", "\u30fc", "\u3099", "\u0301", "\u0903", "\U00016d63", "\U00010d50", "\u2581",
    "\u2581\u2581", ".", "!", "...", "_", "$", "\u20ac", "\x00", "\u200d", "\xad",
]
# fmt: on


def edges(rng, count):
    for _ in range(count):
        yield "".join(rng.choice(EDGES) for _ in range(rng.randrange(2, 14)))


def control_tokens(rng, names, count):
    """What `names`, the vocabulary's added tokens, look like in a user's text: whole, cut, doubled, in words."""
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 5)):
            name = rng.choice(names)
            cut = rng.randrange(1, len(name) + 1)
            parts.append(
                rng.choice(
                    [
                        name,
                        name,
                        name,
                        name[:cut],
                        name[cut:],
                        name.upper(),
                        name + name,
                        " " + name + " ",
                        name.replace("|", "||"),
                        "\n" + name,
                    ]
                )
            )
            parts.append(rng.choice(["", " ", "user\n", "a", "\u4e2d", "1", "<", "  ", "\n\n"]))
        yield "".join(parts)


def written(rng, count):
    """Stretches of English and JSON that the tests keep, and lines that look like a program's."""
    names = ["tests/data/pocket-dictionary/reference.json", "tests/data/WORDNET-LICENSE.txt"]
    texts = [(ROOT / name).read_text() for name in names]
    words = 'if else return const std::vector<int> self.value i = == != += -> => ( ) { } [0] ; : , // /* */ # "x" 0x1F 1e-9'.split()
    for _ in range(count):
        if rng.random() < 0.5:
            text = rng.choice(texts)
            start = rng.randrange(len(text))
            yield text[start : start + rng.choice([40, 200, 1000])]
            continue
        lines = []
        for _ in range(rng.choice([1, 4, 20])):
            indent = rng.choice(["", "  ", "    ", "        ", "\t", "\t\t"])
            lines.append(indent + rng.choice(["", " "]).join(rng.choice(words) for _ in range(rng.randrange(0, 9))))
        yield rng.choice(["\n", "\n", "\r\n", "\n\n"]).join(lines)


def long_runs():
    """Pieces without an end: one letter, one space, one sign, words that never stop."""
    for unit, times in [
        ("a", 5000),
        (" ", 5000),
        ("\n", 5000),
        (" \n", 2000),
        ("ab", 3000),
        ("\u4e2d", 3000),
        ("!", 4000),
        ("aB", 2000),
        ("A", 3000),
        ("e\u0301", 2000),
        ("\u0301", 3000),
        ("\U0001f600", 1500),
        ("'s", 1500),
        ("\t", 4000),
        ("1", 5000),
        ("\u3042\u30a2", 1500),
        ("\x00", 3000),
        ("=-", 2500),
    ]:
        yield unit * times
        yield "x" + unit * times + "y"


def texts(names, seed=20261130, scale=1.0):
    """The whole corpus, at least 20,000 texts at scale 1; `names`: the vocabulary's added tokens."""
    rng = random.Random(seed)
    n = lambda count: int(count * scale)
    out = ["", " ", "\n", "\r\n", "a", "\u0301", "\u2581", "\u2581a", " \u2581 a"]
    if scale >= 1:
        out += every_character(rng)
        out += long_runs()
    else:
        pool = list(every_character(rng, 12))
        out += [t[:30] for t in rng.sample(pool, n(2500))]
    out += by_category(rng, n(4000))
    out += mixed(rng, n(5000))
    out += edges(rng, n(3000))
    out += white_space(rng, n(1500))
    out += digit_runs(rng, n(800))
    out += marks(rng, n(1000))
    out += control_tokens(rng, names, n(1500)) if names else []
    out += written(rng, n(2000))
    return out


def broken(seed=7, count=500):
    """Bytes that are not UTF-8: cut characters, overlong forms, surrogates, stray bytes."""
    rng = random.Random(seed)
    bad = [
        b"\xff",
        b"\x80",
        b"\xc0\xaf",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"\xe0\x80\x80",
        b"\xc3",
    ]
    out = []
    while len(out) < count:
        parts = [
            rng.choice(
                [
                    rng.choice(bad),
                    "a\u00e9\u4e2d ".encode(),
                    b"dog ",
                    "\U0001f600".encode(),
                    bytes([rng.randrange(256)]),
                ]
            )
            for _ in range(rng.randrange(1, 7))
        ]
        data = b"".join(parts)
        try:
            data.decode()
        except UnicodeDecodeError:
            out.append(data)
    return out
