"""What the cache learns outlives a run, warms the next one, and changes no byte of an answer."""
import json
import os
import shutil
import stat
import time
import unittest

from wisp_e2e import EXPERTS, STRIDE, WATCHDOG, Server, main, model, pids_below, run_json, temp, wisp

PROMPT = ",".join(str(7 * i % 4093) for i in range(1, 60))
# Each token misses, so that the loader has counted it when the answer is there; and no idle time is used for the drive's figures.
SMALL = ["--experts-ram", EXPERTS // 8 * STRIDE, "--no-drive-probe"]
FEW = ["--ids", PROMPT, "-n", 24, "--ignore-eos", "--experts-ram", EXPERTS // 2 * STRIDE, "--no-drive-probe"]


def tree(folder):
    """Every path below `folder` with size and time of change."""
    out = {}
    for where, _, files in os.walk(folder):
        for name in files:
            s = os.stat(os.path.join(where, name))
            out[os.path.join(where, name)] = (s.st_size, s.st_mtime_ns)
    return out


class LearnedCache(unittest.TestCase):
    def setUp(self):
        self.state = temp("state-" + self.id().rsplit(".", 1)[1])
        self.env = {"XDG_STATE_HOME": self.state}
        self.folder = os.path.join(self.state, "wisp", "learned")

    def show(self):
        return json.loads(wisp("cache", "show", model(), "--json", env=self.env).stdout)

    def test_it_is_kept_shown_and_forgotten(self):
        self.assertEqual(self.show()["experts_seen"], 0)
        first = run_json(model(), *FEW, env=self.env)
        seen = self.show()
        self.assertGreater(seen["experts_seen"], 0)
        self.assertEqual(oct(stat.S_IMODE(os.stat(seen["file"]).st_mode)), "0o600")
        second = run_json(model(), *FEW, env=self.env)
        self.assertEqual(first["token_ids"], second["token_ids"])
        self.assertGreater(self.show()["tokens"], seen["tokens"])
        wisp("cache", "reset", model(), env=self.env)
        self.assertEqual(tree(self.state), {})
        self.assertEqual(self.show()["experts_seen"], 0)

    def test_a_reset_holds_while_an_engine_runs(self):
        def answer(server):
            status, _, _ = server.request("POST", "/v1/completions",
                                          {"prompt": "an apple is", "max_tokens": 40, "ignore_eos": True})
            self.assertEqual(status, 200)

        with Server(model(), *SMALL, env=self.env) as server:
            for _ in range(3):
                answer(server)
            before = self.show()["tokens"]
            self.assertGreater(before, 40)
            wisp("cache", "reset", model(), env=self.env)
            answer(server)
        self.assertLess(self.show()["tokens"], before, "what was counted before the reset is forgotten")

    def test_two_engines_add_to_one_file(self):
        body = {"prompt": "an apple is", "max_tokens": 60, "ignore_eos": True}
        with Server(model(), *SMALL, env=self.env) as a:
            for _ in range(3):
                self.assertEqual(a.post("/v1/completions", body)[0], 200)
        alone = self.show()["tokens"]
        wisp("cache", "reset", model(), env=self.env)
        with Server(model(), *SMALL, env=self.env) as a, Server(model(), *SMALL, env=self.env) as b:
            for _ in range(3):
                for server in (a, b):
                    self.assertEqual(server.post("/v1/completions", body)[0], 200)
        self.assertGreater(self.show()["tokens"], 1.5 * alone)
        self.assertEqual(len(tree(self.state)), 1, "no leavings")

    def test_off_means_no_file(self):
        run_json(model(), *FEW, "--no-learned-cache", env=self.env)
        self.assertEqual(tree(self.state), {})
        run_json(model(), *FEW, env=self.env)
        before = tree(self.state)
        self.assertEqual(len(before), 1)
        run_json(model(), *FEW, "--no-learned-cache", env=self.env)
        run_json(model(), *FEW, "--trace", temp("cold.csv"), env=self.env)
        self.assertEqual(tree(self.state), before)

    def test_the_drive_is_probed_in_idle_time_and_never_with_a_flag(self):
        file = os.path.join(self.state, "wisp", "drives.json")

        def told(server):
            """The file that the loader was told of."""
            (pid,) = pids_below(server.process.pid, "wisp-loader")
            with open(f"/proc/{pid}/environ", "rb") as f:
                (value,) = [v[12:] for v in f.read().split(b"\0") if v.startswith(b"WISP_DRIVES=")]
            return value.decode()

        for flag in ("--no-drive-probe", "--no-learned-cache"):
            with self.subTest(flag=flag), Server(model(), flag, env=self.env) as server:
                self.assertEqual(told(server), "")
        with Server(model(), env=self.env) as server:
            self.assertEqual(told(server), file)
            end = time.monotonic() + WATCHDOG
            while not os.path.exists(file):
                self.assertLess(time.monotonic(), end)
        with open(file) as f:
            (sizes,) = json.load(f).values()
        self.assertEqual(list(sizes), [str(STRIDE)])
        before = tree(self.state)
        run_json(model(), *FEW, "--no-learned-cache", env=self.env)
        self.assertEqual(tree(self.state), before)

    def test_answers_are_the_same_whatever_the_file_says(self):
        plain = run_json(model(), *FEW, "--no-learned-cache", env=self.env)["token_ids"]
        run_json(model(), *FEW, env=self.env)
        file = self.show()["file"]
        with open(file, "rb") as f:
            good = f.read()
        for bad in (b"", good[:-1], good[:40], good + b"x", os.urandom(len(good)), b"WISPLRN9" + good[8:]):
            with open(file, "wb") as f:
                f.write(bad)
            p = wisp("run", model(), *FEW, "--json", env=self.env)
            self.assertEqual(json.loads(p.stdout.strip().splitlines()[-1])["token_ids"], plain)
            self.assertIn("is not used", p.stderr)
            self.assertGreater(self.show()["experts_seen"], 0, "a good one has replaced it")

    def test_a_folder_that_cannot_be_written_is_a_warning(self):
        plain = run_json(model(), *FEW, "--no-learned-cache", env=self.env)["token_ids"]
        os.makedirs(self.state)
        with open(os.path.join(self.state, "wisp"), "w"):
            pass                                            # a file where the folder should be
        p = wisp("run", model(), *FEW, "--json", env=self.env)
        self.assertEqual(json.loads(p.stdout.strip().splitlines()[-1])["token_ids"], plain)
        self.assertIn("is not kept", p.stderr)

    def test_it_is_shown_and_forgotten_while_a_stripe_is_away(self):
        folder, stripe = temp("striped-copy"), temp("stripe-away")
        shutil.copytree(model(), folder)
        wisp("stripe", folder, "--to", stripe)
        shutil.rmtree(stripe)
        wisp("cache", "show", folder, env=self.env)
        wisp("cache", "reset", folder, env=self.env)

    def tearDown(self):
        shutil.rmtree(self.state, ignore_errors=True)


if __name__ == "__main__":
    main()
