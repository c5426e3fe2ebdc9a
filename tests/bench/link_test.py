#!/usr/bin/env python3
"""The slow link between two namespaces and the streams that measure it: bytes get through both ways, a place for each
host, and nothing is left. Skipped (77) where namespaces cannot be made; the stream is then tested on this host alone."""
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent / "tools/bench/runs")]
import namespaces  # noqa: E402  (tools/bench/runs)
from ports import free_port  # noqa: E402  (tests/support)

SOURCE = pathlib.Path(__file__).resolve().parent / "performance/tcp_streams.c"
TIMEOUT_S = 60
STREAMS = 2


def check_times(output):
    times = [float(line) for line in output.split()]
    assert len(times) == 3 and all(time > 0 for time in times), output


def check_here(program):
    words = ["127.0.0.1", str(free_port()), "100000", "3", str(STREAMS)]
    with subprocess.Popen([program, "connect", *words]) as other:
        try:
            check_times(subprocess.run([program, "listen", *words], stdout=subprocess.PIPE, text=True,
                                       check=True, timeout=TIMEOUT_S).stdout)
            assert other.wait(TIMEOUT_S) == 0
        finally:
            other.kill()


def check_link(program):
    with namespaces.Link("100mbit") as link:
        check_times(namespaces.run_on_hosts(link, lambda host: [
            program, ("listen", "connect")[host], link.addresses[0], "29411", "100000", "3", str(STREAMS)], TIMEOUT_S))
        try:
            namespaces.run_on_hosts(link, lambda host: ["false" if host else "true"], TIMEOUT_S)
        except RuntimeError as failure:
            assert "[0, 1]" in str(failure), failure
        else:
            raise AssertionError("a program that fails on one host must be told")
    left = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert not any(name in left for name in link.names), left


def main():
    with tempfile.TemporaryDirectory(prefix="ddp-tcp-") as folder:
        program = f"{folder}/tcp_streams"
        subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-o", program, str(SOURCE)], check=True)
        check_here(program)
        namespaces.skip_where_impossible()
        check_link(program)


if __name__ == "__main__":
    main()
