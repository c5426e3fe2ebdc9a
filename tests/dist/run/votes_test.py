"""--checkpoint-on and --stop-on: signals to ddprun that become votes of its ranks, and signals to ranks, which vote in their handlers. All
ranks see the same votes in the same steps.

    votes_test.py VotesTest            JOBS random jobs are the storm: DDPRUN_TEST_JOBS, by default 12
"""
import os
import random
import re
import signal
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from ddprun_support import BOUND, DDPRUN, Case, Result, free_port, run

VOTER = os.environ["DDPRUN_TEST_VOTER"]  # voter.c
JOBS = int(os.environ.get("DDPRUN_TEST_JOBS", "12"))
STOP, CHECKPOINT, USER = 1, 2, 1 << 16
VOTES = "--no-tag", "--checkpoint-on", "SIGUSR1", "--stop-on", "SIGTERM"


class Job:
    """A job of voters that all train."""

    def __init__(self, ranks, *arguments):
        self.ranks = ranks
        self.process = subprocess.Popen([DDPRUN, "-n", str(ranks), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        self.pids = {}
        while len(self.pids) < ranks:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"no ranks: {self.process.communicate(timeout=BOUND)}")
            word, rank, pid = line.split()
            if word == b"pid":
                self.pids[int(rank)] = int(pid)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        """(step, any, all) of each step with votes, the same on all ranks; and what ddprun has said."""
        try:
            result = Result(self.process)
        finally:
            if self.process.poll() is None:
                self.process.kill()
        if result.status != 128 + signal.SIGTERM:
            raise AssertionError(str(result))
        lists = [[] for _ in range(self.ranks)]
        for rank, *vote in re.findall(rb"(?m)^vote (\d+) (\d+) (\d+) (\d+)$", result.out):
            lists[int(rank)].append(tuple(map(int, vote)))
        for one in lists:
            if one != lists[0]:
                raise AssertionError(f"ranks have seen different votes: {lists}")
        return lists[0], result.err.decode()


def storm(seed):
    """Signals at random times to ddprun and to random ranks. Returns the number of steps with votes."""
    draw = random.Random(seed)
    ranks = draw.randint(2, 5)
    backend = draw.choice(["shm", "tcp", "hierarchical", "gloo"])
    # Two hosts, with as many ranks each or not.
    host = "export DDP_HOST_ID=$((DDP_RANK % 2)); " if backend == "hierarchical" else ""
    job = Job(ranks, *VOTES, "sh", "-c", f"{host}exec {VOTER} {backend} {seed}")
    checkpoints, own = 0, [0] * ranks
    for _ in range(draw.randint(0, 8)):
        time.sleep(draw.random() * 0.01)
        if draw.random() < 0.4:
            job.signal(signal.SIGUSR1)
            checkpoints += 1
        else:
            rank = draw.randrange(ranks)
            os.kill(job.pids[rank], signal.SIGUSR2)
            own[rank] += 1
    time.sleep(draw.random() * 0.01)
    job.signal(signal.SIGTERM)
    seen, _ = job.end()
    stops = [step for step, votes, _ in seen if votes & STOP]
    if len(stops) != 1 or stops[0] != seen[-1][0]:
        raise AssertionError(f"job {seed}: stopped in {stops}, of {seen}")
    # Signals that come while one waits are one, and those after the stop are none.
    counts = {"checkpoint": (sum(votes & CHECKPOINT != 0 for _, votes, _ in seen), checkpoints)}
    for rank in range(ranks):
        counts[f"rank {rank}"] = (sum(votes & USER << rank != 0 for _, votes, _ in seen), own[rank])
    for name, (counted, sent) in counts.items():
        if counted > sent:
            raise AssertionError(f"job {seed}: {counted} votes of {name}, of {sent} signals: {seen}")
    return len(seen)


class VotesTest(Case):
    def test_storm(self):
        begin = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            steps = list(pool.map(storm, range(JOBS)))
        print(f"{JOBS} of {JOBS} jobs: all ranks acted in the same {sum(steps)} steps; {time.monotonic() - begin:.0f} s", flush=True)

    def test_each_signal_is_one_vote(self):
        job = Job(3, *VOTES, VOTER, "auto")
        for _ in range(3):
            job.signal(signal.SIGUSR1)
            time.sleep(0.2)
        job.signal(signal.SIGTERM)
        seen, said = job.end()
        self.assertEqual([(votes, everywhere) for _, votes, everywhere in seen], [(CHECKPOINT, 0)] * 3 + [(STOP, 0)])
        self.assertEqual(said.count("received SIGUSR1: rank 0 votes for all ranks to write a checkpoint after the same step"), 3)
        self.assertIn("received SIGTERM: rank 0 votes for all ranks to stop after the same step; another SIGTERM ends them", said)

    def test_signals_to_ranks(self):
        job = Job(4, *VOTES, VOTER, "auto")
        for rank in 2, 0, 3:
            os.kill(job.pids[rank], signal.SIGUSR2)
            time.sleep(0.2)
        job.signal(signal.SIGTERM)
        self.assertEqual([votes for _, votes, _ in job.end()[0]], [USER << 2, USER, USER << 3, STOP])

    def test_two_nodes(self):
        """A signal to any ddprun of the job is a vote of the job."""
        environment = {**os.environ, "DDP_SECRET": "for the votes of two nodes"}
        address = f"127.0.0.1:{free_port()}"
        nodes = [self.start("--nnodes", 2, "--node-rank", node, "--rdzv", address, "-n", 2, *VOTES, VOTER, "auto", env=environment)
                 for node in range(2)]
        for node in nodes:
            while b"pid" not in node.stdout.readline():
                pass
        nodes[1].send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        nodes[0].send_signal(signal.SIGTERM)
        seen = set()
        for node in nodes:
            result = Result(node)
            self.expect(result, 143)  # the signal came to node 0
            self.assertIn(b"the job has stopped after SIGTERM, so the status is 143", result.err)
            for rank in set(re.findall(rb"(?m)^vote (\d+) ", result.out)):
                seen.add(tuple(re.findall(rb"(?m)^vote %s (\d+) (\d+) " % rank, result.out)))
        self.assertEqual([[int(votes) for _, votes in one] for one in seen], [[CHECKPOINT, STOP]])

    def test_the_second_stop_ends_the_job(self):
        job = Job(2, *VOTES, "--grace", "1", VOTER, "auto")
        os.kill(job.pids[1], signal.SIGSTOP)  # no step ends
        job.signal(signal.SIGTERM)
        time.sleep(0.2)
        job.signal(signal.SIGTERM)
        self.expect(Result(job.process), 143)

    def test_no_restart_after_a_stop(self):
        job = Job(2, *VOTES, "--max-restarts", "5", "sh", "-c", f"{VOTER} auto; exit 3")
        job.signal(signal.SIGTERM)
        result = Result(job.process)
        self.expect(result, 3)
        self.assertNotIn(b"restart", result.err)

    def test_the_status_tells_a_stop_from_the_end(self):
        for words in (("--stop-on", "SIGTERM"), VOTES):
            self.expect(run("-n", 2, *words, "true"), 0)
        job = Job(2, "--no-tag", "--checkpoint-on", "SIGUSR1", "--stop-on", "SIGUSR2", VOTER, "auto")
        job.signal(signal.SIGUSR2)
        result = Result(job.process)
        self.expect(result, 128 + signal.SIGUSR2)

    def test_without_a_context_that_counts_votes(self):
        process = self.start("-n", 2, *VOTES, "sh", "-c", "echo pid; exec sleep 60")
        for _ in range(2):
            process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        result = Result(process)
        self.expect(result, 143)
        self.assertIn(b"received SIGTERM, and no rank has a context that counts votes (DDP_CONTEXT_VOTES); the signal goes to the ranks", result.err)

    def test_memory_that_a_rank_does_not_see(self):
        result = run("-n", 1, "sh", "-c", f"DDP_VOTES=/proc/1/nothing:0 exec {VOTER} auto")
        self.assertEqual(result.status, 1, str(result))
        self.assertIn(b"cannot map '/proc/1/nothing', in which ddprun asks for votes (DDP_VOTES): ", result.err)

    def test_usage(self):
        for arguments, text in ((("--checkpoint-on", "SIGKILL"), b"--checkpoint-on"),
                                (("--checkpoint-on", "SIGTERM", "--stop-on", "SIGTERM"), b"--checkpoint-on and --stop-on are the same signal")):
            result = run(*arguments, "true")
            self.assertEqual(result.status, 2, str(result))
            self.assertIn(text, result.err)


if __name__ == "__main__":
    unittest.main()
