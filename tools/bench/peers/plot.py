#!/usr/bin/env python3
"""Draws the rows of an allreduce benchmark as SVG: time against bytes, a line for each backend or peer, and the limit.

usage: plot.py OUT.svg < ROWS      ROWS: JSON lines of `ddp-bench allreduce` or `ddp-bench peers allreduce`
"""

import json
import sys

TICKS = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]


def name(row):
    return row.get("peer") or f"{row['backend']}, {row['memory']} memory"


def lines(rows):
    """{label: [(bytes, ms), ...]} of each peer's best setting, and the limit of the first that has one."""
    found, limit = {}, {}
    for row in sorted(rows, key=lambda row: row["bytes"]):
        if row.get("best", True):
            found.setdefault(name(row), []).append((row["bytes"], row["median_ms"]))
        if "limit_ms" in row:
            limit.setdefault(row["bytes"], row["limit_ms"])
    return found, sorted(limit.items())


def human(size):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:g} {unit}"
        size /= 1024


def draw(rows, path):
    """False, and a line, without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print(f"{path} is not drawn: there is no matplotlib (python3-matplotlib) in {sys.executable}", file=sys.stderr)
        return False
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ddp", "font.family": "sans-serif"})
    import matplotlib.pyplot as pyplot
    found, limit = lines(rows)
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for label, points in found.items():
        axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1.3, label=label)
    if limit:
        axes.plot(*zip(*limit), color="black", linestyle="--", linewidth=1, label="limit of the memory")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(TICKS, [human(size) for size in TICKS])
    axes.set_xlabel("bytes")
    axes.set_ylabel("ms, median")
    axes.set_title(f"allreduce, {rows[0]['world']} ranks", fontsize=10)
    axes.grid(which="major", linewidth=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return True


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    draw([json.loads(line) for line in sys.stdin if line.strip()], sys.argv[1])
