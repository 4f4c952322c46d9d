"""Broken checkpoints and folders: each is refused by name, and nothing is left behind or taken down."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import unittest

from wisp_e2e import DATA, STRIDE, Server, main, model, temp, wisp

SOURCE = os.path.join(DATA, "oracle", "sharded")


def copy_of(source, name):
    dst = temp(name)
    shutil.rmtree(dst, ignore_errors=True)
    shutil.copytree(source, dst, ignore=shutil.ignore_patterns("expected*"))
    return dst


def edit_json(folder, file, change):
    path = os.path.join(folder, file)
    with open(path) as f:
        j = json.load(f)
    change(j)
    with open(path, "w") as f:
        json.dump(j, f)


def edit_header(path, change):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        rest = f.read()
    change(header)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + rest)


def first_shard(folder):
    return os.path.join(folder, sorted(f for f in os.listdir(folder) if f.endswith(".safetensors"))[0])


class Checkpoints(unittest.TestCase):
    def refused(self, folder, *words):
        dst = temp("never")
        p = wisp("convert", folder, dst, check=False)
        self.assertNotEqual(p.returncode, 0, "accepted")
        self.assertGreater(p.returncode, 0, "died by a signal: " + p.stderr)
        for w in words:
            self.assertIn(w.lower(), p.stderr.lower())
        self.assertFalse(os.path.exists(dst))
        self.assertEqual([f for f in os.listdir(os.path.dirname(dst)) if f.startswith("never")], [])

    def test_files(self):
        f = copy_of(SOURCE, "missing-shard")
        os.unlink(first_shard(f))
        self.refused(f, "00001")
        f = copy_of(SOURCE, "truncated")
        os.truncate(first_shard(f), os.path.getsize(first_shard(f)) - 100)
        self.refused(f, "00001")
        f = copy_of(SOURCE, "stale-index")
        edit_json(f, "model.safetensors.index.json", lambda j: j["weight_map"].update({"model.layers.9.no": "model-00001-of-00003.safetensors"}))
        self.refused(f, "layers.9")
        for length in (0, 7, 2 ** 63, 2 ** 64 - 1, 10 ** 9):
            f = copy_of(SOURCE, "header-length")
            with open(first_shard(f), "r+b") as s:
                s.write(struct.pack("<Q", length))
            self.refused(f, "00001")

    def test_headers(self):
        def case(name, change, *words, source=SOURCE):
            f = copy_of(source, name)
            edit_header(first_shard(f), change)
            self.refused(f, *words)

        def some(h):
            return next(k for k in sorted(h) if k != "__metadata__")
        case("bad-dtype", lambda h: h[some(h)].update(dtype="F13"), "F13")
        case("bad-offsets", lambda h: h[some(h)].update(data_offsets=[10, 5]), "00001")
        case("far-offsets", lambda h: h[some(h)].update(data_offsets=[0, 2 ** 62]), "00001")
        case("bad-shape", lambda h: h[some(h)].update(shape=[2 ** 40, 2 ** 40]), "00001")
        case("negative", lambda h: h[some(h)].update(shape=[-1, 4]), "00001")
        case("unknown-tensor", lambda h: h.__setitem__("model.layers.0.surprise.weight", h.pop(some(h))), "surprise",
             source=os.path.join(DATA, "oracle", "odd_sizes"))

    def test_configs(self):
        def case(change, *words):
            f = copy_of(SOURCE, "config")
            edit_json(f, "config.json", change)
            self.refused(f, *words)
        case(lambda j: j.update(model_type="gpt9", architectures=["Gpt9"]), "gpt9")
        case(lambda j: j.update(rope_scaling={"rope_type": "spiral", "factor": 2}), "spiral")
        case(lambda j: j.update(hidden_act="swoosh"), "swoosh")
        for key, value in (("hidden_size", 0), ("hidden_size", -4), ("num_hidden_layers", 10 ** 9), ("num_attention_heads", 7),
                           ("num_experts_per_tok", 1000), ("vocab_size", 2 ** 40), ("rms_norm_eps", -1)):
            case(lambda j: j.update({key: value}))

    def test_not_a_number(self):
        f = copy_of(os.path.join(DATA, "oracle", "untied_bf16"), "nan")
        path = first_shard(f)
        with open(path, "r+b") as s:
            n = struct.unpack("<Q", s.read(8))[0]
            header = json.loads(s.read(n))
            name = next(k for k in sorted(header) if "experts" in k)
            s.seek(8 + n + header[name]["data_offsets"][0])
            s.write(b"\xff\x7f")
        self.refused(f, name)


class Folders(unittest.TestCase):
    def test_flipped_bit_fails_one_request_and_no_other(self):
        """Experts of one layer's file are damaged: requests that need them fail by name, the service stays."""
        broken = temp("damaged")
        shutil.copytree(model(), broken)
        victim = sorted(f for f in os.listdir(broken) if f.startswith("experts-"))[5]
        with open(os.path.join(broken, victim), "r+b") as f:
            for e in range(0, 32, 8):
                f.seek(-32 * STRIDE + e * STRIDE + 64, os.SEEK_END)
                byte = f.read(1)
                f.seek(-1, 1)
                f.write(bytes([byte[0] ^ 1]))
        with Server(broken, "--experts-ram", 64 * STRIDE) as server:
            status, out = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is a dog?"}]})
            self.assertEqual(status, 500)
            self.assertIn(victim, out["error"]["message"])
            self.assertIn("expert", out["error"]["message"])
            self.assertEqual(server.request("GET", "/health")[0], 200)

    def test_eio_of_a_true_device(self):
        """A file system on a loop device whose backing file is cut short gives a true EIO."""
        if os.geteuid() != 0:
            print("not root: EIO is tested by the loader's fault-injecting backend alone", file=sys.stderr)
            return
        image, mount = temp("eio.img"), temp("eio")
        os.makedirs(mount)
        with open(image, "wb") as f:
            f.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", image], check=True)
        if subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True).returncode != 0:
            print("no loop mount here: EIO is tested by the loader's fault-injecting backend alone", file=sys.stderr)
            return
        try:
            broken = os.path.join(mount, "model")
            shutil.copytree(model(), broken)
            subprocess.run(["sync", "-f", mount], check=True)
            subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
            where = subprocess.run(["filefrag", "-v", "-b4096", *[os.path.join(broken, f) for f in sorted(os.listdir(broken))
                                                                 if f.startswith("experts-")]],
                                   capture_output=True, text=True, check=True).stdout
            last = max(int(m.split("..")[0]) for m in re.findall(r"^ +\d+: +\d+\.\. +\d+: +(\d+\.\.)", where, re.M))
            os.truncate(image, last * 4096 + 8 * STRIDE // 4096 * 4096)       # the last extents of one file are gone
            with Server(broken, "--experts-ram", 64 * STRIDE) as server:
                status, out = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is a dog?"}]})
                self.assertEqual(status, 500, out)
                self.assertIn("experts-", out["error"]["message"])
                self.assertIn("Input/output error", out["error"]["message"])
                self.assertEqual(server.request("GET", "/health")[0], 200)
        finally:
            subprocess.run(["umount", mount], check=False)

    def test_manifest_that_lies(self):
        for name, change in (("stride", lambda j: j.update(layout_version=99)),):
            f = temp("lying-" + name)
            shutil.copytree(model(), f)
            edit_json(f, "manifest.json", change)
            p = wisp("run", f, "-p", "hi", check=False)
            self.assertGreater(p.returncode, 0)
            self.assertIn("convert", p.stderr)
        f = temp("short-file")
        shutil.copytree(model(), f)
        victim = os.path.join(f, sorted(x for x in os.listdir(f) if x.startswith("experts-"))[0])
        os.truncate(victim, os.path.getsize(victim) - STRIDE)
        p = wisp("run", f, "-p", "hi", check=False)
        self.assertGreater(p.returncode, 0)
        self.assertIn(os.path.basename(victim), p.stderr)

    def test_an_instruction_set_that_is_none(self):
        for command in (["run", model(), "-p", "x"], ["bench", "kernels", "--help"]):
            p = wisp(*command, env={"WISP_ISA": "nonsense"}, check=False)
            self.assertEqual((p.returncode, p.stdout), (1, ""))
            self.assertRegex(p.stderr, "WISP_ISA=nonsense is no instruction set that runs here: ref")

    def test_prompt_longer_than_the_context(self):
        p = wisp("run", model(), "-p", "word " * 3000, check=False)
        self.assertGreater(p.returncode, 0)
        self.assertIn("2048", p.stderr)


if __name__ == "__main__":
    main()
