"""Log-probabilities in the API: the numbers of the model's own logits, and the same bytes whatever is guessed, killed or resumed."""
import http.client
import itertools
import json
import math
import os
import re
import signal
import struct
import threading
import unittest

from wisp_e2e import DATA, STRIDE, WATCHDOG, Server, counters, events, floats, main, model, pids_below, reference, stages, stat, temp

DRAFT = "pocket-dictionary-draft"
VOCAB = 4096
TOKENS = 24
LONG = 700                          # tokens of an answer that something is killed in
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MODES = {"off": ["--speculate", "off"], "draft": ["--speculate", "3"], "look-up": ["--speculate", "3"], "solo": ["--topology", "solo"]}


def mode_flags(mode):
    return MODES[mode] + (["--draft", model(DRAFT)] if mode == "draft" else [])


def bytes_by_id():
    """The bytes of each id as the tokenizer's file has them; control tokens have none."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in shown)}
    with open(os.path.join(DATA, "pocket-dictionary", "tokenizer.json")) as f:
        vocabulary = json.load(f)["model"]["vocab"]
    return {i: bytes(byte_of[c] for c in text) for text, i in vocabulary.items()}


def log_softmax(row):
    top = max(row)
    shift = top + math.log(math.fsum(math.exp(x - top) for x in row))
    return [x - shift for x in row]


def body(path, prompt, tops, **more):
    """A request for the answer to one of the reference's prompts, with so many of the likeliest tokens."""
    asked = reference()["prompts"][prompt]
    common = {"ignore_eos": True, "max_tokens": TOKENS, "seed": 11, "return_token_ids": True, **more}
    if path == CHAT:
        return {"messages": asked["messages"], "logprobs": True, "top_logprobs": tops, **common}
    return {"prompt": asked["input_ids"], "logprobs": tops, **common}


def settled(raw):
    """An answer's bytes without what differs from request to request: its number and the time."""
    raw = re.sub(rb"^:.*\n\n", b"", raw, flags=re.M)
    raw = re.sub(rb'"id":"(chatcmpl|cmpl)-[0-9a-f]+"', rb'"id":"\1"', raw)
    return re.sub(rb"^id: \d+/", b"id: ", re.sub(rb'"created":\d+', b'"created":0', raw), flags=re.M)


def whole(server, path, asked):
    status, _, data = server.request("POST", path, asked)
    assert status == 200, data
    return settled(data)


def stream_through(server, path, asked, see):
    """(bytes of a stream, connections it took), taken up again wherever it breaks; see(events so far) after each event."""
    out, last, connections = b"", None, 0
    while not out.endswith(b"data: [DONE]\n\n"):
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WATCHDOG)
        headers = {"Content-Type": "application/json"} | ({"Last-Event-ID": last} if last else {})
        block = b""                                          # an event that breaks off is repeated
        try:
            c.request("POST", path, json.dumps(dict(asked, stream=True)), headers)
            connections += 1
            for line in c.getresponse():
                block += line
                if line != b"\n":
                    continue
                if block.startswith(b"id: "):
                    last = block[4:block.index(b"\n")].decode().strip()
                if not block.startswith(b":"):
                    out += block
                block = b""
                see(out.count(b"\n\n"))
        except (ConnectionError, http.client.HTTPException):
            pass
        finally:
            c.close()
    return settled(out), connections


class Values(unittest.TestCase):
    def check(self, rows, ids, chosen, tops, at_most):
        """Holds (logprob, [(bytes, logprob)..]) of each token against the logits."""
        names = bytes_by_id()
        worst = 0.0
        for n, token in enumerate(ids):
            want = log_softmax(rows[n * VOCAB:(n + 1) * VOCAB])
            worst = max(worst, abs(chosen[n] - want[token]))
            likeliest = sorted(range(VOCAB), key=lambda t: (-rows[n * VOCAB + t], t))[:at_most]
            self.assertEqual([b for b, _ in tops[n]], [names.get(t, b"") for t in likeliest])
            worst = max([worst] + [abs(got - want[t]) for (_, got), t in zip(tops[n], likeliest)])
            for number in [chosen[n]] + [got for _, got in tops[n]]:
                # What was printed is a float's shortest form: one digit less gives another float.
                single = lambda x: struct.pack("f", float(x))
                digits = next(d for d in range(1, 18) if float(f"%.{d}g" % number) == number)
                self.assertTrue(digits == 1 or single(f"%.{digits - 1}g" % number) != single(number), number)
        self.assertLess(worst, 1e-5)

    def test_against_the_logits(self):
        folder = temp("values")
        with Server(model(), "--logprobs", 20, "--logits", folder, *mode_flags("draft")) as server:
            for prompt, temperature, tops in itertools.product((0, 5, 9), (0, 0.8), (20, 3)):
                with self.subTest(prompt=prompt, temperature=temperature, tops=tops):
                    for path in (CHAT, TEXT):
                        status, headers, data = server.request("POST", path, body(path, prompt, tops, temperature=temperature,
                                                                                  write_logits=True))
                        self.assertEqual(status, 200, data)
                        [choice] = json.loads(data)["choices"]
                        with open(os.path.join(folder, headers["x-wisp-request"]), "rb") as f:
                            rows = floats(f.read())
                        told, ids = choice["logprobs"], choice["token_ids"]
                        self.assertEqual(len(ids), TOKENS)
                        if path == CHAT:
                            self.assertIsNone(told["refusal"])
                            self.check(rows, ids, [t["logprob"] for t in told["content"]],
                                       [[(bytes(b["bytes"]), b["logprob"]) for b in t["top_logprobs"]] for t in told["content"]], tops)
                            for t in told["content"]:
                                self.assertEqual(t["token"], bytes(t["bytes"]).decode(errors="replace"))
                            text = b"".join(bytes(t["bytes"]) for t in told["content"]).decode(errors="replace")
                            self.assertEqual(text, choice["message"]["content"])
                        else:
                            names = bytes_by_id()
                            for n, likeliest in enumerate(told["top_logprobs"]):
                                want = log_softmax(rows[n * VOCAB:(n + 1) * VOCAB])
                                self.assertLess(abs(told["token_logprobs"][n] - want[ids[n]]), 1e-5)
                                self.assertEqual(len(likeliest), tops)
                                for got, best in zip(likeliest.values(), sorted(want, reverse=True)):
                                    self.assertLess(abs(got - best), 1e-5)
                                text = names.get(ids[n], b"").decode(errors="replace")
                                own = text and "\ufffd" not in text
                                self.assertEqual(told["tokens"][n], text if own else f"token_id:{ids[n]}")
                                if told["tokens"][n] in likeliest:
                                    self.assertEqual(likeliest[told["tokens"][n]], told["token_logprobs"][n])
                                # The token stands in the text at its place, unless it is a part of a character.
                                if own:
                                    self.assertTrue(choice["text"][told["text_offset"][n]:].startswith(told["tokens"][n]))

    def test_none_of_the_likeliest(self):
        with Server(model(), "--logprobs", 0) as server:
            told = server.post(TEXT, body(TEXT, 0, 0))[1]["choices"][0]["logprobs"]
            self.assertIsNone(told["top_logprobs"])
            self.assertEqual(len(told["token_logprobs"]), TOKENS)
            told = server.post(CHAT, body(CHAT, 0, 0))[1]["choices"][0]["logprobs"]
            self.assertEqual([t["top_logprobs"] for t in told["content"]], [[]] * TOKENS)

    def test_refused_without_room(self):
        for flags, tops, field in ((["--logprobs", 2], 3, None), ([], 0, "logprobs")):
            with Server(model(), *flags) as server:
                for path in (CHAT, TEXT):
                    status, out = server.post(path, body(path, 0, tops))
                    self.assertEqual(status, 400, out)
                    self.assertEqual(out["error"]["param"], field or ("top_logprobs" if path == CHAT else "logprobs"))
                    self.assertIn(f"--logprobs {tops}", out["error"]["message"])
                    plain = {k: v for k, v in body(path, 0, 0).items() if "logprobs" not in k}
                    status, out = server.post(path, plain)
                    self.assertEqual((status, out["choices"][0]["logprobs"]), (200, None))


class SameBytes(unittest.TestCase):
    """Of whole answers, as plain decoding gave them."""
    ASKED = [(path, prompt, temperature) for path in (CHAT, TEXT) for prompt in (1, 6) for temperature in (0, 0.8)]

    @classmethod
    def setUpClass(cls):
        cls.golden, cls.long = {}, {}
        with Server(model(), "--logprobs", 5, *mode_flags("off")) as server:
            for path, prompt, temperature in cls.ASKED:
                asked = body(path, prompt, 5, temperature=temperature)
                cls.golden[path, prompt, temperature] = whole(server, path, asked), settled(server.stream(path, asked))
            for path, temperature in itertools.product((CHAT, TEXT), (0, 0.8)):
                asked = body(path, 3, 5, temperature=temperature, max_tokens=LONG)
                cls.long[path, temperature] = whole(server, path, asked), settled(server.stream(path, asked))

    def test_a_stream_says_what_the_whole_says(self):
        for (path, *_), (one, stream) in self.golden.items():
            said = json.loads(one)["choices"][0]["logprobs"]
            chunks = [json.loads(data)["choices"][0] for _, data in events(stream)[:-1]]
            told = [c["logprobs"] for c in chunks if c["logprobs"] is not None]
            self.assertEqual(len(told), TOKENS)
            for field in ("content",) if path == CHAT else ("text_offset", "token_logprobs", "tokens", "top_logprobs"):
                self.assertEqual([item for t in told for item in t[field]], said[field])
                self.assertTrue(all(len(t[field]) == 1 for t in told))

    def test_whatever_guesses(self):
        for mode in MODES:
            with Server(model(), "--logprobs", 5 if mode != "look-up" else 20, "--experts-ram", 64 * STRIDE, *mode_flags(mode)) as server:
                answers = {}
                # Beside each other too: some of them then share their steps.
                threads = [threading.Thread(target=lambda a=a: answers.__setitem__(a, (
                    whole(server, a[0], body(a[0], a[1], 5, temperature=a[2])),
                    settled(server.stream(a[0], body(a[0], a[1], 5, temperature=a[2])))))) for a in self.ASKED]
                for group in (threads[:1], threads[1:5], threads[5:]):
                    [t.start() for t in group]
                    [t.join() for t in group]
                for asked, want in self.golden.items():
                    with self.subTest(mode=mode, asked=asked):
                        self.assertEqual(answers[asked], want)
                if mode == "draft":
                    self.assertGreater(counters("router").get("accepted_1", 0), TOKENS)

    def test_killed_in_mid_answer(self):
        """Streams by a client that resumes, whoever dies; and whole answers where the gateway lives."""
        strikes = 0
        for mode in ("off", "draft"):
            with Server(model(), "--logprobs", 5, *mode_flags(mode)) as server:
                for victim, (path, temperature) in itertools.product(("router", "compute", "gateway"), self.long):
                    asked = body(path, 3, 5, temperature=temperature, max_tokens=LONG)
                    epoch = lambda: stages()[victim]["epoch"]
                    with self.subTest(mode=mode, victim=victim, path=path, temperature=temperature, stream=True):
                        before, pids = epoch(), pids_below(server.process.pid, "wisp-" + victim)
                        strike = lambda seen: os.kill(pids.pop(), signal.SIGKILL) if seen > 100 and pids else None
                        got, connections = stream_through(server, path, asked, strike)
                        self.assertTrue(got == self.long[path, temperature][1], "the bytes differ")
                        self.assertGreater(epoch(), before)
                        if victim == "gateway":
                            self.assertGreater(connections, 1)
                        strikes += 1
                    if victim == "gateway":
                        continue
                    with self.subTest(mode=mode, victim=victim, path=path, temperature=temperature, stream=False):
                        before, answer = epoch(), []
                        asker = threading.Thread(target=lambda: answer.append(whole(server, path, asked)))
                        asker.start()
                        made = lambda: [r["tokens"] for r in stat()["requests"] if r["state"] == "running"]
                        while not any(100 < n < LONG - 100 for n in made()):
                            self.assertTrue(asker.is_alive(), "it ended before it could be struck")
                        for pid in pids_below(server.process.pid, "wisp-" + victim):
                            os.kill(pid, signal.SIGKILL)
                        asker.join()
                        self.assertTrue(answer[0] == self.long[path, temperature][0], "the bytes differ")
                        self.assertGreater(epoch(), before)
                        strikes += 1
        self.assertEqual(strikes, 2 * (12 + 8))


if __name__ == "__main__":
    main()
