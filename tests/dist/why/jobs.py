"""Jobs of worker.c with their records, and what ddprun and ddp-why say of them, for the tests beside this file.

CMake tells where the programs are: DDPRUN, DDP_WHY, DDP_RECORD_WORKER.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "dist" / "mpi")]
from slack import SLACK  # noqa: E402  (tests/support)

DDPRUN = os.environ["DDPRUN"]
DDP_WHY = os.environ["DDP_WHY"]
WORKER = os.environ["DDP_RECORD_WORKER"]
BOUND_S = 60 * SLACK
AT_ONCE = 4  # jobs, which mostly wait


class Said:
    """The sentences of ddprun, those of ddp-why, and all that the job wrote."""

    def __init__(self, job, why):
        self.job = job
        self.ddprun = [line for line in job.splitlines() if line.startswith("ddprun")]
        # Lines that belong to another one are indented.
        self.why = [line for line in why.splitlines() if not line.startswith(" ")]
        self.details = why

    def __str__(self):
        return f"{self.job}\n--- ddp-why:\n{self.details}"


def worker(**settings):
    """The command of a rank."""
    return [WORKER, *(f"{name.replace('_', '-')}={value}" for name, value in settings.items())]


def output(command, environment=None):
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace", timeout=BOUND_S, env={**os.environ, **(environment or {})}, check=False)
    return ended.stdout


def explain(folder):
    return output([DDP_WHY, folder])


def run_job(ranks, backend, **settings):
    with tempfile.TemporaryDirectory(prefix="ddp-record-test-") as folder:
        settings["backend"] = backend
        if backend == "hierarchical":
            settings["hosts"] = 2
        if backend == "mpi":
            import run_mpi  # of tests/dist/mpi
            job = output(run_mpi.command_line(ranks, worker(init=f"file://{folder}/store", **settings)), {"DDP_RECORD": folder})
        else:
            job = output([DDPRUN, "-n", str(ranks), "--record", folder, "--grace", "1", *worker(**settings)])
        return Said(job, explain(folder))


def run_all(function, cases):
    """Calls function(case) for some at a time. Prints what it returns, which are faults, and ends the program with 1 if there were any."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        faults = [fault for fault in pool.map(function, cases) if fault]
    print("\n\n".join(faults))
    print(f"{len(cases)} jobs, {len(faults)} faults")
    sys.exit(1 if faults else 0)
