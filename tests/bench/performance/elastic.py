"""Elastic jobs: what the loss of a rank, a rank that joins, and a step without either cost."""
import json
import random
import subprocess
import time
from statistics import median

import running
from running import ms

MODEL, WORLD = "resnet50", 4
KILLED = ("shm", "gloo", "tcp")
COMPARED = ("shm", "gloo")
NEXT_STEP_MS, JOINED_MS, COST = 1000.0, 2000.0, 0.01


class Job:
    """A store, and ranks that meet there."""

    def __init__(self, options):
        self.options, self.processes = options, []
        self.store = subprocess.Popen([options.elastic, "store"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self.store.stdout.readline().strip()
        if not self.address:
            raise running.Missing(f"{options.elastic} does not run a store")

    def start(self, what, *arguments):
        command = [self.options.elastic, what, self.address, *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.store.communicate()


def next_row(process):
    line = process.stdout.readline()
    if not line:
        raise running.Missing(f"a rank ended with status {process.wait()}")
    return json.loads(line)


def row_of(process, world):
    """The line of a rank about the next roster of so many ranks."""
    while True:
        row = next_row(process)
        if row["world"] == world:
            return row


def kill_and_join(job, backend, rounds):
    """Kills a rank and starts another, again and again. What the ranks said: of each kill, and of each rank that joined."""
    ranks = [job.start("train", backend, MODEL, WORLD) for _ in range(WORLD)]
    for rank in ranks:
        row_of(rank, WORLD)
    chance, kills, joins = random.Random(1), [], []
    for _ in range(rounds):
        time.sleep(0.2 + 0.5 * chance.random())
        lost = ranks.pop(chance.randrange(WORLD))
        killed_ms = 1e3 * time.monotonic()
        lost.kill()
        rows = [row_of(rank, WORLD - 1) for rank in ranks]
        kills.append({"detection": max(row["at_ms"] - row["begin_ms"] for row in rows) - killed_ms,
                      "next_step": max(row["begin_ms"] for row in rows), "all": max(row["at_ms"] for row in rows) - killed_ms})
        time.sleep(0.2 + 0.5 * chance.random())
        ranks.append(job.start("train", backend, MODEL, WORLD))
        *others, joined = [row_of(rank, WORLD) for rank in ranks]
        joins.append({"joined": joined["begin_ms"], "pause": max(row["begin_ms"] for row in others),
                      "more": max(row["step_ms"] - row["usual_ms"] for row in others)})
    return kills, joins


def healthy(job, backend, pairs):
    """A step on a plain group and one in an elastic job, in turns: medians, of the ratio in each pair, too, and of the calls that only the
    job has."""
    ranks = [job.start("cost", backend, MODEL, 2, rank, pairs) for rank in range(2)]
    return next_row(ranks[0])


def column(rows, name):
    return [row[name] for row in rows]


def elastic(section, options):
    section.open_with(
        f"A job of {WORLD} ranks of one host with the parameters of resnet50 (102 MB) and as much momentum, without compute. The store "
        "is a process of its own. Again and again a rank is killed, and another is started in its place.")
    section.command(["tests/bench/performance/performance.py", "elastic"])
    rounds, changes, costs = (2 if options.quick else 20), [], []
    for backend in KILLED:
        running.require(options, backend)
        with Job(options) as job:
            kills, joins = kill_and_join(job, backend, rounds)
        changes.append([backend, *(f"{ms(median(column(rows, name)))} (at most {ms(max(column(rows, name)))})" for rows, name in (
            (kills, "detection"), (kills, "next_step"), (kills, "all"), (joins, "joined"), (joins, "pause"), (joins, "more")))])
        for rows, name, what, bar in ((kills, "next_step", "from the end of the step that failed to the next one, after a kill", NEXT_STEP_MS),
                                      (joins, "joined", "a rank joins", JOINED_MS)):
            figure = median(column(rows, name))
            section.judge(f"{backend}: {what}: at most {ms(bar)} ms", f"{ms(figure)} ms", figure <= bar)
    for backend in COMPARED:
        rows = []
        for _ in range(1 if options.quick else 5):  # where memory lies is the same for all of a round
            with Job(options) as job:
                rows.append(healthy(job, backend, 10 if options.quick else 200))
        more = f"{100 * (median(column(rows, 'ratio')) - 1):+.2f} %"
        costs.append([backend, ms(median(column(rows, "plain_ms"))), ms(median(column(rows, "elastic_ms"))), more,
                      f"{median(column(rows, 'calls_us')):.2g} µs"])
        section.judge(f"{backend}: a step while nobody comes or goes: less than {100 * COST:g} % more than on a plain group", more,
                      median(column(rows, "ratio")) < 1 + COST)
    section.say(f"Medians of {rounds} kills and {rounds} ranks that joined, in milliseconds, each of the slowest rank. A survivor notices the "
                "loss when a call fails. It is in the next step when `ddp_elastic_begin` returns. A rank that joins needs the time of its "
                "first `ddp_elastic_begin`. The others train meanwhile; they pause in one `ddp_elastic_begin`, and their first step "
                "afterwards takes longer than usual.")
    section.table(["Backend", "Kill: noticed after", "then in the next step after", "together", "Joining", "the others pause",
                   "their first step takes longer by"], changes)
    section.say("A step of 2 ranks on a plain group and in an elastic job, in turns in the same processes. `ddp_elastic_begin` and "
                "`ddp_elastic_commit` are what only the job calls.")
    section.table(["Backend", "Plain group", "Elastic job", "More", "Both calls together"], costs)
