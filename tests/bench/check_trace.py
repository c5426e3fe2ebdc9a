#!/usr/bin/env python3
"""Runs a `ddp-bench replay` with --trace and checks the trace against the row: what is in it, and the overlap.

usage: check_trace.py COMMAND...
"""

import json
import subprocess
import sys
import tempfile

STEPS = 3
TIMEOUT_S = 60


def merged(spans):
    """The union of spans, as spans in order that do not touch."""
    result = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1][1] = max(end, result[-1][1])
        else:
            result.append([begin, end])
    return result


def length(spans):
    return sum(end - begin for begin, end in spans)


def shared(one, other):
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)


def check_rows(events):
    """Nothing on a row of the picture begins before what is left of it has ended."""
    for row in {event["tid"] for event in events}:
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == row)
        for (_, end), (begin, _) in zip(spans, spans[1:]):
            assert begin >= end - 1e-3, f"on row {row} something begins at {begin}, before {end}"


def main():
    with tempfile.NamedTemporaryFile(prefix="ddp-trace-", suffix=".json") as file:
        job = subprocess.run([*sys.argv[1:], "--json", "--trace", file.name], stdout=subprocess.PIPE, text=True,
                             timeout=TIMEOUT_S)
        assert job.returncode == 0, f"status {job.returncode}"
        row = json.loads(job.stdout)
        told = json.load(file)["traceEvents"]
    events = [event for event in told if event["ph"] == "X"]
    check_rows(events)
    tracks = {kind: [event for event in events if event["cat"] == kind] for kind in ("backward", "communicate")}
    assert 0 < len(tracks["backward"]) <= STEPS * row["params"], f"{len(tracks['backward'])} pieces of backward"
    assert 0 < len(tracks["communicate"]) <= STEPS * row["buckets"], f"{len(tracks['communicate'])} buckets: {row}"
    times = {kind: merged((e["ts"], e["ts"] + e["dur"]) for e in tracks[kind]) for kind in tracks}
    total = length(times["communicate"])
    overlap = shared(times["communicate"], times["backward"]) / total
    assert abs(overlap - row["overlap"]) < 1e-3, f"the trace says {overlap}: {row}"
    assert abs(total / STEPS / 1e3 - row["comm_ms"]) < 1e-3 * row["comm_ms"] + 1e-6, f"the trace says {total} us: {row}"
    print(row)


if __name__ == "__main__":
    main()
