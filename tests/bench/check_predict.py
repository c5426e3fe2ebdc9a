#!/usr/bin/env python3
"""ddp-bench predict: what it says of steps that libddp has planned, and its complaints.

usage: check_predict.py DDP_BENCH
"""
import contextlib
import csv
import json
import subprocess
import sys
import tempfile
import unittest

BENCH = sys.argv.pop(1)
TIMEOUT_S = 60
PARAMS, ELEMENTS = 40, 65536  # a quarter of a MiB each
MODEL = f"{PARAMS}x{ELEMENTS}"
BYTES = 4 * PARAMS * ELEMENTS


def run(*arguments):
    return subprocess.run([BENCH, "predict", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=TIMEOUT_S)


@contextlib.contextmanager
def measured_file():
    """Allreduces of 2 ranks, which take 7 ms."""
    with tempfile.NamedTemporaryFile("w", prefix="ddp-measured-") as file:
        for size in 1 << 10, 1 << 24:
            print(json.dumps({"name": "allreduce", "world": 2, "bytes": size, "median_ms": 7}), file=file)
        file.flush()
        yield file


class PredictTest(unittest.TestCase):
    def rows(self, *arguments):
        done = run("--model", MODEL, "--compute-ms", 20, *arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def complains(self, words, *arguments, status=1):
        done = run(*arguments)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertIn(words, done.stdout + done.stderr)

    def test_buckets_are_those_of_libddp(self):
        small, large, *_ = self.rows("--world", 8, "--bucket-mb", "1,2.5")
        self.assertEqual((small["buckets"], small["collectives"], small["bytes"]), (10, 10, BYTES))
        self.assertEqual(large["buckets"], 1 + 4)  # the first of 1 MiB, then 36 parameters in buckets of ten
        self.assertEqual(large["bytes"], BYTES)

    def test_worlds_below_follow(self):
        worlds = [row["world"] for row in self.rows("--world", 6, "--bucket-mb", "1,2")]
        self.assertEqual(worlds, [6, 6, 1, 2, 4])

    def test_one_rank_waits_for_nothing(self):
        row = self.rows("--world", 1)[0]
        self.assertNotIn("schedule", row)
        self.assertEqual((row["step_ms"], row["compute_ms"], row["exposed_ms"], row["efficiency"]), (30, 30, 0, 1))

    def test_more_ranks_and_slower_networks_take_longer(self):
        fast = self.rows("--world", 64, "--network", "100gbit")
        slow = self.rows("--world", 64, "--network", "1gbit")
        for rows in fast, slow:
            steps = [row["step_ms"] for row in rows[1:]] + [rows[0]["step_ms"]]
            self.assertEqual(steps, sorted(steps))
        self.assertLess(fast[0]["step_ms"], slow[0]["step_ms"])

    def test_hooks_give_less(self):
        for hook, share in ("fp16", 0.5), ("bf16", 0.5), ("allreduce", 1):
            self.assertEqual(self.rows("--world", 2, "--hook", hook)[0]["bytes"], share * BYTES, hook)
        # Both halves of the sum move a quarter of the bytes, and a scale for each block.
        plain = self.rows("--world", 8)[0]["communication_ms"]
        quantized = self.rows("--world", 8, "--hook", "quantize")[0]["communication_ms"]
        self.assertLess(quantized, 0.4 * plain)
        done = run("--model", "resnet50", "--compute-ms", 20, "--world", 2, "--hook", "powersgd", "--hook-options", "start=0", "--json")
        ranked = json.loads(done.stdout.splitlines()[0])
        self.assertLess(ranked["bytes"], 0.05 * 102228128)
        self.assertGreater(ranked["collectives"], ranked["buckets"])

    def test_groups_in_turn_share_the_network(self):
        one, = self.rows("--world", 1, "--groups", 3)
        self.assertEqual(one["bytes"], BYTES)
        overlapped, queued = (self.rows("--world", 4, "--network", "10gbit:latency-us=5000", "--groups", groups, "--bucket-mb", 0.5)[0]
                              for groups in (4, 1))
        self.assertLess(overlapped["step_ms"], 0.5 * queued["step_ms"])

    def test_measured_times_are_used(self):
        with measured_file() as file:
            row = self.rows("--world", 2, "--measured", file.name, "--bucket-mb", 100, "--first-bucket-mb", 100)[0]
            self.assertEqual((row["buckets"], row["step_ms"]), (1, 37))
            self.complains("--measured: the rows are of a world of 2, and --world is 3", "--compute-ms", 1, "--world", 3, "--measured",
                           file.name)

    def test_a_table_and_a_sentence(self):
        done = run("--model", MODEL, "--compute-ms", 20, "--world", 64, "--network", "1gbit", "--bucket-mb", "1,4")
        self.assertRegex(done.stdout, r"\nOf these bucket sizes \d MiB is the best\. With 2 ranks "
                                      r"the efficiency is 0\.\d+: \d+\.\d ms of each step are communication that no backward pass hides, mostly transfer: "
                                      r"10\.5 MB from each rank\. A faster network, a hook that compresses or a larger batch helps\.\n$")
        calm = run("--model", MODEL, "--compute-ms", 2000, "--world", 8, "--network", "nvlink-ib").stdout
        self.assertRegex(calm, r"\nUp to 8 ranks the efficiency is at least 0\.9 \((1|0\.9\d+) with 8\)\.\n$")
        slow = run("--model", MODEL, "--compute-ms", 2000, "--world", 8, "--network", "nvlink-ib", "--straggler", 1).stdout
        self.assertIn("ms of each step are spent waiting for the slowest rank", slow)
        late = run("--model", MODEL, "--compute-ms", 2, "--world", 8, "--network", "100gbit:latency-us=5000").stdout
        self.assertIn("mostly latency: ", late)

    def test_hooks_that_cannot_be_predicted(self):
        self.complains("post_local_sgd", "--model", MODEL, "--compute-ms", 1, "--hook", "post_local_sgd")
        with measured_file() as file:
            self.complains("does not send by allreduce", "--model", MODEL, "--compute-ms", 1, "--hook", "topk", "--measured", file.name)

    def test_a_hook_that_sends_nothing(self):
        row = self.rows("--world", 8, "--hook", "noop")[0]
        self.assertEqual((row["buckets"], row["collectives"], row["bytes"], row["step_ms"]), (2, 0, 0, 30))

    def test_many_buckets(self):
        done = run("--model", "3000x16", "--compute-ms", 20, "--bucket-mb", 0.00005, "--first-bucket-mb", 0.00005, "--json")
        self.assertEqual(json.loads(done.stdout.splitlines()[0])["buckets"], 3000, done.stderr)

    def test_rows_as_csv(self):
        with tempfile.NamedTemporaryFile("r", prefix="ddp-rows-") as file:
            row = self.rows("--world", 1, "--csv", file.name)[0]
            again, = csv.DictReader(file)
        self.assertEqual(float(again["step_ms"]), row["step_ms"])

    def test_schedules(self):
        def steps(*arguments):
            rows = self.rows("--forward-ms", 10, "--world", 64, "--network", "25gbit:host-gb-s=0.9", "--bucket-mb", 1, *arguments)
            return {(row["schedule"], row["piece_mb"]): row["step_ms"] for row in rows if row["world"] == 64}

        found = steps("--schedule", "finalize,wait-param,first-used,decoupled", "--piece-mb", "0,0.25")
        self.assertEqual(found["finalize", 0], found["wait-param", 0])  # the first layer's bucket is the last of all
        self.assertLess(found["first-used", 0], 0.95 * found["finalize", 0])
        self.assertLess(found["decoupled", 0], 0.95 * found["finalize", 0])
        plan, piece = (steps("--schedule", "first-used", "--piece-mb", 0.25, "--agreement", when)["first-used", 0.25]
                       for when in ("plan", "piece"))
        self.assertEqual(plan, found["first-used", 0.25])
        self.assertGreater(piece, plan)
        optimizer = steps("--schedule", "finalize,wait-param", "--optimizer-ms", 4)
        self.assertLess(optimizer["wait-param", 0], optimizer["finalize", 0] - 3)
        pieces, = (row["collectives"] for row in self.rows("--world", 1, "--schedule", "first-used", "--piece-mb", 0.25, "--bucket-mb", 1))
        self.assertEqual(pieces, PARAMS)

    def test_a_schedule_with_jitter_groups_and_hosts(self):
        for schedule in "finalize", "wait-param", "first-used", "decoupled":
            row = self.rows("--world", 64, "--ranks-a-host", 8, "--jitter", 0.05, "--groups", 2, "--hook", "fp16", "--cores", 2,
                            "--communication-cores", 0.5, "--schedule", schedule, "--bucket-mb", 1)[0]
            self.assertGreater(row["waiting_ms"], 0, schedule)
        said = run("--model", MODEL, "--compute-ms", 20, "--world", 64, "--network", "25gbit:host-gb-s=0.9", "--bucket-mb", 1,
                   "--schedule", "finalize,first-used")
        self.assertIn("\nOf these schedules first-used is the best, with buckets of 1 MiB. ", said.stdout)

    def test_a_plan_in_the_order_of_first_use(self):
        def buckets(schedule):
            with tempfile.NamedTemporaryFile("r", prefix="ddp-plan-") as file:
                self.rows("--world", 8, "--network", "1gbit", "--bucket-mb", 1, "--first-bucket-mb", 1, "--schedule", schedule, "--save-plan",
                          file.name)
                return json.load(file)["buckets"]

        ready, first_used = buckets("wait-param"), buckets("first-used")
        self.assertEqual(ready[0][0], f"param{PARAMS - 1}")
        self.assertEqual(ready[-1][-1], "param0")
        self.assertEqual(sorted(ready), sorted(first_used))
        self.assertLess(first_used.index(ready[-1]), PARAMS // 4 - 1)
        self.assertEqual(first_used[0], ready[0])  # it is ready long before any other

    def test_thousands_of_ranks_layer_by_layer(self):
        rows = self.rows("--world", 4096, "--ranks-a-host", 8, "--jitter", 0.03, "--schedule", "first-used", "--piece-mb", 0.25)
        self.assertEqual(len(rows), 13)

    def test_thousands_of_ranks(self):
        rows = self.rows("--world", 4096, "--ranks-a-host", 8, "--jitter", 0.03)
        self.assertEqual(len(rows), 13)
        self.assertGreater(rows[0]["waiting_ms"], 0)

    def test_advice_searches_single_predictions(self):
        """Each row is that of the same settings alone, and no combination of their values is much better."""
        where = "--world", 32, "--network", "10gbit:latency-us=150"
        rows = self.rows(*where, "--advise")
        caps = sorted({row["bucket_mb"] for row in rows})
        single = {}

        def predict_caps(first, groups, hook, options):
            more = ["--hook-options", options] if options else []
            for row in self.rows(*where, "--bucket-mb", ",".join(map(str, caps)), "--first-bucket-mb", first, "--groups", groups,
                                 "--hook", hook, *more):
                if row["world"] == 32:
                    single[row["bucket_mb"], first, groups, hook, options] = row

        for first in {row["first_bucket_mb"] for row in rows}:
            for groups in {row["groups"] for row in rows}:
                predict_caps(first, groups, "allreduce", "")
        for row in rows:
            key = row["bucket_mb"], row["first_bucket_mb"], row["groups"], row["hook"], row["hook_options"]
            if key not in single:
                predict_caps(*key[1:])
            for name, value in single[key].items():
                self.assertEqual(row[name], value, f"{name} of {row}")
            self.assertAlmostEqual(row["saving"], 1 - row["step_ms"] / rows[0]["step_ms"], delta=1e-3)
        self.assertEqual((rows[0]["bucket_mb"], rows[0]["first_bucket_mb"], rows[0]["groups"], rows[0]["hook"]), (25, 1, 1, "allreduce"))
        advised, *_ = (row for row in rows if row["advised"])
        best = min(row["step_ms"] for key, row in single.items() if key[3] == "allreduce")
        self.assertEqual(advised["hook"], "allreduce")
        self.assertLess(advised["step_ms"], 0.95 * rows[0]["step_ms"])
        self.assertLess(0.96 * advised["step_ms"], best)

    def test_advice_in_words(self):
        def advice(*arguments):
            done = run("--model", MODEL, "--advise", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout[done.stdout.index("\n\n") + 2:]

        self.assertRegex(advice("--compute-ms", 2000, "--world", 8, "--network", "nvlink-ib"),
                         r"^Keep libddp's defaults: communication that nothing hides takes 0\.0 % of a step\.\n$")
        self.assertRegex(advice("--compute-ms", 20, "--world", 32, "--network", "10gbit:latency-us=150"),
                         r"^With these settings a step takes \d+\.\d ms, \d+\.\d % less than with libddp's defaults \(\d+\.\d ms\)\. "
                         r"Each saving is beside the other settings:\n"
                         r"  bucket_cap_bytes = \d+ \([\d.]+ MiB\) saves ")
        self.assertIn("A hook changes numbers, so try it last. With fp16 or bf16 a step takes ",
                      advice("--compute-ms", 20, "--world", 32, "--network", "1gbit:latency-us=1"))
        with measured_file() as file:
            self.assertIn("bucket_cap_bytes", advice("--compute-ms", 20, "--world", 2, "--measured", file.name))

    def test_advice_for_a_schedule(self):
        with tempfile.NamedTemporaryFile("r", prefix="ddp-plan-") as file:
            rows = self.rows("--world", 64, "--network", "25gbit:host-gb-s=0.9", "--schedule", "first-used", "--advise",
                             "--save-plan", file.name)
            buckets = json.load(file)["buckets"]
        advised, *_ = (row for row in rows if row["advised"])
        self.assertEqual((advised["schedule"], advised["buckets"]), ("first-used", len(buckets)))
        self.assertLess(advised["bucket_mb"], 25)

    def test_what_is_wrong_is_said(self):
        self.complains("--compute-ms is required", "--model", MODEL, status=2)
        model = "--model", MODEL, "--compute-ms", 1
        self.complains("'26gbit' is none of 1gbit, 10gbit", *model, "--network", "26gbit")
        self.complains("no hook 'nonsense'", *model, "--hook", "nonsense")
        self.complains("cannot read /nowhere", *model, "--measured", "/nowhere")
        self.complains("--hook-options requires --hook", *model, "--hook-options", "start=0", status=2)
        self.complains("--schedule", *model, "--schedule", "fifo", status=2)
        plan = "--save-plan", "/nowhere/plan"
        self.complains("--save-plan: cannot write /nowhere/plan", *model, *plan)
        for more in ("--schedule", "decoupled"), ("--schedule", "first-used", "--piece-mb", 1), ("--agreement", "piece"):
            self.complains("--save-plan: a bucket plan gives the order of whole buckets", *model, *plan, *more)
        with measured_file() as file:
            self.complains("--schedule decoupled sends none", *model, "--measured", file.name, "--schedule", "decoupled")
        for name, value in ("--bucket-mb", "1"), ("--first-bucket-mb", "2"), ("--groups", "2"), ("--hook", "fp16"):
            self.complains(f"{name}: --advise chooses it. Leave out one of them", *model, "--advise", name, value, status=2)
        self.complains("--schedule: --advise is for one", *model, "--advise", "--schedule", "finalize,first-used", status=2)
        self.complains("--piece-mb: --advise is for one", *model, "--advise", "--schedule", "first-used", "--piece-mb", "1,2", status=2)
        self.complains("--cores requires --communication-cores", *model, "--cores", 2, status=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
