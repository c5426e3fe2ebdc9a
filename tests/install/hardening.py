#!/usr/bin/env python3
"""Checks with readelf that the installed libraries, modules and programs were built with cmake/DdpHardening.cmake.

usage: hardening.py PREFIX LIBDIR OPTIMISED      OPTIMISED: 1 if the C library checks sizes in this build, else 0
"""
import pathlib
import re
import subprocess
import sys

PREFIX, LIBDIR, OPTIMISED = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"
# A module may call no function that the C library can check.
CHECKED = {"libddp.so", "ddprun", "ddp-why", "ddp-bench"}


def faults_of(path):
    shown = subprocess.run(["readelf", "--wide", "--dynamic", "--segments", "--dyn-syms", path], stdout=subprocess.PIPE, text=True,
                           timeout=30, check=True).stdout
    imported = set(re.findall(r" UND (\w+)", shown))
    if not re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*\bNOW\b", shown):
        yield "BIND_NOW is missing: the loader leaves its table of functions writable (-z now)"
    if "GNU_RELRO" not in shown:
        yield "GNU_RELRO is missing (-z relro)"
    if "__stack_chk_fail" not in imported:
        yield "no function checks its stack (-fstack-protector-strong)"
    if path.name in CHECKED:
        if OPTIMISED and not any(re.fullmatch(r"__\w+_chk", name) for name in imported):
            yield "the C library checks no sizes (_FORTIFY_SOURCE)"
        if "_ZSt21__glibcxx_assert_failPKciS0_S0_" not in imported:
            yield "the C++ library checks no indices (_GLIBCXX_ASSERTIONS)"


def main():
    lib = PREFIX / LIBDIR
    files = [lib / "libddp.so", *sorted(lib.glob("ddp/libddp-*.so")), *sorted(PREFIX.glob("lib*/python*/*-packages/ddp/_*.so")),
             *(PREFIX / "bin" / name for name in ("ddprun", "ddp-why", "ddp-bench"))]
    faults = [f"{file}: {fault}" for file in files for fault in faults_of(file)]
    print("\n".join(faults + [f"{len(files)} files, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
