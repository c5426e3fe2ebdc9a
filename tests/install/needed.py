#!/usr/bin/env python3
"""Checks what a process has mapped that loads an installed libddp: libuv, OpenSSL, Highway and the C and C++ runtimes, and nothing else.

    needed.py LIBDDP.SO
"""
import re
import subprocess
import sys

OURS = {"libuv", "libssl", "libcrypto", "libhwy"}
RUNTIMES = {"libstdc++", "libm", "libgcc_s", "libc", "libatomic", "linux-vdso", "ld-linux"}


def main():
    path = sys.argv[1]
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=30, check=True).stdout
    mapped = {re.match(r"\s*(?:\S*/)?(ld-linux|linux-vdso|lib.*?(?=[.]so)|\S+)", line)[1] for line in listed.splitlines()}
    print(*sorted(mapped))
    wrong = sorted(mapped - OURS - RUNTIMES), sorted(OURS - mapped)
    if any(wrong):
        print(f"{path} maps {wrong[0]} and lacks {wrong[1]}:\n{listed}")
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
