"""Runs ddp-bench where what it writes finds no room, and checks that it says which file and why, and does not end with status 0."""
import subprocess
import sys

BENCH = sys.argv[1]
FULL = "No space left on device"


def check(words, says, **options):
    done = subprocess.run([BENCH, *words], stderr=subprocess.PIPE, text=True, timeout=100, **{"stdout": subprocess.DEVNULL, **options})
    if done.returncode != 1 or f"ddp-bench: {says}" not in done.stderr:
        sys.exit(f"{words} ended with {done.returncode}: {done.stderr}")


with open("/dev/full", "wb") as full:
    for words in (["models", "--model", "resnet50"], ["--help"], ["--version"],
                  ["allreduce", "--world", "2", "--bytes", "4096", "--iters", "3", "--json"],
                  ["join", "--world", "2"]):
        check(words, f"cannot write standard output: {FULL}", stdout=full)
check(["allreduce", "--world", "2", "--bytes", "4096", "--iters", "3", "--csv", "/dev/full"], f"cannot write /dev/full: {FULL}")
check(["replay", "--world", "2", "--model", "10x1000", "--iters", "3", "--trace", "/dev/full"], f"cannot write /dev/full: {FULL}")
