"""Writes services/gateway/text/char_class_table.inc: the class of every character, asked of the reference itself, for
its Unicode version decides where a text is split.

    python3 -m venv /tmp/tok && /tmp/tok/bin/pip install tokenizers==0.23.3
    /tmp/tok/bin/python tests/oracle/unicode_table.py
"""

import pathlib

from tokenizers import Regex, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parents[2] / "services/gateway/text/char_class_table.inc"
# In the order of CharClass in char_class.hpp.
CLASSES = [
    r"\p{Z}",
    r"[^\S\r\n]",
    r"[\r\n]",
    r"[\p{Lu}\p{Lt}]",
    r"\p{Ll}",
    r"[\p{Lm}\p{Lo}]",
    r"\p{M}",
    r"\p{N}",
    r"\p{P}",
    r"\p{S}",
]
HAN = 16


def matched(pattern):
    """The characters that a pattern of one character matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    for start in range(0, 0x110000, 4096):
        chars = [chr(c) for c in range(start, start + 4096) if not 0xD800 <= c < 0xE000]
        if chars:
            rest = set("".join(piece for piece, _ in split.pre_tokenize_str("".join(chars))))
            yield from (ord(c) for c in chars if c not in rest)


def main():
    classes = [0] * 0x110000
    for number, pattern in enumerate(CLASSES[1:], 1):
        for char in matched(pattern):
            assert classes[char] == 0, (hex(char), pattern)
            classes[char] = number
    for char in matched(r"\p{Han}"):
        classes[char] |= HAN
    starts = [c for c in range(0x110000) if c == 0 or classes[c] != classes[c - 1]]
    words = [f"0x{c << 5 | classes[c]:x}" for c in starts]
    lines, line = [
        "// Written by tests/oracle/unicode_table.py: the first character of each range << 5 | its class."
    ], ""
    for word in words:
        if len(line) + len(word) + 2 > 110:
            lines.append(line.rstrip())
            line = ""
        line += word + ", "
    OUT.write_text("\n".join(lines + [line.rstrip()]) + "\n")
    print(len(words), "ranges,", OUT.stat().st_size, "bytes")


main()
