#!/usr/bin/env python3
"""The slow link between two namespaces and the stream that measures it: bytes get through both ways, a place for each
host, and nothing is left. Skipped (77) where namespaces cannot be made; the stream is then tested on this host alone."""
import pathlib
import subprocess
import sys

import namespaces

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import free_port  # noqa: E402  (tests/support)

WIRE = str(pathlib.Path(__file__).resolve().parent / "performance/wire.py")
TIMEOUT_S = 60


def check_times(output):
    times = [float(line) for line in output.split()]
    assert len(times) == 3 and all(time > 0 for time in times), output


def check_here():
    words = ["127.0.0.1", str(free_port()), "100000", "3"]
    with subprocess.Popen([sys.executable, WIRE, "connect", *words]) as other:
        try:
            check_times(subprocess.run([sys.executable, WIRE, "listen", *words], stdout=subprocess.PIPE, text=True,
                                       check=True, timeout=TIMEOUT_S).stdout)
            assert other.wait(TIMEOUT_S) == 0
        finally:
            other.kill()


def check_link():
    with namespaces.Link("100mbit") as link:
        check_times(namespaces.run_on_both(link, lambda host: [
            sys.executable, WIRE, ("listen", "connect")[host], link.addresses[0], "29411", "100000", "3"], TIMEOUT_S))
        try:
            namespaces.run_on_both(link, lambda host: ["false" if host else "true"], TIMEOUT_S)
        except RuntimeError as failure:
            assert "[0, 1]" in str(failure), failure
        else:
            raise AssertionError("a program that fails on one host must be told")
    left = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert not any(name in left for name in link.names), left


def main():
    check_here()
    reason = namespaces.why_impossible()
    if reason:
        print(f"no namespaces: {reason}")
        return 77
    check_link()
    return 0


if __name__ == "__main__":
    sys.exit(main())
