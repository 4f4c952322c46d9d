"""Drafts change no byte: not the ids, not the logits, not the law of what is drawn; and nothing is lost when one is cancelled.

By default samples; `speculation_test.py --full` runs the full product, 10,000 drawn answers and 1,000 cancellations.
"""
import concurrent.futures
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import threading
import unittest

from wisp_e2e import (EXPERTS, STRIDE, WATCHDOG, Server, counters, main, model, pairwise, pids_below, program, reference, run_json,
                      run_logits, stat, temp, wisp)

FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")
DRAFT = "pocket-dictionary-draft"
TOKENS = 24
SOURCES = ["draft", "look-up", "both", "script", "nonsense"]
PROMPTS = list(range(12)) + [f"random {i}" for i in range(200 if FULL else 8)]
SERVERS = {
    "speculate": ["off", "auto", "1", "3", "7"],
    "source": SOURCES,
    "profile": ["exact", "fast"],
    "slots": [EXPERTS // 4, EXPERTS],
}
DRAWING = {                         # how tokens are drawn, as the API has it
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.8},
    "penalised": {"temperature": 0, "presence_penalty": 2, "frequency_penalty": 1.5, "repetition_penalty": 2.5},
    "drawn, penalised": {"temperature": 0.8, "presence_penalty": -2, "frequency_penalty": 1, "repetition_penalty": 2},
}
AXES = dict(SERVERS, prompt=PROMPTS[:20:2], speculate=["auto", "1", "3", "7"], drawing=list(DRAWING))
BESIDE = 4                          # requests at a time


def prompt_ids(which):
    if isinstance(which, int):
        return reference()["prompts"][which]["input_ids"]
    rng = random.Random(which)
    # Random continuations repeat themselves here and there, as code does.
    ids = [rng.randrange(4093) for _ in range(rng.randrange(5, 60))]
    return ids + ids[:rng.randrange(len(ids))]


def engine_flags(row):
    return ["--experts-ram", row["slots"] * STRIDE, "--profile", row["profile"], "--speculate", row["speculate"],
            "--no-learned-cache"]


def flags(row):
    drawing = [f for field, value in DRAWING[row["drawing"]].items()
               for f in ("--" + field.removesuffix("erature").replace("_", "-"), value)]
    return ["--ids", ",".join(map(str, prompt_ids(row["prompt"]))), "-n", TOKENS, "--ignore-eos", *drawing, "--seed", 11,
            *engine_flags(row)]


def script(name, head, *lines):
    path = temp("script-" + name)
    with open(path, "w") as f:
        f.write(head + "\n" + "".join(" ".join(map(str, l)) + "\n" for l in lines))
    return path


def connections(port):
    """How many somebody has open at a port of this machine."""
    with open("/proc/net/tcp") as f:
        lines = [l.split() for l in f.readlines()[1:]]
    listens, inode = "0A", 9
    return sum(l[1].endswith(f":{port:04X}") and l[3] != listens and l[inode] != "0" for l in lines)


def source_flags(source, texts):
    """Flags and environment of a source of drafts; `texts`: ids that a script goes by."""
    if source == "draft":
        return ["--draft", model(DRAFT)], {"WISP_DRAFT_SOURCE": "model"}
    if source == "both":
        return ["--draft", model(DRAFT)], {}
    if source == "script":
        return [], {"WISP_DRAFT_SCRIPT": script("accept", "accept 0.6 seed 5", *texts)}
    if source == "nonsense":
        return [], {"WISP_DRAFT_SCRIPT": script("nonsense", "nonsense 7")}
    return [], {}


def complete(server, folder, prompt, drawing):
    return server.complete({"prompt": prompt_ids(prompt), "max_tokens": TOKENS, "seed": 11, **DRAWING[drawing]}, folder)


def difference(got, want):
    """Where two answers differ, in words; None where they do not."""
    if got == want:
        return None
    places = [i for i in range(TOKENS) if got[0][i:i + 1] != want[0][i:i + 1]]
    width = len(want[1]) // TOKENS
    rows = [i for i in range(TOKENS) if got[1][i * width:(i + 1) * width] != want[1][i * width:(i + 1) * width]]
    return f"ids differ at {places}, logits in rows {rows}, {len(got[1])} bytes of {len(want[1])}"


class SameBytes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """What plain decoding says, one request at a time, every expert in memory: {(prompt, drawing, profile): (ids, logits)}."""
        cls.golden = {}
        for profile in SERVERS["profile"]:
            folder = temp("golden-" + profile)
            plain = {"slots": EXPERTS, "profile": profile, "speculate": "off"}
            with Server(model(), *engine_flags(plain), "--logits", folder) as server:
                for prompt, drawing in itertools.product(PROMPTS, DRAWING):
                    cls.golden[prompt, drawing, profile] = complete(server, folder, prompt, drawing)

    @classmethod
    def texts(cls, profile):
        return [prompt_ids(p) + ids for (p, _, of), (ids, _) in cls.golden.items() if of == profile]

    def test_matrix(self):
        """Greedy and drawn, with penalties and without, both profiles, few slots and all, every source, each request in a pipeline of its own: ids and logits of
        plain decoding."""
        rows = pairwise(AXES)
        drafted = accepted = 0
        for row in rows:
            extra, env = source_flags(row["source"], self.texts(row["profile"]))
            with self.subTest(**row):
                out, logits = run_logits(model(), *flags(row), *extra, env=env)
                self.assertIsNone(difference((out["token_ids"], logits),
                                             self.golden[row["prompt"], row["drawing"], row["profile"]]))
                drafted += out["speculation"]["drafted"]
                accepted += out["speculation"]["accepted"]
        print(f"{len(rows)} combinations, {drafted} drafts, {accepted} stood", file=sys.stderr)
        self.assertGreater(accepted, len(rows))
        self.assertGreater(drafted, 2 * accepted - drafted)

    def test_product(self):
        """The same by servers, some requests alone and the others beside each other: prompts greedy and drawn, without drafts too; in
        full every prompt at each server's flags."""
        rows = pairwise(SERVERS) if not FULL else [dict(zip(SERVERS, v)) for v in itertools.product(*SERVERS.values())]
        # Where nothing is guessed there are no sources.
        rows = list({tuple(r.values()): r for r in (dict(r, source="-") if r["speculate"] == "off" else r for r in rows)}.values())
        asked = list(itertools.product(PROMPTS, DRAWING))
        answers = drafted = accepted = differences = 0
        for done, row in enumerate(rows):
            alone, beside = (asked[:48], asked) if FULL else (asked[done % 12:48:12], asked[done % 3::3])
            folder = temp("logits")
            extra, env = source_flags(row["source"], self.texts(row["profile"]))
            with self.subTest(**row), Server(model(), *engine_flags(row), *extra, "--logits", folder, env=env) as server:
                ask = lambda a: difference(complete(server, folder, *a), self.golden[*a, row["profile"]])
                wrong = [(*a, d) for a in alone if (d := ask(a))]
                with concurrent.futures.ThreadPoolExecutor(BESIDE) as pool:
                    wrong += [(*a, "beside others", d) for a, d in zip(beside, pool.map(ask, beside)) if d]
                answers += len(alone) + len(beside)
                differences += len(wrong)
                router = counters("router")
                tried, stood = (sum(router.get(f"{what}_{i}", 0) for i in range(1, 8)) for what in ("drafted", "accepted"))
                drafted += tried
                accepted += stood
                if FULL:
                    print(f"{done + 1} of {len(rows)} servers: {row}, {tried} drafts, {stood} stood, {len(wrong)} differences",
                          file=sys.stderr, flush=True)
                self.assertEqual(wrong, [])
                self.assertEqual(os.listdir(folder), [])
                if row["speculate"] == "off":
                    self.assertEqual(tried, 0)
                elif row["speculate"] != "auto":
                    # Look-up finds little in answers as short as these. Of seven drafts that each stand with .6, 1.5 do.
                    self.assertGreater(tried, 0 if row["source"] == "look-up" else len(beside))
                    if row["source"] == "script":
                        self.assertGreater(stood, tried // 8)
                    elif row["source"] == "nonsense":
                        self.assertLess(stood, tried // 10)
                        self.assertGreater(router["drafts_wrong"], 0)
                    else:
                        self.assertGreater(stood, 0)
            os.rmdir(folder)
        print(f"{len(rows)} servers, {answers} answers, {drafted} drafts, {accepted} stood, {differences} differences",
              file=sys.stderr)

    def test_other_attention(self):
        """Windows, latents, latents chosen by an indexer, naive prompts: guessed rows have the bits of plain ones."""
        for name, options in (("mixtral_window", ()), ("deepseek_v3_fp8", ("--kv", "bf16")), ("glm_moe_dsa_published", ()),
                              ("deepseek_v3_published", ("--prefill", "naive"))):
            folder = model("oracle/" + name)
            with open(os.path.join(folder, "manifest.json")) as f:
                vocab = json.load(f)["spec"]["vocab"]
            ids = [i * 37 % vocab for i in range(70)]
            args = [folder, "--ids", ",".join(map(str, ids)), "-n", 20, "--ignore-eos", "--ctx", 96, *options]
            want, want_logits = run_logits(*args, "--speculate", "off")
            for accept in (1.0, 0.5):
                env = {"WISP_DRAFT_SCRIPT": script(name, f"accept {accept} seed 3", ids + want["token_ids"])}
                for k in (1, 5, 7):
                    with self.subTest(model=name, accept=accept, k=k):
                        got, logits = run_logits(*args, "--speculate", k, env=env)
                        self.assertEqual(got["token_ids"], want["token_ids"])
                        self.assertTrue(logits == want_logits, "logits differ in bits")
                        self.assertGreater(got["speculation"]["accepted"], 0)

    def test_several_at_a_time(self):
        """Four streams with drafts beside each other: the events of each are those that it has alone and plain."""
        prompts = reference()["prompts"][:4]
        bodies = [{"messages": p["messages"], "return_token_ids": True, "temperature": t, "seed": 5}
                  for p, t in zip(prompts, (0, 0.8, 0, 1.0))]
        with Server(model(), "--speculate", "off") as server:
            want = [server.post("/v1/chat/completions", b)[1]["choices"] for b in bodies]
        with Server(model(), "--speculate", "3", "--draft", model(DRAFT)) as server:
            for _ in range(3):
                got = [None] * 4
                ask = lambda i: got.__setitem__(i, server.post("/v1/chat/completions", bodies[i])[1]["choices"])
                threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
                [t.start() for t in threads]
                [t.join() for t in threads]
                self.assertEqual(got, want)
            self.assertGreater(counters("router")["draft_steps"], 0)

    def test_a_draft_of_another_vocabulary_is_refused(self):
        p = wisp("run", model(), "-p", "What is a dog?", "--draft", model("oracle/qwen3_published"), check=False)
        self.assertEqual(p.returncode, 1, p.stderr)
        self.assertIn("--draft", p.stderr)
        p = wisp("run", model(), "-p", "What is a dog?", "--speculate", "8", check=False)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("--speculate", p.stderr)


class Law(unittest.TestCase):
    def test_where_drawn_answers_leave_the_likeliest(self):
        """At T = 1, top-p .9: how long drawn answers follow the greedy one has the same law with drafts and without (chi-square over
        two sets of seeds), and equal seeds give equal answers."""
        n, length = (10000, 12) if FULL else (600, 12)
        # The bundled model is sure of its answers; of what follows arbitrary ids it is not.
        body = lambda seed: {"prompt": prompt_ids("random 2"), "max_tokens": length, "temperature": 1.0, "top_p": 0.9,
                             "seed": seed, "ignore_eos": True, "return_token_ids": True}
        ids = lambda server, b: server.post("/v1/completions", b)[1]["choices"][0]["token_ids"]
        with Server(model(), "--speculate", "off") as server:
            greedy = ids(server, dict(body(1), temperature=0))
            plain = [ids(server, body(seed)) for seed in range(1, n + 1)]
        with Server(model(), "--speculate", "3", "--draft", model(DRAFT)) as server:
            for seed in range(1, 51):
                self.assertEqual(ids(server, body(seed)), plain[seed - 1])
            drafted = [ids(server, body(seed)) for seed in range(n + 1, 2 * n + 1)]
            self.assertGreater(sum(counters("router").get(f"accepted_{i}", 0) for i in range(1, 8)), n // 20)
        leaves = lambda answer: next((i for i, (a, b) in enumerate(zip(answer, greedy)) if a != b), length)
        tables = [[sum(leaves(a) == i for a in answers) for i in range(length + 1)] for answers in (plain, drafted)]
        # Rare places together: each cell has 5 expected.
        cells = []
        for a, b in zip(*tables):
            if cells and sum(cells[-1]) < 10:
                cells[-1] = cells[-1][0] + a, cells[-1][1] + b
            else:
                cells.append((a, b))
        while len(cells) > 1 and sum(cells[-1]) < 10:
            a, b = cells.pop()
            cells[-1] = cells[-1][0] + a, cells[-1][1] + b
        chi = sum((a - b) ** 2 / (a + b) for a, b in cells)
        # 1 % points of chi-square, 1 to 12 degrees of freedom.
        limit = [6.63, 9.21, 11.34, 13.28, 15.09, 16.81, 18.48, 20.09, 21.67, 23.21, 24.72, 26.22][len(cells) - 2]
        print(f"first divergence: {tables[0]} plain, {tables[1]} with drafts, chi-square {chi:.2f} < {limit}", file=sys.stderr)
        self.assertGreater(len(cells), 3)
        self.assertLess(chi, limit)


class Opening(unittest.TestCase):
    """A speculator that comes late: it reads its script from a pipe into which nobody has written yet."""
    IDS = prompt_ids("random 1")
    ARGS = ["--ids", ",".join(map(str, IDS)), "-n", str(TOKENS), "--ignore-eos"]

    def start(self, name, speculate):
        pipe = temp("pipe-" + name)
        os.mkfifo(pipe)
        run = subprocess.Popen([program("wisp"), "run", model(), *self.ARGS, "--json", "--speculate", speculate],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=dict(os.environ, WISP_DRAFT_SCRIPT=pipe))
        self.addCleanup(lambda: run.poll() is None and run.kill())
        return run, pipe

    def states(self, run):
        """What a look at a run that goes on shows of its stages; empty before there are any."""
        p = wisp("stat", "--json", check=False)
        self.assertIsNone(run.poll(), p.stderr)
        return {s["stage"]: s["state"] for s in json.loads(p.stdout)["stages"]} if p.returncode == 0 else {}

    def answer(self, run):
        out, errors = run.communicate(timeout=WATCHDOG)
        self.assertEqual(run.returncode, 0, errors)
        return json.loads(out.splitlines()[-1])

    def test_a_number_waits_for_its_maker(self):
        want = run_json(model(), *self.ARGS, "--speculate", "off")["token_ids"]
        run, pipe = self.start("number", "3")
        starting = dict.fromkeys(("gateway", "router", "loader", "compute"), "ready") | {"speculator": "starting"}
        while self.states(run) != starting:
            pass
        for _ in range(20):                                  # long enough for an answer that would not wait
            self.assertEqual(self.states(run), starting)
        with open(pipe, "w") as f:
            f.write("accept 1.0 seed 3\n" + " ".join(map(str, self.IDS + want)) + "\n")
        got = self.answer(run)
        self.assertEqual(got["token_ids"], want)
        self.assertGreater(got["speculation"]["accepted"], TOKENS // 2)

    def test_a_number_waits_for_no_maker_that_fails(self):
        run, pipe = self.start("fails", "3")
        with open(pipe, "w") as f:
            f.write("neither of the two\n")
        got = self.answer(run)
        self.assertEqual((len(got["token_ids"]), got["speculation"]["drafted"]), (TOKENS, 0))

    def test_what_pays_waits_for_nobody(self):
        run, _ = self.start("auto", "auto")
        got = self.answer(run)
        self.assertEqual((len(got["token_ids"]), got["speculation"]["drafted"]), (TOKENS, 0))


class Cancelled(unittest.TestCase):
    def test_at_every_phase(self):
        """Connections that close at random places while drafts are made and tried: no record, page or descriptor is lost, and
        the next answer has the same bytes."""
        n = 1000 if FULL else 150
        rng = random.Random(4)
        prompts = reference()["prompts"]
        body = {"messages": prompts[0]["messages"], "return_token_ids": True, "temperature": 0}
        with Server(model(), "--speculate", "3", "--draft", model(DRAFT), "--experts-ram", 64 * STRIDE) as server:
            want = server.post("/v1/chat/completions", body)[1]["choices"]

            def descriptors():
                while connections(server.port):
                    pass                                     # the gateway closes its end when it has seen that of the client
                return {name: len(os.listdir(f"/proc/{pids_below(server.process.pid, name)[0]}/fd"))
                        for name in ("wisp-router", "wisp-speculator", "wisp-compute", "wisp-loader", "wisp-gateway")}
            before = descriptors()
            for _ in range(n):
                s = socket.create_connection(("127.0.0.1", server.port))
                data = json.dumps({"messages": prompts[rng.randrange(12)]["messages"], "stream": True, "max_tokens": 200,
                                   "ignore_eos": True, "temperature": rng.choice([0, 1.0]), "seed": 3,
                                   "frequency_penalty": rng.choice([0, 0.5])})
                s.sendall((f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                           f"Content-Length: {len(data)}\r\n\r\n" + data).encode())
                seen, stop_at = b"", rng.randrange(0, 40)
                while seen.count(b"data: ") < stop_at:
                    more = s.recv(4096)
                    if not more:
                        break
                    seen += more
                s.close()
            # The next answer comes when the cancelled ones have gone; a place in the batch was free for it.
            self.assertEqual(server.post("/v1/chat/completions", body)[1]["choices"], want)
            self.assertGreater(counters("router")["draft_steps"], 0)
            for _ in range(20):                              # each needs a record: none was lost
                self.assertEqual(server.post("/v1/chat/completions", body)[1]["choices"], want)
            self.assertEqual(descriptors(), before)
            running = [r for r in stat()["requests"] if r["state"] in ("running", "queued")]
            self.assertEqual(running, [])


if __name__ == "__main__":
    main()
