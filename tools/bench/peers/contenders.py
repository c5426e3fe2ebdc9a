"""The contenders: the commands that measure libddp and its peers. A peer that is not there is a line, not an error."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

import processes

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = "libddp"
PEERS = ("gloo", "mpi", "torch")

# Settings of Open MPI that may be its best, by size, on one host: how large messages are copied between processes (cma:
# by the kernel, in one copy; none: through shared memory, in two), and how they are reduced.
VADER = ["--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca", "btl_vader_single_copy_mechanism"]
RABENSEIFNER = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "6"]
OPEN_MPI = {
    "default": [],
    "cma": [*VADER, "cma"],
    "cma, Rabenseifner": [*VADER, "cma", *RABENSEIFNER],
    "two copies": [*VADER, "none"],
    "two copies, Rabenseifner": [*VADER, "none", *RABENSEIFNER],
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass
class Run:
    """A command that prints rows of one contender as JSON lines."""
    contender: str
    command: list
    setting: str = ""
    environment: dict = field(default_factory=dict)
    world: int = 0  # not 0: the command is a rank, and is to be started so many times

    def rows(self, timeout):
        """Its rows, or None and a reason."""
        status, output = self.start(timeout)
        if status != 0:
            return None, f"status {status} of {' '.join(self.command)}"
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        rows = [each for row in rows for each in ways_to_update(row)]
        for row in rows:
            self.complete(row)
        return (rows, None) if rows else (None, output.strip() or "it printed nothing")

    def complete(self, row):
        row["peer"] = self.contender
        if self.contender == OURS:
            row["peer"] += f" {row['backend']}" + (f", {row['memory']} memory" if "memory" in row else "")
        row.setdefault("setting", f"{row['mode']}, {row['bucket_mb']:g} MiB" if "mode" in row else self.setting)
        if "local_ms" in row:
            row["over_local_ms"] = row["median_ms"] - row["local_ms"]

    def start(self, timeout):
        if not self.world:
            return processes.run(self.command, timeout, self.environment)
        with tempfile.TemporaryFile("w+") as output:
            status = processes.run_ranks(self.command, self.world, timeout, stdout=output)
            output.seek(0)
            return status, output.read()


def ways_to_update(row):
    """A replay of ddp-bench with optimizers is a row for each of them."""
    if "optimizer_ms" not in row:
        return [row]
    return [{**row, "median_ms": row[key], "mode": f"{row['mode']}, {name}"}
            for key, name in (("optimizer_ms", "AdamW"), ("sharded_ms", "shards"), ("in_step_ms", "shards in the step"))]


def missing(reason):
    print(reason, file=sys.stderr, flush=True)
    return []


def has_torch(python):
    try:
        probe = subprocess.run([python, "-c", "import torch.distributed"], stderr=subprocess.DEVNULL, timeout=120)
    except OSError:
        return False
    return probe.returncode == 0


def timing(options):
    return ["--seconds", f"{options.seconds:g}", "--timeout", f"{options.timeout:g}"]


def allreduce(options, folder):
    """The runs of `compare.py allreduce`, size after size, so that all contenders of one size run in the same seconds.
    folder: for a program that is compiled first."""
    makers = [lambda size: Run(OURS, [options.bench, "allreduce", "--json", "--world", str(options.world), "--backend",
                                      options.backend, "--memory", options.memory, "--bytes", size, *timing(options)])]
    if "gloo" in options.peers:
        makers += gloo_allreduce(options)
    if "mpi" in options.peers:
        makers += mpi_allreduce(options, folder)
    if "torch" in options.peers:
        makers += torch_allreduce(options)
    return [make(size) for size in options.bytes.split(",") for make in makers]


# Each of these returns functions that make a run of a size.

def gloo_allreduce(options):
    program = options.gloo or os.path.join(HERE, "gloo_allreduce")
    if not os.path.exists(program):
        return missing(f"Gloo is left out: {program} was not built")
    return [lambda size: Run("Gloo", [program, "--bytes", size, *timing(options)], world=options.world)]


def mpi_allreduce(options, folder):
    compiler, starter = shutil.which("mpicc"), shutil.which("mpirun")
    if not compiler or not starter:
        return missing(f"Open MPI is left out: there is no {'mpirun' if compiler else 'mpicc'}")
    version = subprocess.run([starter, "--version"], stdout=subprocess.PIPE, text=True, timeout=60, check=False).stdout
    if "Open MPI" not in version:
        return missing(f"Open MPI is left out: {starter} is another MPI")
    program = os.path.join(folder, "mpi_allreduce")
    built = subprocess.run([compiler, "-O3", os.path.join(HERE, "mpi_allreduce.c"), "-o", program], timeout=120,
                           check=False)
    if built.returncode != 0:
        return missing(f"Open MPI is left out: {compiler} cannot compile mpi_allreduce.c")

    def maker(setting, flags):
        command = [starter, "-n", str(options.world), "--oversubscribe", *flags, program, f"{options.seconds:g}", "0"]
        return lambda size: Run("Open MPI", [*command, size], setting, AS_ROOT)

    return [maker(setting, flags) for setting, flags in OPEN_MPI.items()]


def torch_allreduce(options):
    if not has_torch(options.python):
        return missing(f"PyTorch is left out: {options.python} does not have it")
    command = [options.python, os.path.join(HERE, "allreduce.py"), "--world", str(options.world), *timing(options)]
    return [lambda size: Run("PyTorch", [*command, "--bytes", size])]


def replay(options, model):
    """The runs of `compare.py replay`; model: a file that `ddp-bench models` wrote."""
    common = ["--world", str(options.world), "--model", model, "--compute-ms", f"{options.compute_ms:g}",
              *(["--optimizer"] if options.optimizer else []), *timing(options)]
    ours = [options.bench, "replay", "--json", *common]
    theirs = [options.python, os.path.join(HERE, "replay.py"), *common]
    with_torch = "torch" in options.peers
    if with_torch and not has_torch(options.python):
        with_torch = bool(missing(f"PyTorch is left out: {options.python} does not have it"))
    runs = []
    for cap in options.bucket_mb.split(","):
        runs += [Run(OURS, [*ours, "--backend", backend, "--bucket-mb", cap, f"--{mode}"])
                 for backend in options.backend.split(",") for mode in options.modes.split(",")]
        runs += [Run("PyTorch DDP", [*theirs, "--bucket-mb", cap])] if with_torch else []
    return runs
