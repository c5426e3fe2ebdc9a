"""Ports for tests to listen on."""
import fcntl
import os
import random
import socket
import tempfile
import threading

_lock = threading.Lock()
_taken = set()  # until this process ends
_file = None


def free_port():
    """A port that nobody has, that no other test is given as long as this process lives, and that the system gives to nobody who asks for
    any: one of those that it does give may be taken by the time that it is used."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as given:
        first_given = int(given.read().split()[0])
    for _ in range(100):
        port = random.randrange(10_000, max(first_given, 10_001))
        with _lock:
            if port in _taken or not _reserve(port):
                continue
            _taken.add(port)
        if _is_free(port):
            return port
    raise OSError("no free port was found")


def _reserve(port):
    """One byte of a file that all tests share stands for each port. The locks end with the process."""
    global _file
    if _file is None:
        path = os.path.join(tempfile.gettempdir(), f"ddp-test-ports-{os.getuid()}")
        _file = open(path, "ab")  # noqa: SIM115  (open as long as the process lives)
    try:
        fcntl.lockf(_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
