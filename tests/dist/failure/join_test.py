"""Failures before a group exists."""
import signal
import time
import unittest

import jobs
from jobs import KINDS, SLACK, Failure, Job, expect_error, expect_fine, run_all
from store_proxy import HANDSHAKE, Proxy

MORE = ["params=2", "commit", "steps=2"]  # what ranks do once they have joined
# Bytes to the store, from just after the handshake until the rank has joined.
MOMENTS = [HANDSHAKE["up"] + after for after in range(8, 1300, 75)]


class Join(unittest.TestCase):
    """Failures before a group exists."""

    def test_joining(self):
        scenarios = [(f"second rank {rank} {kind}", self.second, (kind, rank)) for kind in KINDS for rank in (0, 1)]
        scenarios += [(f"missing {kind}", self.missing, (kind,)) for kind in KINDS]
        scenarios += [("nobody listens", self.nobody_listens, ()), ("wrong secret", self.wrong_secret, ()),
                      ("no secret", self.wrong_secret, (None,))]
        run_all(scenarios, at_once=3)

    @staticmethod
    def second(kind, rank):
        with Job(kind, 2) as job:
            for r in range(2):
                job.start(r, ["join", "params=4", "commit", "pause=ready", "steps=3"])
            job.all_at("ready")
            impostor = job.worker(rank, ["join"], timeout=jobs.stretched(3000))
            hosts_store = kind == "tcp" and rank == 0  # then the port is what is taken
            holder = f"pid {job.ranks[rank].process.pid}"
            words = [str(job.port)] if hosts_store else [f"rank {rank}", holder]
            expect_error([impostor], "ALREADY_EXISTS", words=words)
            for worker in job.ranks.values():
                worker.go()
            expect_fine(job.ranks.values())

    @staticmethod
    def missing(kind):
        with Job(kind, 4, timeout_ms=1500) as job:
            begin = time.monotonic()
            for rank in (0, 2):
                job.start(rank, ["join"])
            return expect_error(job.ranks.values(), "TIMEOUT", 1, begin, job.told_s, ["1, 3", f"{job.timeout_ms} ms"])

    @staticmethod
    def nobody_listens():
        with Job("tcp", 2, timeout_ms=1000) as job:
            begin = time.monotonic()
            rank1 = job.start(1, ["join"])
            return expect_error([rank1], ("UNAVAILABLE", "TIMEOUT"), None, begin, job.timeout_s + 2.0 * SLACK,
                                [f"127.0.0.1:{job.port}"])

    @staticmethod
    def wrong_secret(secret="right?"):
        with Job("tcp", 2, timeout_ms=2000) as job:
            rank0 = job.start(0, ["join"], secret="right")
            rank1 = job.start(1, ["join"], **({"secret": secret} if secret else {}))
            expect_error([rank1], "PERMISSION_DENIED", words=["secret"])
            expect_error([rank0], "TIMEOUT", 1)

    def test_different_options(self):
        """Every rank names the same rank, and the option."""
        run_all([(f"{name} {world}", self.differs, (world, {name: value}))
                 for name, value in (("groups", 2), ("flags", 1), ("options", "lanes=2")) for world in (2, 3)], at_once=2)

    @staticmethod
    def differs(world, setting):
        with Job("launcher", world) as job:
            for rank in range(world):
                job.start(rank, ["join"], **(setting if rank == world - 1 else {}))
            for worker in job.ranks.values():
                worker.end()
            named = {worker.error.rank for worker in job.ranks.values()}
            # Which of two that differ is named depends on who came first.
            expect_error(job.ranks.values(), "MISMATCH", named.pop(), words=["all ranks must give the same"])
            if named or min(worker.error.rank for worker in job.ranks.values()) < 0:
                raise Failure(f"not one rank is named, but {named}")

    def test_waiting_is_told(self):
        """The lowest rank that is here says who is missing, and nobody else does."""
        with Job("launcher", 4, timeout_ms=6500) as job:
            for rank in (1, 3):
                job.start(rank, ["join"])
            expect_error(job.ranks.values(), "TIMEOUT", 0)
            told = {rank: [line for line in worker.lines if "still waits for" in line] for rank, worker in job.ranks.items()}
            self.assertIn(f"rank 1 of 4 still waits for ranks 0, 2; the timeout is {job.timeout_ms} ms", "".join(told[1]))
            self.assertEqual(told[3], [])


class Cut(unittest.TestCase):
    """A rank whose connection to the store is lost while it joins, or which dies at that moment: nobody else is blamed."""

    def test_connection(self):
        """The store lives: all ranks say which rank lost its connection, and that rank does not abort."""
        run_all([(f"{kind} cut after {limit} bytes", self.cut, (kind, limit))
                 for kind in ("tcp", "launcher") for limit in MOMENTS], at_once=3)

    @staticmethod
    def cut(kind, limit):
        with Job(kind, 3, timeout_ms=4000) as job:
            job.start(0, ["join"] + MORE)
            job.start(2, ["join"] + MORE)
            if kind == "tcp":  # the store ends with rank 0, and who comes later would not find it
                jobs.wait_until(lambda: jobs.reaches(job.ranks[2], job.port))
            proxy = Proxy(job.port, "up", limit, "rst")
            try:
                job.start(1, ["join"] + MORE, init=f"tcp://127.0.0.1:{proxy.port}")
                for worker in job.ranks.values():
                    worker.end()
                if not proxy.acted:
                    return expect_fine(job.ranks.values())
                if all(worker.error is None for worker in job.ranks.values()):
                    return None  # in the handshake, which was tried again
                expect_error([job.ranks[1]], ("RANK_FAILED", "UNAVAILABLE"), 1, proxy.acted, jobs.DEATH_S)
                # Until the rank has its place they cannot know of it, and miss it in the end.
                return expect_error(job.others(1).values(), ("RANK_FAILED", "TIMEOUT"), 1)
            finally:
                proxy.close()

    def test_connection_that_comes_again(self):
        """It comes about again, and is lost once more, as where the store's process ends: the store lived, so nobody else is blamed."""
        with Job("launcher", 2, timeout_ms=4000) as job:
            proxy = Proxy(job.port, "up", HANDSHAKE["up"] + 780, "rst", later=HANDSHAKE["down"])
            try:
                job.start(0, ["join"] + MORE)
                job.start(1, ["join"] + MORE, init=f"tcp://127.0.0.1:{proxy.port}")
                expect_error(job.ranks.values(), "RANK_FAILED", 1)
            finally:
                proxy.close()

    def test_death(self):
        """A rank is killed at a moment of its joining: the others name it, at once if it had its place."""
        run_all([(f"killed after {limit} bytes", self.killed, (limit,)) for limit in MOMENTS], at_once=3)

    @staticmethod
    def killed(limit):
        with Job("launcher", 3, timeout_ms=3000) as job:
            proxy = Proxy(job.port, "up", limit, lambda: job.ranks[1].signal(signal.SIGKILL))
            try:
                job.start(1, ["join"] + MORE, init=f"tcp://127.0.0.1:{proxy.port}")
                jobs.wait_until(lambda: proxy.acted)
                job.ranks[1].process.wait(jobs.PATIENCE_S)
                begin = time.monotonic()
                for rank in (0, 2):
                    job.start(rank, ["join"] + MORE)
                return expect_error(job.others(1).values(), ("RANK_FAILED", "TIMEOUT"), 1, begin, job.told_s)
            finally:
                proxy.close()


class Scarce(unittest.TestCase):
    """A rank without enough of something: it says what, nothing aborts, and everybody names it."""

    def test_files(self):
        run_all([(f"{kind} {left} files left", self.scarce, (kind, f"files={left}"))
                 for kind in KINDS for left in (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20, 25)], at_once=3)

    def test_memory(self):
        run_all([(f"{kind} {left} KiB left", self.scarce, (kind, f"memory={left}"))
                 for kind in KINDS for left in (100, 300, 1000, 3000, 10000, 30000, 100000)], at_once=3)

    def test_memory_of_buckets(self):
        """A rank that has joined, and then has too little for its buckets or for what DDP_CONTEXT_CHECK needs beside them."""
        run_all([(f"checked {checked}", self.without_buckets, (checked,)) for checked in (0, 1)], at_once=1)

    @staticmethod
    def without_buckets(checked):
        # More than malloc may have left in what it has set aside for threads (64 MiB).
        with Job("launcher", 2, timeout_ms=20_000, size=20_000_000, checked=checked) as job:
            job.start(0, ["join", "params=1", "commit"])
            job.start(1, ["join", "params=1", "memory=4000", "commit"])
            words = ["rank 1 cannot get its buckets", "memory"]
            return expect_error(job.ranks.values(), "OUT_OF_MEMORY", 1, words=words)

    def test_no_thread_for_the_resolver(self):
        """Waiting does not help, so nobody waits for the timeout."""
        with Job("tcp", 2) as job:
            begin = time.monotonic()
            rank1 = job.start(1, ["memory=1000", "join"], init=f"tcp://localhost:{job.port}")
            expect_error([rank1], "LIMIT", None, begin, 5.0 * SLACK, ["cannot start a thread", f"localhost:{job.port}"])

    @staticmethod
    def scarce(kind, limit):
        with Job(kind, 3, timeout_ms=2500) as job:
            job.files_may_stay = kind == "file"
            job.start(0, ["join"] + MORE)
            late = job.start(2, ["join"] + MORE)
            # When rank 0 has failed its store ends. A rank that comes later finds none, and can name nobody.
            if kind == "tcp":
                jobs.wait_until(lambda: jobs.reaches(late, job.port))
            job.start(1, [limit, "join"] + MORE)
            for worker in job.ranks.values():
                worker.end()
            if job.ranks[1].error is None:
                return expect_fine(job.ranks.values())
            # While it connects with a server, a library below may fail first, and in words of its own.
            if limit.startswith("files") and kind != "tcp" and job.ranks[1].error.code != "LIMIT":
                raise Failure(f"it lacks files, and does not say so:\n{job.ranks[1].story()}")
            # Where the rank cannot reach the store the others miss it.
            if job.ranks[1].error.rank not in (1, -1) or not job.ranks[1].error.message:
                raise Failure(f"the rank blames another one:\n{job.ranks[1].story()}")
            codes = {"TIMEOUT", job.ranks[1].error.code}
            return expect_error(job.others(1).values(), tuple(codes), 1)


if __name__ == "__main__":
    jobs.main()
