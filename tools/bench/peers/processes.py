"""Starting programs: the ranks of a job, on this host or on several, and single commands. Leaves no process behind."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

GRACE_S = 5


@dataclass(frozen=True)
class Place:
    """Where ranks run: what to put before their command, and the network interface by which others reach them."""
    prefix: tuple = ()
    interface: str = "lo"


HERE = Place()


def run_ranks(command, world, timeout, places=(HERE,), stdout=None):
    """Runs the command as each rank, the same number in each place, and returns the exit status of the first that
    failed. stdout: where all ranks write to; None: where this process does."""
    each = -(-world // len(places))
    with tempfile.TemporaryDirectory(prefix="ddp-peer-") as folder, stopping_when_told():
        ranks = [subprocess.Popen([*places[rank // each].prefix, *command], stdout=stdout,
                                  env=rank_environment(rank, world, folder, places[rank // each].interface))
                 for rank in range(world)]
        try:
            return wait(ranks, time.monotonic() + timeout)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.wait()


def is_rank():
    return "RANK" in os.environ and "DDP_PEER_FOLDER" in os.environ


def rank_environment(rank, world, folder, interface):
    environment = dict(os.environ)
    environment.update({
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "DDP_PEER_FOLDER": folder,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": interface,
        # Without these glibc returns a large gradient's memory to the system after each step and asks for it again in
        # the next. That would cost PyTorch a page fault for every 4 KiB, which is not what is compared here.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "MALLOC_TOP_PAD_": str(64 << 20),
    })
    return environment


def wait(ranks, deadline):
    while True:
        states = [rank.poll() for rank in ranks]
        failed = [state for state in states if state]
        if failed:
            return abs(failed[0])
        if all(state == 0 for state in states):
            return 0
        if time.monotonic() > deadline:
            print("the ranks did not end in time", file=sys.stderr)
            return 124
        time.sleep(0.02)


@contextlib.contextmanager
def stopping_when_told():
    """So that what is cleaned up at the end is cleaned up after SIGTERM as well. A handler that the program has already stays."""
    before = signal.getsignal(signal.SIGTERM)
    ours = before == signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def run(command, timeout, environment=None, stderr=None):
    """Runs a command and whatever it starts. Returns its exit status (124: out of time) and what it wrote to stdout. stderr: where that
    goes; subprocess.STDOUT: to stdout."""
    with stopping_when_told():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
                                   env={**os.environ, **(environment or {})})
        try:
            output = process.communicate(timeout=timeout)[0]
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return 124, ""
        finally:
            end_session(process)


def end_session(process):
    """Ends what is left of the command's processes: asks first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    process.wait()
    process.stdout.close()
