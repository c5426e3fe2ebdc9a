"""The examples of a shuffle: every sample of every rank is somewhere once, and samples have moved.

usage: shuffle.py DDPRUN COMMAND...        COMMAND deals 1,000 samples of each rank, which are numbers, to all ranks
"""
import re
import subprocess
import sys

RANKS, EACH = 3, 1000

job = subprocess.run([sys.argv[1], "-n", str(RANKS), *sys.argv[2:]], capture_output=True, text=True, timeout=100, check=False)
print(job.stdout + job.stderr, flush=True)
found = [list(map(int, numbers)) for numbers in
         re.findall(r"(?m)^\[\d\] rank (\d): (\d+) samples, sum (\d+), (\d+) of its own$", job.stdout)]
if job.returncode != 0 or len(found) != RANKS:
    sys.exit(f"ended with {job.returncode}")
ranks, counts, sums, own = zip(*sorted(found))
total = RANKS * EACH
if ranks != tuple(range(RANKS)) or sum(counts) != total or sum(sums) != total * (total - 1) // 2:
    sys.exit("samples are missing, or twice there")
if not all(EACH / 4 < kept < EACH / 2 for kept in own):  # a third
    sys.exit(f"ranks keep {own} of their own")
