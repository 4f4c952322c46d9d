"""Logits under the penalties of a request, as `transformers` and OpenAI's formula have them: tests/data/penalties.json.

The repetition penalty is that of transformers' RepetitionPenaltyLogitsProcessor over prompt and answer; frequency and presence
are taken off afterwards, in float64, by the formula of OpenAI's API: mu[j] - c[j] * frequency - (c[j] > 0) * presence, where c
counts the answer. Run from the repository root; writes the same bytes each time.
"""
import json

import numpy
import torch
from transformers import RepetitionPenaltyLogitsProcessor

VOCAB = 24
rng = numpy.random.RandomState(11)
cases = []
for repetition, frequency, presence in [(1, 0, 0), (1.3, 0, 0), (0.8, 0, 0), (1, 0.7, 0), (1, 0, -1.5), (1.1, 0.4, 0.6), (2, -2, 2)]:
    logits = rng.uniform(-6, 6, VOCAB).astype(numpy.float32)
    prompt = rng.randint(0, VOCAB, 9).tolist()
    answer = rng.randint(0, VOCAB, 12).tolist()
    scores = torch.from_numpy(logits.copy())[None]
    if repetition != 1:
        scores = RepetitionPenaltyLogitsProcessor(float(repetition))(torch.tensor([prompt + answer]), scores)
    counts = numpy.bincount(answer, minlength=VOCAB).astype(numpy.float64)
    want = scores[0].numpy().astype(numpy.float64) - counts * frequency - (counts > 0) * presence
    cases.append({"repetition": repetition, "frequency": frequency, "presence": presence, "prompt": prompt, "answer": answer,
                  "logits": [float(x) for x in logits], "want": want.tolist()})
with open("tests/data/penalties.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
