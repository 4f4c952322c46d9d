"""Conversion holds two experts and 256 MiB at most, whatever the checkpoint has: in a memory cgroup of that size, on a
checkpoint whose embedding and fused expert tensors are each larger than that. `kill -9` at any byte and another run
give the bytes of a run that nothing happened to.

    large_conversion_test.py                a small checkpoint (0.9 GB), as CTest runs it
    large_conversion_test.py --full         12.7 GB, and the rate beside dd in the same minute, by hand
"""
import functools
import hashlib
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import unittest

from cgroup import Cgroup
from wisp_e2e import WATCHDOG, main, program, temp, wisp

MIB = 1 << 20
FULL = "--full" in sys.argv
SMALL = dict(hidden=1024, width=704, experts=128, layers=1, vocab=160_000, heads=8)
LARGE = dict(hidden=2048, width=1408, experts=64, layers=10, vocab=200_000, heads=16)
SHAPE = LARGE if FULL else SMALL
EXPERT = 3 * SHAPE["hidden"] * SHAPE["width"] * 2
CAP = 2 * EXPERT + 256 * MIB


def tensors():
    """name -> shape of a Qwen3-MoE checkpoint with fused experts; all bfloat16."""
    h, w, n, heads = SHAPE["hidden"], SHAPE["width"], SHAPE["experts"], SHAPE["heads"]
    yield "model.embed_tokens.weight", (SHAPE["vocab"], h)
    for i in range(SHAPE["layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (h,)
        for name, rows in (("q", heads * 128), ("k", 256), ("v", 256)):
            yield p + f"self_attn.{name}_proj.weight", (rows, h)
        yield p + "self_attn.o_proj.weight", (h, heads * 128)
        yield p + "self_attn.q_norm.weight", (128,)
        yield p + "self_attn.k_norm.weight", (128,)
        yield p + "post_attention_layernorm.weight", (h,)
        yield p + "mlp.gate.weight", (n, h)
        yield p + "mlp.experts.gate_up_proj", (n, 2 * w, h)
        yield p + "mlp.experts.down_proj", (n, h, w)
    yield "model.norm.weight", (h,)
    if FULL:
        yield "lm_head.weight", (SHAPE["vocab"], h)


@functools.cache
def source():
    """The checkpoint's folder and the bytes of its tensors."""
    folder = temp("large")
    os.makedirs(folder)
    config = dict(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=SHAPE["hidden"], head_dim=128,
        num_hidden_layers=SHAPE["layers"], num_attention_heads=SHAPE["heads"], num_key_value_heads=2,
        vocab_size=SHAPE["vocab"], max_position_embeddings=4096, num_experts=SHAPE["experts"], num_experts_per_tok=8,
        moe_intermediate_size=SHAPE["width"], intermediate_size=64, decoder_sparse_step=1, mlp_only_layers=[],
        norm_topk_prob=True, rms_norm_eps=1e-6, rope_theta=1e6, hidden_act="silu", tie_word_embeddings=not FULL)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    header, end = {}, 0
    for name, shape in tensors():
        size = 2
        for n in shape:
            size *= n
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[end, end + size])
        end += size
    text = json.dumps(header).encode()
    # Random bytes whose every second one is a sign and an exponent near 1/16; a prime length, so that no two rows
    # are alike.
    block = bytearray(os.urandom(2 * 4_194_301))
    block[1::2] = bytes(b & 0x80 | 0x3d for b in block[1::2])
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        left = end
        while left:
            left -= f.write(block[:min(left, len(block))])
        f.flush()
        os.fsync(f.fileno())
    assert FULL is False or end >= 12 * 10**9, end
    return folder, end


def hashes(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        digest = hashlib.blake2b()
        with open(os.path.join(folder, name), "rb") as f:
            while part := f.read(16 * MIB):
                digest.update(part)
        out[name] = digest.hexdigest()
    return out


def written(dst):
    """Bytes that are on their way to `dst`."""
    parent, total = os.path.dirname(dst), 0
    for folder in os.listdir(parent):
        if folder.startswith(os.path.basename(dst) + ".partial-"):
            try:
                total += sum(e.stat().st_size for e in os.scandir(os.path.join(parent, folder)))
            except FileNotFoundError:
                pass
    return total


def dd(*args):
    """Bytes per second, by dd's own count."""
    p = subprocess.run(["dd", "bs=16M", *args], capture_output=True, text=True, timeout=WATCHDOG, check=True)
    n, seconds = re.search(r"(\d+) bytes .*?, ([\d.e-]+) s", p.stderr).groups()
    return int(n) / float(seconds)


class LargeConversion(unittest.TestCase):
    def convert(self, src, dst, kill_at=None):
        """Runs a conversion in a cgroup of the cap, killed when `kill_at` bytes are written. Gives what it said, and None where it was
        over before it was seen to have written so much."""
        group = Cgroup(CAP)
        p = subprocess.Popen([program("wisp"), "convert", src, dst], stderr=subprocess.PIPE, text=True,
                             preexec_fn=group.enter)
        if kill_at is not None:
            running = lambda: os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            while running() and written(dst) < kill_at:
                select.select([], [], [], 0.002)  # looks for bytes on the drive again
            os.kill(p.pid, signal.SIGKILL)
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        text = p.stderr.read()
        p.stderr.close()
        if group.path is None:
            print("no memory cgroup can be made here: the peak is what the process held", file=sys.stderr)
        else:
            self.assertEqual(group.oom_kills(), 0)
        group.close()
        self.assertLessEqual(usage.ru_maxrss * 1024, CAP)
        if kill_at is None:
            self.assertEqual(p.returncode, 0, text)
            print(f"cap {CAP / MIB:.0f} MiB, held at most {usage.ru_maxrss / 1024:.0f} MiB; {text.splitlines()[-1]}",
                  file=sys.stderr)
        elif p.returncode == 0:
            return None
        else:
            self.assertEqual(p.returncode, -signal.SIGKILL, text)
        return text

    def test_stays_in_its_cap_and_goes_on_after_every_kill(self):
        src, size = source()
        embedding = 2 * SHAPE["vocab"] * SHAPE["hidden"]
        self.assertGreater(min(embedding, size and 2 * EXPERT // 3 * SHAPE["experts"]), CAP)
        whole = temp("whole")
        self.convert(src, whole)
        expected = hashes(whole)
        shutil.rmtree(whole)
        dst = temp("killed")
        for share in (0.02, 0.3, 0.55, 0.9):
            while self.convert(src, dst, kill_at=int(share * size)) is None:
                shutil.rmtree(dst)
        text = self.convert(src, dst)
        self.assertIn("went on where an earlier run ended", text)
        self.assertEqual(hashes(dst), expected)
        self.assertEqual(wisp("verify", dst).returncode, 0)
        # A bit that flips later is found, and its expert named.
        path = os.path.join(dst, f"experts-{SHAPE['layers'] - 1:05d}.safetensors")
        with open(path, "r+b") as f:
            f.seek(-EXPERT - EXPERT // 2, os.SEEK_END)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 4]))
        p = wisp("verify", dst, check=False)
        self.assertNotEqual(p.returncode, 0)
        self.assertRegex(p.stdout + p.stderr, rf"layer {SHAPE['layers'] - 1} expert {SHAPE['experts'] - 2}\b")
        shutil.rmtree(dst)

    @unittest.skipUnless(FULL, "figures of this machine's drive; by hand")
    def test_rate_beside_dd(self):
        src, size = source()
        ratios = []
        for i in range(7):
            file, copy = os.path.join(src, "model.safetensors"), temp("copy")
            blocks = f"count={size // 4 // (16 * MIB)}"
            os.sync()  # what earlier rounds left to write is theirs
            read = dd(f"if={file}", "of=/dev/null", blocks, f"skip={i * 100}", "iflag=direct")
            write = dd(f"if={file}", f"of={copy}", blocks, "conv=fsync")
            os.unlink(copy)
            subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=False)
            text = self.convert(src, temp("rate"))
            seconds = float(re.search(r" in ([\d.]+) s", text).group(1))
            shutil.rmtree(temp("rate"))
            ratios.append(size / seconds / min(read, write))
            print(f"read {read / 1e6:.0f} MB/s, write {write / 1e6:.0f} MB/s, conversion {size / seconds / 1e6:.0f} MB/s, "
                  f"ratio {ratios[-1]:.2f}", file=sys.stderr)
        print(f"ratios {sorted(round(r, 2) for r in ratios)}", file=sys.stderr)


if __name__ == "__main__":
    if FULL:
        sys.argv.remove("--full")
    main()
