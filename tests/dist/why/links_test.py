#!/usr/bin/env python3
"""Two hosts, which are network namespaces, and a link between them that is slow or is cut: what ddprun and ddp-why say.

Skipped (77) where namespaces cannot be made.

    DDPRUN=... DDP_WHY=... DDP_RECORD_WORKER=... python3 links_test.py [--all] [--show]
"""
import argparse
import re
import subprocess
import sys
import tempfile
import time

from jobs import BOUND_S, DDPRUN, SLACK, TESTS, Said, explain, worker

sys.path.insert(0, str(TESTS.parent / "tools/bench/runs"))
import namespaces  # noqa: E402  (tools/bench/runs)

PORT = 29471
RATE = "60mbit"  # a tenth of what the steps below would need to be short
LINK = r"the connection between rank \d \(on \S+\) and rank \d( \(on \S+\))?"
CUT_OFF = r"cut off"
SLOW = r"^collectives take most of each step: \d+ ms of \d+ ms .* no rank is late"


def run_job(link, then, one_folder, **settings):
    """A rank on each host. then(folder with the records of rank 0): what to do while it runs. one_folder: for the records of both, as on a file system that hosts share."""
    with tempfile.TemporaryDirectory(prefix="ddp-record-test-") as folder, tempfile.NamedTemporaryFile("w") as secret:
        secret.write("a secret of this test's own, long enough\n")
        secret.flush()
        folders = [f"{folder}/{0 if one_folder else node}" for node in range(2)]
        hosts = [subprocess.Popen(
            [*link.prefix(node), DDPRUN, "--nnodes", "2", "--node-rank", str(node), "--rdzv", f"{link.addresses[0]}:{PORT}",
             "--secret-file", secret.name, "-n", "1", "--grace", "1", "--node-timeout", "3", "--record", folders[node], *worker(**settings)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for node in range(2)]
        try:
            then(folders[0])
            said = [host.communicate(timeout=BOUND_S)[0] for host in hosts]
        finally:
            for host in hosts:
                if host.poll() is None:
                    host.kill()
                    host.communicate()
        return Said("".join(said), explain(folders[0]))


def slow_link(backend):
    with namespaces.Link(RATE) as link:
        return run_job(link, lambda _: None, True, backend=backend, timeout=int(30_000 * SLACK), steps=14, size=50_000, bucket_cap=1 << 20)


def cut_link(backend):
    with namespaces.Link(None) as link:
        def cut(folder):
            give_up = time.monotonic() + BOUND_S
            while not re.search(r"of step \d", explain(folder)) and time.monotonic() < give_up:
                time.sleep(0.1)
            namespaces.ip("-n", link.names[1], "link", "set", link.interfaces[1], "down")
        return run_job(link, cut, False, backend=backend, timeout=int(2500 * SLACK), steps=100_000, size=20_000, compute_us=5000)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true", help="gloo and hierarchical, too")
    parser.add_argument("--show", action="store_true", help="print what was said")
    options = parser.parse_args()
    namespaces.skip_where_impossible()
    faults = 0
    for backend in ("tcp", "hierarchical", "gloo") if options.all else ("tcp",):
        counted = backend != "gloo"
        for make, words in ((slow_link, SLOW + (rf"; {LINK} moves \S+ MB a second" if counted else "")),
                            (cut_link, LINK + r".* dead" if counted else CUT_OFF)):
            said = make(backend)
            if options.show:
                print(f"{make.__name__} of {backend}:", *said.ddprun, *said.why, sep="\n  ")
            # After a cut each host has its own records. One end of the link may have nothing left to send.
            if not any(re.search(words, line) for line in said.why + said.ddprun):
                faults += 1
                print(f"=== {make.__name__} of {backend}: nobody said '{words}':\n{said}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
