"""A model's own draft head drafts: from the model's own rows, whole and in order; and changes no byte of an answer."""
import http.client
import json
import os
import shutil
import signal
import struct
import unittest

from wisp_e2e import DATA, WATCHDOG, Server, counters, main, pids_below, stages, temp, wisp

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


def stood():
    return sum(v for k, v in counters("router").items() if k.startswith("accepted"))


def drafted():
    return sum(v for k, v in counters("router").items() if k.startswith("drafted"))


def speculator_is_ready():
    """A server waits for it at its start alone, and only where a number of drafts is demanded."""
    while stages()["speculator"]["state"] != "ready" or stages()["speculator"]["stopped"]:
        pass


def stream_through(server, body, see):
    """The ids of a stream, taken up again wherever it breaks; see(ids so far) after each event."""
    got, last, done = [], None, False
    while not done:
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WATCHDOG)
        headers = {"Content-Type": "application/json"} | ({"Last-Event-ID": last} if last else {})
        try:
            c.request("POST", "/v1/completions", json.dumps(dict(body, stream=True)), headers)
            for line in c.getresponse():
                if line.startswith(b"id: "):
                    last = line[4:].decode().strip()
                done = done or line.startswith(b"data: [DONE]")
                if line.startswith(b"data: {"):
                    got += (json.loads(line[6:]).get("choices") or [{}])[0].get("token_ids") or []
                    see(got)
        except (ConnectionError, http.client.HTTPException):
            pass
        finally:
            c.close()
    return got


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
        prompts = ([1, 2, 3], long[:17] + [9], long + [40])
        for source, options in self.CASES:
            folder = temp("logits")
            flags = ["--ctx", 512, "--prompt-chunk", 16, "--logits", folder, *options]
            with Server(counting_model(source), "--speculate", "off", *flags) as server:
                want = [server.complete({"prompt": p, "max_tokens": 40}, folder) for p in prompts]
            self.assertEqual([ids for ids, _ in want], [answer(p[-1], 40) for p in prompts])
            for k in ("1", "3", "7", "auto"):
                with Server(counting_model(source), "--speculate", k, *flags) as server:
                    speculator_is_ready()
                    for prompt, plain in zip(prompts, want):
                        with self.subTest(model=source, options=options, prompt=len(prompt), k=k):
                            tried, before = drafted(), stood()
                            got = server.complete({"prompt": prompt, "max_tokens": 40}, folder)
                            self.assertEqual(got[0], plain[0])
                            self.assertTrue(got[1] == plain[1], "logits differ in bits")
                            right = stood() - before
                            if k != "auto":
                                # One token of each pass is the model's own; some go by before the head has read a long prompt.
                                self.assertGreaterEqual(right, 39 * int(k) // (int(k) + 1) // 2)
                            if len(prompt) < 40:
                                self.assertEqual(right, drafted() - tried)

    def test_a_new_life_has_what_the_old_one_had(self):
        with Server(counting_model("deepseek_v3_published"), "--speculate", "3") as server:
            ask = lambda first: server.post("/v1/completions", {"prompt": [first, 77, first], "max_tokens": 40, "ignore_eos": True,
                                                                "temperature": 0, "return_token_ids": True})[1]["choices"][0]["token_ids"]
            self.assertEqual(ask(5), answer(5, 40))
            before, epoch = stood(), stages()["speculator"]["epoch"]
            self.assertGreater(before, 20)
            for pid in pids_below(server.process.pid, "wisp-speculator"):
                os.kill(pid, 9)
            while stages()["speculator"]["epoch"] == epoch:
                pass
            speculator_is_ready()
            self.assertEqual(ask(6), answer(6, 40))
            self.assertGreater(stood(), before + 20)

    def test_stages_die_while_it_drafts(self):
        """Killed cleanly and dirtily, stopped and let go: the answer goes on as it would have, and the head drafts again."""
        cases = [("speculator", signal.SIGKILL), ("compute", signal.SIGKILL), ("router", signal.SIGKILL), ("loader", signal.SIGKILL),
                 ("speculator", signal.SIGSEGV), ("compute", signal.SIGSEGV), ("speculator", signal.SIGSTOP)]
        with Server(counting_model("glm4_moe_published"), "--speculate", "3", "--ctx", 1024, env={"WISP_DRAFT_SOURCE": "model"}) as server:
            for name, what in cases:
                with self.subTest(stage=name, signal=what.name):
                    pids = pids_below(server.process.pid, "wisp-" + name)
                    strike = lambda got: os.kill(pids.pop(), what) if len(got) > 100 and pids else None
                    got = stream_through(server, {"prompt": [1, 70, 2], "max_tokens": 900, "ignore_eos": True, "temperature": 0,
                                                  "return_token_ids": True}, strike)
                    self.assertEqual(got, answer(2, 900))
                    if what == signal.SIGSTOP:
                        self.assertTrue(stages()[name]["stopped"])
                        [os.kill(pid, signal.SIGCONT) for pid in pids_below(server.process.pid, "wisp-" + name)]
                    speculator_is_ready()
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
