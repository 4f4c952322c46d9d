#!/usr/bin/env python3
"""Two drives against the sum of each alone: loop files throttled by blkio, so that the drive beneath does not matter. Needs root.

    tests/bench/stripes.py [--bin build/release/bin] [--mb-s 100] [--turns 7]

Prints, for each turn, GB/s of random experts from drive A, from drive B, and from a model divided over both, and the ratio of
the last to the sum of the first two; then its median. A's limit and B's are `--mb-s` and `--second-mb-s`."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../e2e"))
from loop_drive import LoopDrive, Throttle, possible  # noqa: E402


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bin", default=os.path.join(os.path.dirname(__file__), "../../build/release/bin"))
    p.add_argument("--mb-s", type=int, default=100)
    p.add_argument("--second-mb-s", type=int)
    p.add_argument("--turns", type=int, default=7)
    a = p.parse_args()
    if not possible():
        sys.exit("stripes.py: needs root, loop devices and a blkio group (cgroup v1)")
    rates = (a.mb_s * 1000000, (a.second_mb_s or a.mb_s) * 1000000)
    wisp = os.path.join(a.bin, "wisp")
    with tempfile.TemporaryDirectory(prefix="wisp-stripes-") as folder:
        drives, throttle = [], None
        try:
            drives = [LoopDrive(folder, name, 512) for name in ("a", "b")]
            throttle = Throttle(drives)
            model, stripe = os.path.join(drives[0].path, "model"), os.path.join(drives[1].path, "stripe")
            subprocess.run([wisp, "synth", "--like", "qwen3-30b", "--layers", "2", "--experts", "32", "--vocab", "4096",
                            "--out", model], check=True)
            subprocess.run([wisp, "stripe", model, "--to", stripe, "--shares", f"{rates[0]},{rates[1]}"], check=True)
            os.sync()
            for drive, rate in zip(drives, rates):
                with open(os.path.join(throttle.path, "blkio.throttle.read_bps_device"), "w") as f:
                    f.write(f"{drive.number} {rate}")

            def rate_of(turn, *what):
                out = subprocess.run([wisp, "bench", "stream", *what, "--pairs", "1", "--turn", turn, "--json"], check=True,
                                     capture_output=True, text=True, preexec_fn=throttle.enter).stdout
                return json.loads(out.strip().splitlines()[-1])

            ratios = []
            for turn in range(a.turns):
                both = rate_of("256M", model)               # each drive gives about as many bytes as alone
                size = str(both["extent_bytes"])
                alone = [rate_of("128M", "--size", size, "--dir", d.path, "--bank", "96M")["loader_gb_s"]["median"] for d in drives]
                ratios.append(both["loader_gb_s"]["median"] / sum(alone))
                print(f"A {alone[0]:.4f}  B {alone[1]:.4f}  both {both['loader_gb_s']['median']:.4f} GB/s  "
                      f"ratio {ratios[-1]:.3f}", flush=True)
            ratios.sort()
            print(f"median {statistics.median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f} over {a.turns} turns")
        finally:
            for d in drives:
                d.close()
            if throttle:
                throttle.close()


if __name__ == "__main__":
    main()
