#!/usr/bin/env python3
"""Jobs with a planted fault: the sentences of ddprun and of ddp-why must name the rank, and the cause.

    DDPRUN=... DDP_WHY=... DDP_RECORD_WORKER=... python3 faults_test.py [--all] [--backend NAME]... [--fault NAME]... [--show]

Without --all each fault is planted on one backend. links_test.py has the faults of links.
"""
import argparse
import re

from jobs import SLACK, run_all, run_job

RANKS = 3
TIMEOUT_MS = int(3000 * SLACK)  # also of joining, where the machine has much to do
MPI_TIMEOUT_MS = int(8000 * SLACK)  # MPI_Init takes a part of that
BACKENDS = ("shm", "tcp", "gloo", "hierarchical", "mpi")
RANK_1 = r"rank 1 \(pid \d+( on \S+)?\)"
NOT_COME = r"step 5( for .*)?, after 2 of 6 gradients; 'layer3\.weight', .* have not come"


class Fault:
    """words: what a sentence says. mpirun: what it says where no launcher of libddp's has seen the processes. A job that goes on has no
    failure of which ddprun could tell."""

    def __init__(self, name, words, mpirun=None, fails=True, **settings):
        self.name, self.words, self.mpirun, self.fails = name, words, mpirun or words, fails
        self.settings = {"fault": name, **settings}


FAULTS = [
    Fault("stop", rf"{RANK_1} is stopped.*{NOT_COME}", rf"{RANK_1} stands still.*{NOT_COME}"),
    Fault("sleep", rf"{RANK_1} did not come.*{NOT_COME}; ranks 0 and 2 had waited .* at bucket \d of step 5"),
    Fault("skip", r"rank 1, step 5: 1 of 6 gradients was never announced .*'layer2\.weight'"),
    Fault("order", r"rank 1 is at barrier.*different order", collectives=1),
    Fault("shape", r"rank 0 has parameter 2 'layer2\.weight' f32\[2000\]; rank 1 has .*f32\[1000\]"),
    Fault("count", r"rank 1 is at allreduce of 3 f32.*different sizes", collectives=1),
    Fault("extra", r"rank 1 calls a collective of its own", collectives=1),
    Fault("uneven", rf"{RANK_1} has left the group after step 4; ranks 0 and 2 .* at bucket 0 of step 5; .*ddp_join"),
    Fault("slow", r"^rank 1 is slow: the others wait \d+ ms .* in its own code", fails=False, steps=40),
    Fault("hook", r"^rank 1 is slow: the others wait \d+ ms .* in its communication hook", fails=False, steps=40),
    Fault("memory", r"rank 1.* memory", size=400000, bucket_cap=4000000),
    Fault("array", rf"{RANK_1} exited with status 1: its last words were 'out of memory'", rf"{RANK_1} exited with status 1"),
    Fault("exit", rf"{RANK_1} exited with status 7.*{NOT_COME}"),
    Fault("kill", rf"{RANK_1} was killed by signal 9 \(SIGKILL\).*{NOT_COME}", rf"{RANK_1} died.*{NOT_COME}"),
]


def check(case):
    fault, backend, show = case
    timeout = MPI_TIMEOUT_MS if backend == "mpi" else TIMEOUT_MS
    said = run_job(RANKS, backend, timeout=timeout, **fault.settings)
    words = fault.mpirun if backend == "mpi" else fault.words
    if fault.name == "memory" and backend == "gloo":  # its own thread may be the one that finds none, and ends the process
        words = rf"{words}|{RANK_1} was killed by signal 6"
    sources = {"ddp-why": said.why}
    if fault.fails and backend != "mpi":
        sources["ddprun"] = said.ddprun[:1]
    if show:
        print(f"{fault.name} on {backend}:", *said.ddprun, *said.why, sep="\n  ")
    silent = [name for name, lines in sources.items() if not any(re.search(words, line) for line in lines)]
    return f"=== {fault.name} on {backend}: {' and '.join(silent)} did not say '{words}':\n{said}" if silent else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true", help="each fault on each backend")
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--show", action="store_true", help="print what was said")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.fault or fault.name in options.fault]
    if options.all or options.backend:
        cases = [(fault, backend) for backend in options.backend or BACKENDS for fault in faults]
    else:
        cases = [(fault, BACKENDS[i % 4]) for i, fault in enumerate(faults)]
    run_all(check, [(fault, backend, options.show) for fault, backend in cases])


if __name__ == "__main__":
    main()
