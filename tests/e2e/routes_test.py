"""Routers made to follow a trace: what the engine records is what was given."""
import csv
import os
import re
import statistics
import unittest

from wisp_e2e import DATA, main, run_json, temp, wisp

TRACE = os.path.join(DATA, "traces", "qwen-every-4th-layer.route.csv")
SHAPE = ["--layers", 4, "--hidden", 256, "--heads", 4, "--kv-heads", 2, "--head-dim", 32, "--width", 64, "--vocab", 400,
         "--dense-format", "int4"]
SOURCES = [0, 4, 7, 11]                     # of the trace's 12 layers, spread over the model's 4
PROMPT = list(range(8))


def rows(path):
    """{(phase, step): {layer: [experts by rank]}}, in the order of the file."""
    with open(path) as f:
        lines = [line for line in f if line[0] not in "#t"]
    out = {}
    for _, phase, step, layer, _, expert, *_ in csv.reader(lines):
        out.setdefault((int(phase), int(step)), {}).setdefault(int(layer), []).append(int(expert))
    return out


def made(name, *args):
    folder = temp(name)
    return folder, wisp("synth", "--out", folder, *SHAPE, *args).stderr


def recorded(folder, tokens, *args):
    """The routes of ids 0, 1, .. , of the prompt and of what is decoded."""
    file = folder + ".csv"
    wisp("trace", "record", folder, "--out", file, "--ids", ",".join(map(str, PROMPT)), "-n", tokens, "--temp", 0,
         "--ignore-eos", *args)
    routes = list(rows(file).values())
    assert len(routes) == len(PROMPT) + tokens - 1, f"{len(routes)} tokens"     # the last one is not computed
    return routes


class Routes(unittest.TestCase):
    def test_the_engine_chooses_what_the_trace_says(self):
        given = list(rows(TRACE).values())
        folder, said = made("traced", "--routes", TRACE)
        self.assertIn(f"ids 0 to {len(given) - 1} follow {TRACE}", said)
        # Past the end of the route, which begins again.
        answer = run_json(folder, "--ids", ",".join(map(str, PROMPT)), "-n", len(given) + 3, "--temp", 0, "--ignore-eos")
        self.assertEqual(answer["token_ids"], [i % len(given) for i in range(len(PROMPT), len(PROMPT) + len(given) + 3)])
        for args in (["--profile", "exact"], ["--profile", "fast", "--threads", 1, "--experts-ram", "2M"]):
            with self.subTest(args=args):
                routes = recorded(folder, len(given), *args)
                for i, layers in enumerate(routes):
                    for layer, source in enumerate(SOURCES):
                        wanted = given[i % len(given)].get(source, [])
                        self.assertEqual(layers[layer][:len(wanted)], wanted, f"token {i} layer {layer}")
                        self.assertEqual(len(set(layers[layer])), 8)

    def test_a_recording_makes_a_model_that_records_it(self):
        first, _ = made("first", "--routes", "calibrated", "--route-tokens", 48)
        of_first = recorded(first, 41)
        second, said = made("second", "--routes", first + ".csv", "--seed", 5)
        self.assertIn("ids 0 to 47 follow", said)
        self.assertEqual(recorded(second, 41), of_first)

    def test_calibrated_routes_repeat_as_said(self):
        folder, said = made("calibrated", "--routes", "calibrated", "--route-tokens", 150)
        routes = recorded(folder, 150 - len(PROMPT) + 1)
        sets = [[set(layers[layer]) for layers in routes] for layer in range(4)]
        overlap = [statistics.mean(len(a & b) / 8 for s in sets for a, b in zip(s, s[lag:])) for lag in (1, 2, 4, 8)]
        union = [statistics.mean(len(set.union(*s[i:i + n])) / 8 for s in sets for i in range(len(s) - n + 1))
                 for n in (2, 4, 8, 16, 32)]
        numbers = [float(x) for x in re.findall(r"\d+\.\d\d", said.split("overlap")[1])]
        self.assertEqual(len(numbers), 9)
        for seen, told, real in zip(overlap + union, numbers, [.38, .29, .28, .27, 1.62, 2.59, 3.93, 5.6, 7.1]):
            self.assertAlmostEqual(seen, told, delta=.04 * max(1, told))
            self.assertAlmostEqual(seen / real, 1, delta=.2)

    def test_what_cannot_follow_is_refused(self):
        for args, words in ((["--like", "pocket", "--routes", "calibrated"], "head is its embedding"),
                            (["--like", "deepseek-v3", "--routes", "calibrated"], "no plain softmax"),
                            (["--experts", 64, "--routes", TRACE], "--experts 128"),
                            (["--routes", temp("none.csv")], "No such file"),
                            (["--early-recall", 0.5], "go with --routes")):
            with self.subTest(args=args):
                p = wisp("synth", "--out", temp("refused"), *args, check=False)
                self.assertEqual(p.returncode, 1)
                self.assertIn(words, p.stderr)
                self.assertFalse(os.path.exists(temp("refused")))


if __name__ == "__main__":
    main()
