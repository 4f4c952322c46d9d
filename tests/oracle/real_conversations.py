#!/usr/bin/env python3
"""Hold a running server to Hugging Face transformers on a real model: 20 conversations, greedy, token for token.

usage: python tests/oracle/real_conversations.py CHECKPOINT URL [--only NUMBER ...]

CHECKPOINT is the folder that the served model was converted from, URL what `wisp serve` printed. Each conversation of
real_conversations.json is asked twice: as messages, and as the ids that the checkpoint's own tokenizer and template
make of them. Both must count as many prompt tokens and answer the same. transformers then reads prompt and answer in
float32 and must take each token, and the end, for the likeliest. Where it prefers another one by less than 1e-3 of the
largest logit, that is a near-tie: rounding decides, and the comparison goes on along the served answer.
"""
import argparse
import json
import os
import sys
import time
import urllib.request

import torch
import transformers

from oracle import load, prepare

MAX_TOKENS = 64
NEAR_TIE = 1e-3  # of the largest logit
OTHER_PROMPT = "another prompt"


def conversations():
    with open(os.path.join(os.path.dirname(__file__), "real_conversations.json")) as f:
        return json.load(f)


def ask(url, path, **body):
    """The ids of an answer, why it ended, and the tokens of its prompt."""
    body.update(temperature=0, max_tokens=MAX_TOKENS, return_token_ids=True)
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        reply = json.load(reply)
    choice = reply["choices"][0]
    return choice["token_ids"], choice["finish_reason"], reply["usage"]["prompt_tokens"]


def wrong_end(model, answer, reason):
    """True unless the answer stops at its first end token, or for want of one at MAX_TOKENS."""
    eos = model.generation_config.eos_token_id
    eos = eos if isinstance(eos, list) else [eos]
    ended = [token in eos for token in answer]
    if True in ended:
        return ended.index(True) != len(answer) - 1 or reason != "stop"
    return len(answer) != MAX_TOKENS or reason != "length"


@torch.no_grad()
def surprises(model, prompt, answer):
    """Where the likeliest token is not the served one: place, served, likeliest, and their gap in largest logits."""
    rows = model(torch.tensor([prompt + answer]), use_cache=False).logits[0, len(prompt) - 1:-1].double()
    for place, (row, served) in enumerate(zip(rows, answer)):
        best = row.argmax().item()
        if best != served:
            yield place, served, best, ((row[best] - row[served]) / row[best]).item()


def compare(model, tokenizer, url, messages):
    """(tokens of the prompt, the answer, seconds it took, near-ties, faults); the last two as lines of text."""
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    start = time.monotonic()
    answer, reason, counted = ask(url, "/v1/chat/completions", messages=messages)
    seconds = time.monotonic() - start
    ties, faults = [], []
    if counted != len(prompt):
        faults.append(f"{OTHER_PROMPT} of {counted} tokens")
    elif ask(url, "/v1/completions", prompt=prompt)[0] != answer:
        faults.append(f"{OTHER_PROMPT}: its ids are answered otherwise")
    if wrong_end(model, answer, reason):
        faults.append(f"ends with {answer[-1]} ({reason}) after {len(answer)} tokens")
    for place, served, best, gap in surprises(model, prompt, answer):
        text = f"token {place} is {served}, not {best}, whose logit is {gap:.2g} of itself larger"
        if gap >= NEAR_TIE:
            faults.append(text)
            break
        ties.append("near-tie: " + text)
    return len(prompt), answer, seconds, ties, faults


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint")
    ap.add_argument("url")
    ap.add_argument("--only", type=int, nargs="+", help="these conversations, counted from 1")
    args = ap.parse_args()
    prepare()
    model = load(args.checkpoint)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.checkpoint)
    talks = conversations()
    asked = sorted(set(args.only or range(1, len(talks) + 1)))
    prompts = equal = near = wrong = tokens = 0
    seconds = 0.0
    for number in asked:
        talk = talks[number - 1]
        length, answer, took, ties, faults = compare(model, tokenizer, args.url, talk["messages"])
        verdict = "DIFFERENT" if faults else "near-tie" if ties else "equal"
        print(f"{number:2} {talk['about']}: {length} + {len(answer)} tokens, {verdict}", flush=True)
        for line in ties + faults:
            print("   " + line, flush=True)
        prompts += not any(f.startswith(OTHER_PROMPT) for f in faults)
        equal += verdict == "equal"
        near += len(ties)
        wrong += verdict == "DIFFERENT"
        tokens += len(answer)
        seconds += took
    print(f"prompts equal {prompts}/{len(asked)}, answers equal {equal}/{len(asked)}, near-ties {near}, "
          f"different {wrong}; {tokens} tokens, {tokens / seconds:.1f} a second with their prompts")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
