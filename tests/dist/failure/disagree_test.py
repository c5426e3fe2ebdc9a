"""Ranks that do different things: the same error on every rank, never a crash, never a hang."""
import time
import unittest

import jobs
from jobs import KINDS, SLACK, Failure, Job, expect_error, run_all


class Disagree(unittest.TestCase):
    """Ranks that do different things get MISMATCH, or at worst an end: never a crash, never a hang."""

    def test_all(self):
        model = ["join", "params=3", "commit"]
        same = [model, model]
        cases = [
            # name, verbs of rank 0 and of rank 1, settings of rank 1, expected words
            ("world size", same, {"world": 5}, ["world_size", "'5'"]),
            ("backend options", same, {"options": "algorithm=ring"}, ["backend_options", "algorithm=ring"]),
            ("flags", same, {"flags": 1}, ["flags"]),
            ("parameter count", [model, ["join", "params=4", "commit"]], {}, ["'p3'", "rank 1", "nothing"]),
            ("shape", same, {"size": 999}, ["'p0'", "f32[1000]", "f32[999]"]),
            ("dtype", same, {"dtype": 4}, ["'p0'", "f32[1000]", "f64[1000]"]),
            ("name", same, {"prefix": "q"}, ["'p0'", "'q0'"]),
            ("reversed shape", same, {"size": 2, "columns": 1000}, ["f32[1000,2]", "f32[2,1000]", "row-major", "column-major"]),
            ("other columns", same, {"columns": 3}, ["f32[1000,2]", "f32[1000,3]", "!row-major"]),
            ("an extra allreduce", [model + ["steps=3"], model + ["steps=1", "allreduce=5", "steps=2"]], {},
             ["rank 1 is at allreduce of 5 f32 (sum), called by the program itself", "is at broadcast",
              "rebuilding the buckets", "rank 1 calls a collective of its own", "!bucket plans"]),
            ("an extra allreduce before a bucket", [model + ["steps=3"], model + ["steps=1", "begin", "allreduce=4", "fill=3"]], {},
             ["is at allreduce of 1008 f32 (avg), bucket 0 of step 1", "rank 1 is at allreduce of 4 f32 (sum), called by the program itself",
              "rank 1 calls a collective of its own", "!bucket plans"]),
            ("an extra allreduce on rank 0", [model + ["steps=1", "begin", "allreduce=4"], model + ["steps=3"]], {},
             ["rank 1 is at allreduce of 1008 f32 (avg), bucket 0 of step 1", "calls a collective of its own, which rank 1 does not call here",
              "!bucket plans"]),
            ("a rank that ended its loop", [model + ["steps=3"], model + ["steps=2", "barrier"]], {},
             ["is at allreduce", "rank 1 is at barrier", "DDP_CONTEXT_JOIN", "ddp_join", "!bucket plans"]),
            ("no step_begin at the rebuild", [model + ["fill=3", "finalize", "steps=1"], model + ["fill=3", "finalize", "fill=3", "finalize"]], {},
             ["is at broadcast", "rank 1 is at allreduce", "bucket 0"]),
            ("no_sync on one rank", [model + ["steps=3"], model + ["sync=0", "steps=1", "sync=1", "steps=2"]], {},
             ["syncs step 0, and rank 1 did not sync it (no_sync)", "ddp_set_sync", "!more often"]),
            ("no_sync on rank 0", [model + ["steps=2", "sync=0", "steps=2", "sync=1", "steps=2"], model + ["steps=5"]], {},
             ["rank 1 syncs step 2, and rank ", "did not sync it (no_sync)"]),
            ("different counts", [["join", "allreduce=1000"], ["join", "allreduce=70000"]], {}, ["1000 f32", "70000 f32"]),
            ("different dtypes", [["join", "allreduce=1000:f32"], ["join", "allreduce=1000:f64"]], {}, ["1000 f32", "1000 f64"]),
            ("different collectives", [["join", "allreduce=1000"], ["join", "barrier"]], {}, ["allreduce", "barrier"]),
            ("different numbers in an all_to_all", [["join", "exchange=1000"], ["join", "exchange=1000,7"]], {},
             ["rank 1 sends 7 f32 to rank 0", "rank 0 expects 1000 of rank 1"]),
            ("an all_to_all against an allreduce", [["join", "exchange=1000"], ["join", "allreduce=1000"]], {},
             ["all_to_all of uneven parts of f32", "allreduce of 1000 f32"]),
            ("a commit against an allreduce", [model, ["join", "allreduce=7"]], {}, ["allgather", "allreduce of 7"]),
        ]
        scenarios = [(f"{case[0]} {kind} world {world}", self.scenario, (kind, world, *case[1:]))
                     for kind, world in (("tcp", 2), ("file", 3)) for case in cases]
        run_all(scenarios, at_once=3)

    def test_what_fails_on_one_rank_names_it_on_all(self):
        run_all([(f"hook of rank {rank} {kind}", self.hook_fails, (kind, rank)) for kind in ("tcp", "file") for rank in (0, 1)],
                at_once=3)

    @staticmethod
    def hook_fails(kind, victim):
        with Job(kind, 3) as job:
            for rank in range(3):
                job.start(rank, ["join", "params=4", "commit"] + (["hook-fails=no more ideas"] if rank == victim else []) + ["steps=2"])
            expect_error(job.ranks.values(), "CALLBACK", victim,
                         words=[f"rank {victim}: the communication hook failed: no more ideas", "(bucket 0 of step 0, parameter 'p3')"])

    # The store must not end with the ranks that noticed first.
    def test_a_rank_that_comes_late_hears_of_it(self):
        run_all([(f"rank {late} late {kind}", self.late, (kind, late)) for kind in KINDS for late in range(3)
                 if late != 0 or kind != "tcp"], at_once=3)  # no store before rank 0 there

    @staticmethod
    def late(kind, late):
        with Job(kind, 3) as job:
            early = [rank for rank in range(3) if rank != late]
            for rank in early:
                job.start(rank, ["join"], flags=rank)
            time.sleep(0.5 * SLACK)
            begin = job.start(late, ["join"]).wait_for("end")
            expect_error(job.ranks.values(), "MISMATCH", words=["flags", "'none'"] if 0 in early else ["flags", "'DDP_GROUP_DETERMINISTIC'", "'DDP_GROUP_NO_MATCH_CHECK'"])
            return time.monotonic() - begin

    # Gloo would end the process on its own thread when a message is longer than what the other side expects, so it compares
    # signatures although DDP_GROUP_NO_MATCH_CHECK is set.
    def test_unchecked_sizes(self):
        self.run_unchecked(["allreduce=1000"], ["allreduce=70000:f64"])

    def test_unchecked_kinds(self):
        self.run_unchecked(["barrier"], [])

    def run_unchecked(self, *choices):
        run_all([(f"unchecked {options} {verbs}", self.unchecked, (options, verbs)) for verbs in choices
                 for options in ("algorithm=direct", "algorithm=ring", "algorithm=bcube")], at_once=3)

    @staticmethod
    def scenario(kind, world, verbs, settings, words):
        with Job(kind, world, **({"columns": 2} if "columns" in settings else {})) as job:
            for rank in range(world):
                job.start(rank, verbs[1 if rank == 1 else 0], **(settings if rank == 1 else {}))
            ranks = job.ranks.values()
            expect_error(ranks, "MISMATCH", words=[word for word in words if word[0] != "!"],
                         never=[word[1:] for word in words if word[0] == "!"])
            if len({worker.error.rank for worker in ranks}) != 1:
                raise Failure("not the same everywhere:\n" + "\n".join(worker.story() for worker in ranks))

    @staticmethod
    def unchecked(options, verbs):
        """Without the check of signatures sums may be wrong, but no process may crash or hang."""
        with Job("tcp", 3, timeout_ms=2000, options=options, flags=2) as job:
            begin = time.monotonic()
            for rank in range(3):
                job.start(rank, ["join"] + (verbs if rank == 1 else ["allreduce=10"]))
            for worker in job.ranks.values():
                worker.end()
            return time.monotonic() - begin


if __name__ == "__main__":
    jobs.main()
