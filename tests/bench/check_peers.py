#!/usr/bin/env python3
"""Runs `ddp-bench peers` for a moment and checks its rows. What they say of time is not looked at.

usage: check_peers.py DDP-BENCH allreduce|replay [--optimizer]
"""

import csv
import json
import math
import os
import subprocess
import sys
import tempfile

PEERS = {"allreduce": ["Gloo", "Open MPI", "PyTorch"], "replay": ["PyTorch"]}
ARGUMENTS = {
    "allreduce": ["--bytes", "4,4096", "--memory", "own,group"],
    "replay": ["--model", "3x50", "--bucket-mb", "0.0005,25"],
}
FIELDS = {
    "allreduce": ["bytes", "median_ms", "ratio"],
    "replay": ["median_ms", "local_ms", "over_local_ms"],
}
OURS = {
    "allreduce": {("libddp gloo, own memory", ""), ("libddp gloo, group memory", "")},
    "replay": {("libddp gloo", f"{mode}, {cap} MiB") for mode in ("view", "copy") for cap in ("0.0005", "25")},
}
TIMEOUT_S = 200


def check_bests(rows, group):
    """Every peer has a best row in every group."""
    for key in {(row["peer"], group(row)) for row in rows}:
        same = [row for row in rows if (row["peer"], group(row)) == key]
        best = [row for row in same if row["best"]]
        assert best and min(row["median_ms"] for row in same) == best[0]["median_ms"], f"no best among {same}"


def main():
    bench, what, *more = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ddp-peers-") as folder:
        table = os.path.join(folder, "rows.csv")
        job = subprocess.run([bench, "peers", what, "--backend", "gloo", "--rounds", "2", "--seconds", "0.01", "--timeout",
                              "40", "--json", "--csv", table, *ARGUMENTS[what], *more],
                             capture_output=True, text=True, timeout=TIMEOUT_S)
        assert job.returncode == 0, f"status {job.returncode}: {job.stderr}"
        with open(table, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    rows = [json.loads(line) for line in job.stdout.splitlines()]
    assert len(lines) == len(rows), f"{len(lines)} lines of CSV for {len(rows)} rows"
    for row in rows:
        assert row["rounds"] == 2 and row["world"] == 2, row
        assert all(math.isfinite(row[field]) for field in FIELDS[what]), row
    ways = ["AdamW, ", "shards, ", "shards in the step, "] if more else [""]
    ours = {(peer, setting.replace(", ", f", {way}")) for peer, setting in OURS[what] for way in ways}
    assert ours <= {(row["peer"], row["setting"]) for row in rows}, f"not all of libddp: {rows}"
    check_bests(rows, lambda row: row["bytes"])
    for peer in PEERS[what]:
        there = any(row["peer"].startswith(peer) for row in rows)
        assert there or f"{peer} is left out" in job.stderr, f"neither rows of {peer} nor a word: {job.stderr}"
    assert what == "replay" or any(row["peer"] == "Gloo" for row in rows), "Gloo is always there"


if __name__ == "__main__":
    main()
