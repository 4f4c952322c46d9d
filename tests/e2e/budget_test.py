"""`--ram` means what it says: in a memory cgroup of exactly that size nothing is killed, in one of twice that size the
peak stays below it."""
import os
import re
import subprocess
import sys
import unittest

from wisp_e2e import WATCHDOG, main, model, program, run_json, temp, wisp

MIB = 1 << 20
V1 = "/sys/fs/cgroup/memory"
BIG = 512


class Cgroup:
    """A memory cgroup (v1 or v2) of `limit` bytes, or None where this machine lets us make none."""

    def __init__(self, limit):
        self.path = None
        if os.path.isdir(V1) and os.access(V1, os.W_OK):
            self.path, self.v1 = os.path.join(V1, f"wisp-test-{os.getpid()}-{limit}"), True
        elif os.path.exists("/sys/fs/cgroup/cgroup.controllers") and os.access("/sys/fs/cgroup", os.W_OK):
            self.path, self.v1 = f"/sys/fs/cgroup/wisp-test-{os.getpid()}-{limit}", False
        if self.path:
            try:
                os.mkdir(self.path)
                self.write("memory.limit_in_bytes" if self.v1 else "memory.max", limit)
            except OSError:
                self.path = None

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def read(self, name):
        with open(os.path.join(self.path, name)) as f:
            return f.read()

    def peak(self):
        return int(self.read("memory.max_usage_in_bytes" if self.v1 else "memory.peak"))

    def oom_kills(self):
        text = self.read("memory.oom_control" if self.v1 else "memory.events")
        return int(re.search(r"oom_kill (\d+)", text).group(1))

    def run(self, args):
        def enter():
            with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
                f.write(str(os.getpid()))
        return subprocess.run(args, capture_output=True, text=True, timeout=WATCHDOG, preexec_fn=enter)

    def close(self):
        if self.path:
            os.rmdir(self.path)


def big_model():
    """A bank of at least 1 GiB: 8 layers x 64 experts of 2.65 MB."""
    dst = temp("big")
    if not os.path.exists(dst):
        wisp("synth", "--like", "qwen3-30b", "--layers", 8, "--experts", 64, "--vocab", 4096, "--out", dst)
    bank = sum(os.path.getsize(os.path.join(dst, f)) for f in os.listdir(dst) if f.startswith("experts-"))
    assert bank >= 1 << 30, bank
    return dst


class Budget(unittest.TestCase):
    def test_bank_larger_than_ram(self):
        folder = big_model()
        args = [program("wisp"), "run", folder, "--ids", "1,2,3,4,5", "-n", "12", "--ignore-eos", "--ram", f"{BIG}M",
                "--ctx", "512", "--json"]
        free = run_json(folder, "--ids", "1,2,3,4,5", "-n", 12, "--ignore-eos", "--ctx", 512)
        exact = Cgroup(BIG * MIB)
        if exact.path is None:
            print("no memory cgroup can be made here: peaks are WISP's own count", file=sys.stderr)
            out = run_json(folder, "--ids", "1,2,3,4,5", "-n", 12, "--ignore-eos", "--ram", f"{BIG}M", "--ctx", 512)
            self.assertEqual(out["token_ids"], free["token_ids"])
            self.assertLessEqual(out["ram_peak_bytes"], BIG * MIB)
            return
        import json
        p = exact.run(args)
        kills, peak_exact = exact.oom_kills(), exact.peak()
        exact.close()
        self.assertEqual((p.returncode, kills), (0, 0), p.stderr)
        self.assertEqual(json.loads(p.stdout.splitlines()[-1])["token_ids"], free["token_ids"])
        double = Cgroup(2 * BIG * MIB)
        p = double.run(args)
        peak = double.peak()
        double.close()
        self.assertEqual(p.returncode, 0, p.stderr)
        print(f"budget {BIG} MiB: peak {peak / MIB:.1f} MiB in twice that, {peak_exact / MIB:.1f} in exactly that", file=sys.stderr)
        self.assertLessEqual(peak, BIG * MIB)
        self.assertGreaterEqual(peak, 0.95 * BIG * MIB)

    def test_smallest_budget_works_and_a_smaller_one_is_refused_with_it(self):
        p = wisp("run", model(), "-p", "What is a dog?", "--ram", "8M", check=False)
        self.assertNotEqual(p.returncode, 0)
        found = re.search(r"needs at least .*?--ram (\S+?)[).,\s]", p.stderr)
        self.assertTrue(found, p.stderr)
        smallest = found.group(1)
        out = run_json(model(), "-p", "What is a dog?", "--ram", smallest)
        self.assertTrue(out["text"].startswith("dog (noun)"))
        self.assertLessEqual(out["ram_peak_bytes"], out["ram_budget_bytes"])
        print(f"smallest budget of the bundled model: {smallest}, peak {out['ram_peak_bytes'] / MIB:.1f} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
