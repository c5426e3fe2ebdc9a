#!/usr/bin/env python3
"""Runs a ddp-bench command and checks that it prints the rows that its documentation promises, and writes the same as CSV.
Where the command needs a GPU and there is none, the check is skipped.

usage: check_rows.py ROWS EXTRA,FIELDS COMMAND...
"""

import csv
import json
import math
import re
import subprocess
import sys
import tempfile

FIELDS = ["name", "world", "backend", "bytes", "iters", "median_ms", "p10_ms", "p90_ms"]
TEXTS = {"name", "backend", "model", "mode", "dtype", "memory", "what"}
TIMEOUT_S = 60
NO_GPU = re.compile(r"no device: .*|.*built with the CUDA module.*")


def check_row(row, extra):
    for field in FIELDS + extra:
        assert field in row, f"{field} is missing from {row}"
        assert field in TEXTS or math.isfinite(row[field]), f"{field} of {row} is not a number"
    assert row["p10_ms"] <= row["median_ms"] <= row["p90_ms"], f"percentiles out of order: {row}"
    assert row.get("tail", 1) >= 1, f"the 99th percentile is below the median: {row}"
    assert row["iters"] > 0 and row["world"] > 0, f"nothing was measured: {row}"


def check_csv(path, rows):
    with open(path, encoding="utf-8", newline="") as file:
        same = list(csv.DictReader(file))
    assert len(same) == len(rows), f"{len(same)} rows in the CSV file"
    for ours, theirs in zip(rows, same):
        assert {key: str(value) for key, value in ours.items() if key in TEXTS} == {
            key: value for key, value in theirs.items() if key in TEXTS}, f"{theirs} in the CSV file, printed {ours}"
        assert float(theirs["median_ms"]) == ours["median_ms"], f"{theirs} in the CSV file, printed {ours}"


def main():
    expected, extra, command = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    with tempfile.NamedTemporaryFile(prefix="ddp-rows-") as file:
        job = subprocess.run([*command, "--csv", file.name], capture_output=True, text=True, timeout=TIMEOUT_S)
        print(job.stderr, file=sys.stderr, end="")
        if job.returncode != 0 and (none := NO_GPU.search(job.stderr)):
            print(f"skipped: {none[0]}")
            return
        assert job.returncode == 0, f"status {job.returncode} of {command}"
        rows = [json.loads(line) for line in job.stdout.splitlines()]
        assert len(rows) == expected, f"{len(rows)} rows instead of {expected}: {job.stdout}"
        for row in rows:
            check_row(row, extra)
        check_csv(file.name, rows)


if __name__ == "__main__":
    main()
