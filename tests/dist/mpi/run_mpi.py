#!/usr/bin/env python3
"""Starts a program under mpirun on this machine, for the tests beside this file: run_mpi.py RANKS TIMEOUT PROGRAM [ARGUMENTS...]

Exits with mpirun's status. Nothing stays behind: when the time is up, mpirun and then every process that it started is ended.
"""
import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MPIRUN = os.environ.get("DDP_MPIRUN", "mpirun")


def command_line(ranks, program, flags=()):
    """mpirun as a test needs it: more ranks than cores, no network but the loopback, also for root in a container."""
    options = ["--oversubscribe", "--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", "lo", "--mca", "plm_rsh_agent", "false"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    return [MPIRUN, *options, *flags, "-n", str(ranks), *program]


def own_folder(folder):
    """Flags that put mpirun's files there: Open MPI 4 knows the first name, Open MPI 5 the second."""
    return ["--mca", "orte_tmpdir_base", folder, "--mca", "prte_tmpdir_base", folder]


def children_of(pid):
    """The processes below this one, in /proc."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as stat:
                parents[int(entry)] = int(stat.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has ended
    found, frontier = set(), {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def end(process):
    """Ends mpirun, which ends its ranks; after that what is left of them."""
    ranks = children_of(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(5)
            break
        except subprocess.TimeoutExpired:
            continue
    for pid in ranks:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def start(ranks, program, flags=(), **options):
    """flags: further ones of mpirun. Each has a folder of its own for its files: in a common one, which Open MPI makes when it
    begins and removes when it ends, an mpirun that begins fails while another ends."""
    folder = tempfile.mkdtemp(prefix="ddp-mpirun-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # As a flag, Open MPI 5 would refuse the loopback. As a variable, only Open MPI 4 knows it.
    options["env"] = {**options.get("env", os.environ), "OMPI_MCA_oob_tcp_if_include": "lo"}
    return subprocess.Popen(command_line(ranks, program, [*own_folder(folder), *flags]), **options)


def main():
    ranks, timeout, program = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    began = time.monotonic()
    process = start(ranks, program, stdin=subprocess.DEVNULL)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(program)}: not done after {time.monotonic() - began:.0f} s", file=sys.stderr)
        return 124
    finally:
        end(process)


if __name__ == "__main__":
    sys.exit(main())
