"""A model's own draft head drafts: from the model's own rows, whole and in order; and changes no byte of an answer."""
import http.client
import json
import os
import shutil
import signal
import struct
import unittest

from wisp_e2e import DATA, WATCHDOG, Server, main, pids_below, run_json, run_logits, temp, wisp

HIDDEN = 64
ONE = 0x3f80                        # bf16


def following(token):
    """A cycle through all of [0, 64)."""
    return (5 * token + 3) % HIDDEN


def bf16(rows, columns, ones):
    out = bytearray(2 * rows * columns)
    for row, column in ones:
        struct.pack_into("<H", out, 2 * (row * columns + column), ONE)
    return bytes(out)


_made = {}


def counting_model(source):
    """The checkpoint of that name whose layers add nothing: token t is followed by following(t), as embedding and output matrix say. Its
    head leaves the embedding aside, so a draft is right if, and only if, the row that it was fed with was the right one."""
    if source in _made:
        return _made[source]
    src, checkpoint, folder = os.path.join(DATA, "oracle", source), temp("counting-" + source), temp("model-counting-" + source)
    os.makedirs(checkpoint)
    shutil.copy(os.path.join(src, "config.json"), checkpoint)
    with open(os.path.join(src, "model.safetensors"), "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), bytearray(f.read())

    def put(name, content):
        begin, end = header[name]["data_offsets"]
        assert header[name]["dtype"] == "BF16" and end - begin == len(content), name
        data[begin:end] = content

    vocab = header["lm_head.weight"]["shape"][0]
    embedding = bf16(vocab, HIDDEN, [(t, t) for t in range(HIDDEN)])
    output = bf16(vocab, HIDDEN, [(following(t), t) for t in range(HIDDEN)])
    for name, t in header.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            put(name, bytes(2 * t["shape"][0] * t["shape"][1]))
        elif name == "model.norm.weight" or name.endswith(("enorm.weight", "hnorm.weight", "shared_head.norm.weight")):
            put(name, bf16(1, HIDDEN, [(0, i) for i in range(HIDDEN)]))
        elif name.endswith("embed_tokens.weight"):
            put(name, embedding)
        elif name in ("lm_head.weight",) or name.endswith("shared_head.head.weight"):
            put(name, output)
        elif name.endswith("eh_proj.weight"):
            put(name, bf16(HIDDEN, 2 * HIDDEN, [(following(t), HIDDEN + t) for t in range(HIDDEN)]))
    with open(os.path.join(checkpoint, "model.safetensors"), "wb") as f:
        text = json.dumps(header).encode()
        f.write(struct.pack("<Q", len(text)) + text + data)
    wisp("convert", checkpoint, folder)
    return _made.setdefault(source, folder)


def stages():
    return {s["stage"]: s for s in json.loads(wisp("stat", "--json").stdout)["stages"]}


def stood():
    return sum(v for k, v in stages()["router"]["counters"].items() if k.startswith("accepted"))


def answer(last, count):
    out = []
    for _ in range(count):
        last = following(last)
        out.append(last)
    return out


class Head(unittest.TestCase):
    CASES = (("deepseek_v3_published", ()), ("deepseek_v3_published", ("--kv", "bf16", "--profile", "fast")),
             ("deepseek_v3_published", ("--prefill", "naive")), ("glm4_moe_published", ()))

    def test_every_draft_stands(self):
        """Short prompts, and long ones in chunks: all drafts are right, for nothing in the text repeats itself; and the logits are those
        of plain decoding."""
        long = [(7 * i * i + 3 * i) % 160 for i in range(333)]
        for source, options in self.CASES:
            for prompt, chunk in (([1, 2, 3], 64), (long[:17] + [9], 8), (long + [40], 16)):
                args = [counting_model(source), "--ids", ",".join(map(str, prompt)), "-n", 40, "--ignore-eos", "--ctx", 512,
                        "--prompt-chunk", chunk, *options]
                want, want_logits = run_logits(*args, "--speculate", "off")
                self.assertEqual(want["token_ids"], answer(prompt[-1], 40))
                for k in ("1", "3", "7", "auto"):
                    with self.subTest(model=source, options=options, prompt=len(prompt), k=k):
                        got, logits = run_logits(*args, "--speculate", k)
                        self.assertEqual(got["token_ids"], want["token_ids"])
                        self.assertTrue(logits == want_logits, "logits differ in bits")
                        s = got["speculation"]
                        if k != "auto":
                            # One token of each pass is the model's own; the first comes before any draft.
                            self.assertGreaterEqual(s["accepted"], 39 * int(k) // (int(k) + 1) - int(k) - 2, s)
                        if len(prompt) < 40:
                            self.assertEqual(s["accepted"], s["drafted"], s)

    def test_a_new_life_has_what_the_old_one_had(self):
        with Server(counting_model("deepseek_v3_published"), "--speculate", "3") as server:
            ask = lambda first: server.post("/v1/completions", {"prompt": [first, 77, first], "max_tokens": 40, "ignore_eos": True,
                                                                "temperature": 0, "return_token_ids": True})[1]["choices"][0]["token_ids"]
            self.assertEqual(ask(5), answer(5, 40))
            before, epoch = stood(), stages()["speculator"]["epoch"]
            self.assertGreater(before, 20)
            for pid in pids_below(server.process.pid, "wisp-speculator"):
                os.kill(pid, 9)
            while stages()["speculator"]["epoch"] == epoch or stages()["speculator"]["state"] != "ready":
                pass
            self.assertEqual(ask(6), answer(6, 40))
            self.assertGreater(stood(), before + 20)

    def test_stages_die_while_it_drafts(self):
        """Killed cleanly and dirtily, stopped and let go: the answer goes on as it would have, and the head drafts again."""
        cases = [("speculator", signal.SIGKILL), ("compute", signal.SIGKILL), ("router", signal.SIGKILL), ("loader", signal.SIGKILL),
                 ("speculator", signal.SIGSEGV), ("compute", signal.SIGSEGV), ("speculator", signal.SIGSTOP)]
        with Server(counting_model("glm4_moe_published"), "--speculate", "3", "--ctx", 1024, env={"WISP_DRAFT_SOURCE": "model"}) as server:
            for name, what in cases:
                with self.subTest(stage=name, signal=what.name):
                    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WATCHDOG)
                    c.request("POST", "/v1/completions", json.dumps({"prompt": [1, 70, 2], "max_tokens": 900, "ignore_eos": True, "stream": True,
                                                                     "temperature": 0, "return_token_ids": True}))
                    r, got, pids = c.getresponse(), [], pids_below(server.process.pid, "wisp-" + name)
                    for line in r:
                        if not line.startswith(b"data: {"):
                            continue
                        got += (json.loads(line[6:]).get("choices") or [{}])[0].get("token_ids") or []
                        if len(got) > 100 and pids:
                            os.kill(pids.pop(), what)
                    c.close()
                    self.assertEqual(got, answer(2, 900))
                    if what == signal.SIGSTOP:
                        self.assertTrue(stages()[name]["stopped"])
                        [os.kill(pid, signal.SIGCONT) for pid in pids_below(server.process.pid, "wisp-" + name)]
                    while stages()["speculator"]["state"] != "ready" or stages()["speculator"]["stopped"]:
                        pass
            before = stood()
            self.assertEqual(server.post("/v1/completions", {"prompt": [9, 9], "max_tokens": 40, "ignore_eos": True, "temperature": 0,
                                                             "return_token_ids": True})[1]["choices"][0]["token_ids"], answer(9, 40))
            self.assertGreater(stood(), before + 20)

    def test_memory(self):
        """The head is in the budget, and without drafts it is not."""
        folder = counting_model("glm4_moe_published")
        with_head = wisp("run", folder, "--ids", "1,2", "-n", 4, "--verbose").stderr
        self.assertIn("draft head", with_head)
        self.assertNotIn("draft head", wisp("run", folder, "--ids", "1,2", "-n", 4, "--verbose", "--speculate", "off").stderr)


if __name__ == "__main__":
    main()
