"""`--ram` means what it says: in a memory cgroup of exactly that size nothing is killed, in one of twice that size the
peak stays below it."""
import os
import re
import sys
import unittest

from cgroup import Cgroup
from wisp_e2e import main, model, program, run_json, temp, wisp

MIB = 1 << 20
BIG = 512


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

    def test_a_cgroup_below_the_plan_is_said_before_it_kills(self):
        group = Cgroup(440 * MIB)
        if group.path is None:
            self.skipTest("no memory cgroup can be made here")
        args = [program("wisp"), "run", big_model(), "--ids", "1,2", "-n", "2", "--ignore-eos", "--ctx", "512", "--ram"]
        p = group.run(args + ["480M"])
        self.assertEqual((p.returncode, group.oom_kills()), (1, 0), p.stderr)
        way = re.search(r"free of 440 MiB; give --ram (\d+M) or less", p.stderr)
        self.assertTrue(way, p.stderr)
        p = group.run(args + [way.group(1)])
        kills = group.oom_kills()
        group.close()
        self.assertEqual((p.returncode, kills), (0, 0), p.stderr)

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
