"""`wisp eval`: scores that an oracle gives too, and what cannot be scored."""
import array
import json
import math
import os
import shutil
import struct
import unittest

from wisp_e2e import DATA, main, model, temp, wisp


def tensor(folder, name):
    """A tensor of an oracle's expected.safetensors: its shape and its numbers."""
    with open(os.path.join(DATA, "oracle", folder, "expected.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        begin, end = header[name]["data_offsets"]
        f.seek(begin, os.SEEK_CUR)
        return header[name]["shape"], array.array({"I64": "q", "F32": "f"}[header[name]["dtype"]], f.read(end - begin))


class Eval(unittest.TestCase):
    def eval(self, folder, *args):
        return json.loads(wisp("eval", folder, *args, "--json").stdout)

    def test_nats_are_those_of_the_oracle(self):
        """96 positions, so more than one step; the sum of -ln p over the oracle's own logits."""
        for case in ("mixtral_published", "deepseek_v3_fp8", "int4_asymmetric"):
            _, ids = tensor(case, "input_ids")
            (_, vocab), logits = tensor(case, "logits")
            want = 0.0
            for t in range(len(ids) - 1):
                row = logits[t * vocab:(t + 1) * vocab]
                most = max(row)
                want += most + math.log(sum(math.exp(x - most) for x in row)) - row[ids[t + 1]]
            path = temp("ids-" + case)
            with open(path, "w") as f:
                f.write(",".join(map(str, ids)) + "\n\n")
            got = self.eval(model("oracle/" + case), "--file", path, "--ids", "--window", 128, "--profile", "exact")
            self.assertEqual(got["tokens"], len(ids) - 1)
            self.assertAlmostEqual(got["nats_per_token"], want / (len(ids) - 1), delta=1e-3)

    def test_windows_lines_and_profiles(self):
        folder, path = model("oracle/int4_asymmetric"), temp("ids-lines")
        with open(path, "w") as f:
            f.write("1 2 3 4 5 6 7 8 9 10\n7\n11,12,13\n")
        whole = self.eval(folder, "--file", path, "--ids", "--against", "exact", "--profile", "exact")
        self.assertEqual((whole["tokens"], whole["mean_divergence"], whole["same_first"]), (11, 0.0, 1.0))
        self.assertEqual(self.eval(folder, "--file", path, "--ids", "--window", 4)["tokens"], 3 + 3 + 1 + 2)
        self.assertEqual(self.eval(folder, "--file", path, "--ids", "--tokens", 5)["tokens"], 4)
        fast = self.eval(folder, "--file", path, "--ids", "--profile", "fast", "--against", "exact")
        self.assertGreater(fast["mean_divergence"], 0.0)
        self.assertNotEqual(fast["nats_per_token"], whole["nats_per_token"])

    def test_damage_is_seen(self):
        folder = temp("damaged")
        shutil.copytree(model("oracle/int4_asymmetric"), folder)
        path = temp("three")
        with open(path, "w") as f:
            f.write("1,2,3\n")
        for name in ("dense.safetensors", "experts-00001.safetensors"):
            with open(os.path.join(folder, name), "r+b") as f:
                size = os.path.getsize(f.name)
                f.seek(4096 if name.startswith("dense") else 0)
                bytes_there = f.read()
                f.seek(size - len(bytes_there))
                f.write(bytes(b ^ 1 for b in bytes_there) if name.startswith("dense") else
                        bytes_there[:4096] + bytes(b ^ 1 for b in bytes_there[4096:]))
            p = wisp("eval", folder, "--file", path, "--ids", check=False)
            self.assertEqual(p.returncode, 1)
            self.assertIn("does not match its checksum", p.stderr)
            shutil.copy(os.path.join(model("oracle/int4_asymmetric"), name), os.path.join(folder, name))

    def test_text_through_the_tokenizer(self):
        path = temp("text")
        with open(path, "w") as f:
            f.write("What is a dog?\n" * 3)
        self.assertGreater(self.eval(model(), "--file", path)["tokens"], 10)

    def test_what_cannot_be_scored(self):
        path = temp("no-ids")
        for text, args, says in (("1,2,x", ("--ids",), "line 1: 'x' is no token id"), ("", ("--ids",), "no two tokens"),
                                 ("1,999999", ("--ids",), "line 1: id 999999 is outside"),
                                 ("1,2", ("--ids", "--window", 1 << 20), "--window is 1048576, but the model has")):
            with open(path, "w") as f:
                f.write(text)
            p = wisp("eval", model(), "--file", path, *args, check=False)
            self.assertEqual(p.returncode, 1)
            self.assertIn(says, p.stderr)


if __name__ == "__main__":
    main()
