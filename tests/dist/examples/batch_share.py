"""The examples of shares: three ranks, whose shares change, train what one rank trains alone, and the shares sum to the batch. A timeline shows
each rank's share.

usage: batch_share.py DDPRUN COMMAND...        COMMAND is a trainer, which gets a number of steps
"""
import json
import re
import subprocess
import sys
import tempfile

DDPRUN, *TRAINER = sys.argv[1:]
RANKS = 3
SAMPLES = 84
STEPS = 30
BOUND = 80  # seconds


def train(ranks, *options):
    job = subprocess.run([DDPRUN, "-n", str(ranks), *options, *TRAINER, str(STEPS)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, timeout=BOUND)
    print(job.stdout, flush=True)
    if job.returncode != 0:
        sys.exit(f"ended with {job.returncode}")
    ends = re.findall(r"(?m)^\[\d\] rank \d: y = (\S+) (\S+) x$", job.stdout)
    if len(ends) != ranks or len(set(ends)) != 1:
        sys.exit(f"the ranks end differently: {ends}")
    return job.stdout, [float(number) for number in ends[0]]


def shares_of(trace):
    """The shares of each rank, one a step."""
    shares = {}
    for event in json.load(open(trace))["traceEvents"]:
        if event["ph"] == "C" and event["name"] == "share of the batch":
            shares.setdefault(event["pid"], []).append(event["args"]["samples"])
    return list(shares.values())


def main():
    _, expected = train(1)
    with tempfile.TemporaryDirectory() as folder:
        text, got = train(RANKS, "--trace", f"{folder}/trace.json")
        shares = shares_of(f"{folder}/trace.json")
    if any(abs(a - b) > 2e-4 for a, b in zip(got, expected)):
        sys.exit(f"{RANKS} ranks end with {got}, and one with {expected}")
    if len(shares) != RANKS or any(len(one) != STEPS for one in shares) or {sum(step) for step in zip(*shares)} != {SAMPLES}:
        sys.exit(f"the timeline shows {shares}")
    if [one[0] for one in shares] != [SAMPLES // RANKS] * RANKS or min(one[-1] for one in shares) >= SAMPLES // RANKS:
        sys.exit(f"the slow rank keeps its share: {shares}")
    for rank in range(RANKS):
        if not re.search(rf"(?m)^\[\d\] rank {rank}: {SAMPLES // RANKS} of {SAMPLES} samples", text):
            sys.exit(f"rank {rank} does not say its share")


main()
