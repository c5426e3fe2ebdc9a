"""Shared by clusters on this machine: a folder, hosts that are network namespaces, and an end that leaves nothing behind."""
import atexit
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/bench/runs"))
import namespaces  # noqa: E402  (tools/bench/runs)

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def why_impossible(programs, setup):
    """None where there can be such hosts, else the reason. setup: the command that installs the programs."""
    if os.geteuid() != 0:
        return "hosts of their own need root"
    missing = [program for program in programs if not shutil.which(program, path=PATH)]
    if missing:
        return f"there is no {', '.join(missing)}: {setup}"
    return namespaces.why_impossible(None)


def pids_of(namespace):
    """The processes in a network namespace."""
    found = subprocess.run(["ip", "netns", "pids", namespace], stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    return [int(pid) for pid in found]


class Hosts:
    """A cluster has start(), end() and logs(). `folder` is its own, and others may read it."""
    folder_prefix = "ddp-hosts-"
    bound = 40  # seconds that until() waits

    def __enter__(self):
        self.held = tempfile.TemporaryDirectory(prefix=self.folder_prefix, dir="/tmp", ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self.held.name)
        self.folder.chmod(0o755)
        atexit.register(self.__exit__)  # for a test that is interrupted
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        atexit.unregister(self.__exit__)
        self.end()
        self.held.cleanup()

    def until(self, condition, what, bound=None):
        bound = bound or self.bound
        end = time.monotonic() + bound
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"{what} within {bound} s\n{self.logs()}")
            time.sleep(0.05)

    @staticmethod
    def kill_all_in(names, seconds=10):
        """Ends the processes that are left in these namespaces, also those that they start meanwhile."""
        end = time.monotonic() + seconds
        while (pids := [pid for name in names for pid in pids_of(name)]) and time.monotonic() < end:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
