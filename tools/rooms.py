#!/usr/bin/env python3
"""Prints the rooms of tests for what a change touches, for tools/test --changed.

usage: rooms.py [COMMIT]    what the working tree changes since COMMIT (HEAD), files that git does not know yet included
       rooms.py --table     which rooms belong to which path

A room is a folder of tests, as tools/test takes it. Prints "everything" where no set of rooms is enough.
"""
import fnmatch
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The first pattern that fits a path counts. "*" also stands for "/".
ROOMS = (
    ("lib/util/*", "util rendezvous failure process model"),
    ("lib/launch/*", "launch rendezvous process"),
    ("lib/rendezvous/*", "rendezvous failure process"),
    ("lib/wire/*", "wire rendezvous failure attack model"),
    ("lib/backends/mpi/*", "mpi model"),
    ("lib/backends/nccl/*", "cuda gpu"),
    ("lib/device/cuda/*", "cuda gpu"),
    ("lib/kernels/cuda/*", "cuda gpu"),
    ("lib/device/*", "device cuda capi"),
    ("lib/kernels/*", "device cuda capi equivalence"),
    ("lib/backends/*", "backend tcp gloo capi failure model"),
    ("lib/comm/*", "comm gloo backend capi failure model"),
    ("lib/hooks/*", "hooks equivalence"),
    ("lib/elastic/*", "elastic capi"),
    ("lib/outer/*", "hooks elastic capi"),
    ("lib/optimizer/*", "capi device python"),
    ("lib/record/*", "record why run model"),
    ("lib/core/*", "core capi hooks property equivalence failure model"),
    ("lib/capi/*", "capi abi install python java julia rust go"),
    ("include/*", "capi abi install python java julia rust go"),
    ("abi/*", "abi"),
    ("tools/run/*", "run why"),
    ("tools/why/*", "why run model"),
    ("tools/model-check", "model"),
    ("tools/bench/*", "bench"),
    ("tools/evaluation/*", "bench"),
    ("bindings/python/*", "python"),
    ("bindings/java/*", "java"),
    ("bindings/julia/*", "julia"),
    ("bindings/rust/*", "rust"),
    ("bindings/go/*", "go"),
    ("bindings/*", "python java julia rust"),
    ("examples/*", "examples launchers bindings"),
    ("docs/*", "install"),
    ("pkgconfig/*", "install"),
    ("*.md", "install"),
    ("tests/unit/*/*", "{2}"),
    ("tests/dist/*/*", "{2}"),
    ("tests/bindings/*/*", "{2}"),
    ("tests/support/*", "everything"),
    ("tests/*/*", "{1}"),
)


def rooms_of(path):
    for pattern, rooms in ROOMS:
        if fnmatch.fnmatchcase(path, pattern):
            return rooms.format(*path.split("/")).split()
    return ["everything"]  # the build, the tools that run the tests


def changed(commit):
    def git(*args):
        return subprocess.run(["git", "-C", str(ROOT), *args], check=True, capture_output=True, text=True).stdout.split("\0")[:-1]

    return [*git("diff", "--name-only", "-z", commit, "--"), *git("ls-files", "--others", "--exclude-standard", "-z")]


def main():
    if sys.argv[1:] == ["--table"]:
        for pattern, rooms in ROOMS:
            print(f"{pattern:24} {rooms}")
        return 0
    if len(sys.argv) > 2 or sys.argv[1:2] and sys.argv[1].startswith("-"):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    try:
        paths = changed(*sys.argv[1:] or ["HEAD"])
    except subprocess.CalledProcessError as error:
        print(f"rooms.py: {error.stderr.strip()}", file=sys.stderr)
        return 2
    found = sorted({room for path in paths for room in rooms_of(path)})
    print("everything" if "everything" in found else " ".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
