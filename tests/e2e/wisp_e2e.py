"""What the end-to-end tests share: the programs under test, a converted model, a server, a streaming client."""
import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading

BIN = os.environ.get("WISP_BIN", os.path.join(os.path.dirname(__file__), "../../build/release/bin"))
DATA = os.environ.get("WISP_DATA", os.path.join(os.path.dirname(__file__), "../data"))
STRIDE = 57344                      # bytes of an expert of the bundled model in the slab
EXPERTS = 256
WATCHDOG = 600                      # seconds after which a hanging program is a failure; no test judges time

_temp = tempfile.mkdtemp(prefix="wisp-e2e-")
os.environ["XDG_RUNTIME_DIR"] = os.path.join(_temp, "runtime")
os.makedirs(os.environ["XDG_RUNTIME_DIR"], mode=0o700)
os.environ["XDG_STATE_HOME"] = os.path.join(_temp, "state")     # what caches learn goes with the test


def temp(name):
    return os.path.join(_temp, name)


def clean_up():
    shutil.rmtree(_temp, ignore_errors=True)


def program(name):
    return os.path.join(BIN, name)


def wisp(*args, env=None, check=True, **kw):
    """Runs `wisp ARGS`; returns the finished process with text output."""
    full = dict(os.environ, **(env or {}))
    p = subprocess.run([program("wisp"), *map(str, args)], env=full, capture_output=True, text=True, timeout=WATCHDOG, **kw)
    if check and p.returncode != 0:
        raise AssertionError(f"wisp {args} ended with {p.returncode}:\n{p.stderr}")
    return p


_models = {}


def model(source="pocket-dictionary"):
    """The bundled checkpoint (or another folder of the data), converted once per process."""
    if source not in _models:
        dst = temp("model-" + source.replace("/", "-"))
        src = os.path.join(DATA, source)
        if os.path.exists(os.path.join(src, "expected.safetensors")):        # an oracle: its answers lie beside it
            copy = temp("source-" + source.replace("/", "-"))
            shutil.copytree(src, copy, ignore=shutil.ignore_patterns("expected*"))
            src = copy
        wisp("convert", src, dst)
        _models[source] = dst
    return _models[source]


def reference():
    with open(os.path.join(DATA, "pocket-dictionary", "reference.json")) as f:
        return json.load(f)


def run_json(*args, env=None):
    """`wisp run ARGS --json`: the object of the last line."""
    p = wisp("run", *args, "--json", env=env)
    return json.loads(p.stdout.strip().splitlines()[-1])


def run_logits(*args, env=None):
    """(object, raw logits bytes) of a run."""
    path = tempfile.mktemp(dir=_temp)
    out = run_json(*args, "--logits", path, env=env)
    with open(path, "rb") as f:
        rows = f.read()
    os.unlink(path)
    return out, rows


class Server:
    """`wisp serve` on a free port of 127.0.0.1."""

    def __init__(self, folder, *args, env=None):
        self.process = subprocess.Popen([program("wisp"), "serve", folder, "--port", "0", *map(str, args)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env=dict(os.environ, **(env or {})))
        self.errors = []
        self.reader = threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True)
        self.reader.start()
        first = self.process.stdout.readline()
        found = re.match(r"listening on http://127\.0\.0\.1:(\d+)", first)
        if not found:
            self.process.wait(WATCHDOG)
            raise AssertionError("no server: " + first + "".join(self.errors))
        self.port = int(found.group(1))
        self.curl = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(WATCHDOG)
        self.process.stdout.close()
        self.reader.join()
        self.process.stderr.close()

    def request(self, method, path, body=None, headers=None):
        """(status, headers, bytes)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WATCHDOG)
        data = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        c.request(method, path, data, dict({"Content-Type": "application/json"}, **(headers or {})))
        r = c.getresponse()
        out = r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
        c.close()
        return out

    def post(self, path, body, headers=None):
        """(status, parsed object)"""
        status, _, data = self.request("POST", path, body, headers)
        return status, json.loads(data)

    def complete(self, body, folder):
        """(ids, raw logits bytes) of one completion, of a server whose --logits is `folder`."""
        body = dict({"ignore_eos": True, "temperature": 0}, **body, return_token_ids=True, write_logits=True)
        status, headers, data = self.request("POST", "/v1/completions", body)
        assert status == 200, data
        path = os.path.join(folder, headers["x-wisp-request"])
        with open(path, "rb") as f:
            rows = f.read()
        os.unlink(path)
        return json.loads(data)["choices"][0]["token_ids"], rows

    def stream(self, path, body, headers=None):
        """The raw bytes of a whole event stream."""
        status, _, data = self.request("POST", path, dict(body, stream=True), headers)
        assert status == 200, data
        return data


def stat():
    """What `wisp stat` sees of the one run that there is."""
    return json.loads(wisp("stat", "--json").stdout)


def stages():
    return {s["stage"]: s for s in stat()["stages"]}


def counters(stage):
    """Those that have counted something."""
    return stages()[stage]["counters"]


def events(raw):
    """[(id, data)] of an event stream's bytes."""
    out = []
    for block in raw.decode().split("\n\n"):
        fields = dict(l.split(": ", 1) for l in block.splitlines() if ": " in l and not l.startswith(":"))
        if "data" in fields:
            out.append((fields.get("id"), fields["data"]))
    return out


def pairwise(axes, seed=3):
    """A small set of rows in which every pair of values of two axes occurs (greedy)."""
    names = list(axes)
    missing = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in axes[a] for y in axes[b]}
    rng = random.Random(seed)
    rows = []
    while missing:
        best, gain = None, -1
        for _ in range(60):
            (a, x), (b, y) = rng.choice(sorted(missing, key=repr))
            row = {n: rng.choice(axes[n]) for n in names}
            row[a], row[b] = x, y
            g = sum(((p, row[p]), (q, row[q])) in missing for p, q in itertools.combinations(names, 2))
            if g > gain:
                best, gain = row, g
        rows.append(best)
        missing -= {((p, best[p]), (q, best[q])) for p, q in itertools.combinations(names, 2)}
    return rows


def floats(raw):
    return struct.unpack("<%df" % (len(raw) // 4), raw)


def pids_below(parent, program_name):
    """Pids of running programs of that name among the descendants of the process `parent`."""
    children = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                text = f.read()
        except OSError:
            continue
        comm, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
        children.setdefault(int(rest[1]), []).append((int(pid), comm))
    out, open_ = [], [parent]
    while open_:
        for pid, comm in children.get(open_.pop(), []):
            open_.append(pid)
            if comm == program_name[:15]:
                out.append(pid)
    return out


def main():
    import unittest
    try:
        result = unittest.main(verbosity=2, exit=False).result
    finally:
        clean_up()
    sys.exit(0 if result.wasSuccessful() else 1)
