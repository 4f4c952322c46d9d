"""Kimi's form of a vocabulary, as its publisher's Python reads it: `tiktoken.model` (a line a token, base64 and rank), names of
the control tokens in `tokenizer_config.json`, the split pattern and the cuts in code. The reference is `tiktoken`."""

import base64
import json

import patterns
import tiktoken

NAMED = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "[EOT]",
    10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    17: "<|im_middle|>",
    22: "<think>",
    23: "</think>",
    254: "[UNK]",
    255: "[PAD]",
}
RESERVED = 256
MOST_CHARACTERS = 400_000
MOST_ALIKE = 25_000


def cut(text):
    """Parts of at most 400,000 characters, cut again where more than 25,000 are all spaces or all not."""
    for start in range(0, len(text), MOST_CHARACTERS):
        part = text[start : start + MOST_CHARACTERS]
        begin, alike = 0, 0
        for i, char in enumerate(part):
            alike = alike + 1 if i > 0 and char.isspace() == part[i - 1].isspace() else 1
            if alike > MOST_ALIKE:
                yield part[begin:i]
                begin, alike = i, 1
        yield part[begin:]


class TiktokenReference:
    whole_runs = False

    def __init__(self, ranks, specials):
        self.names = list(specials)
        self.encoding = tiktoken.Encoding("kimi", pat_str=patterns.KIMI, mergeable_ranks=ranks, special_tokens=specials)

    def plain(self, text):
        return [i for part in cut(text) for i in self.encoding.encode_ordinary(part)]

    def special(self, text):
        return [i for part in cut(text) for i in self.encoding.encode(part, allowed_special="all")]

    def decode(self, ids):
        return self.encoding.decode(ids)


def write_folder(folder, ranks):
    """Writes the two files of a vocabulary of `ranks` (bytes -> rank) and gives the reference over it."""
    lines = [
        base64.b64encode(token).decode() + f" {rank}\n"
        for token, rank in sorted(ranks.items(), key=lambda item: item[1])
    ]
    (folder / "tiktoken.model").write_text("".join(lines))
    first = len(ranks)
    decoder = {
        str(first + i): {
            "content": c,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": c[0] != "<" or "im_" in c,
        }
        for i, c in NAMED.items()
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": decoder, "tokenizer_class": "TikTokenTokenizer"}, indent=1)
    )
    specials = {NAMED.get(i, f"<|reserved_token_{first + i}|>"): first + i for i in range(RESERVED)}
    return TiktokenReference(ranks, specials)
