#!/usr/bin/env python3
"""Draws the first step of a trace as a timeline: the gradients of the backward pass, and below them the buckets on their way.

usage: overlap.py TRACE SVG      TRACE is a file of ddp-bench replay --trace

docs/overlap.svg was drawn so, on two ranks of one machine:

    ddp-bench replay --world 2 --backend tcp --model resnet50 --bucket-mb 10 --compute-ms 300 --sleep --trace trace.json
    tools/evaluation/timeline.py trace.json docs/overlap.svg
"""
import json
import re
import sys

import drawing

STEP = re.compile(r"step 0, (?:bucket (\d+))?")
GREY, COLOURS = "#b8b8b8", ["#1f77b4", "#74add1"]


def spans(trace, kind):
    """(name of the bucket or "", begin, end) in milliseconds of the first step."""
    for event in trace["traceEvents"]:
        if event.get("cat") == kind and (name := STEP.match(event["name"])):
            begin = event["ts"] / 1000
            yield name[1] or "", begin, begin + event["dur"] / 1000


def draw(trace, path):
    """Whether it was drawn."""
    pyplot = drawing.find_matplotlib()
    if pyplot is None:
        return False
    gradients = sorted(spans(trace, "backward"), key=lambda span: span[1])
    buckets = sorted(spans(trace, "communicate"), key=lambda span: span[1])
    start, computed, reduced = gradients[0][1], max(span[2] for span in gradients), max(span[2] for span in buckets)
    sheet, axes = pyplot.subplots(figsize=(8.6, 2.1))
    for _, begin, end in gradients:
        axes.barh(1, end - begin, left=begin - start, height=0.5, color=GREY, edgecolor="white", linewidth=0.3)
    for number, (name, begin, end) in enumerate(buckets):
        axes.barh(0, end - begin, left=begin - start, height=0.5, color=COLOURS[number % 2], edgecolor="white", linewidth=0.3)
        if end - begin > 0.02 * (reduced - start):
            axes.text((begin + end) / 2 - start, 0, name, ha="center", va="center", color="white", fontsize=8)
    axes.axvline(computed - start, color="#555555", linewidth=0.8, linestyle=":")
    axes.text(computed - start, 1.4, f"last gradient: {computed - start:.0f} ms; mean of all: {reduced - start:.0f} ms ", ha="right",
              va="bottom", fontsize=8)
    axes.set_yticks([1, 0], ["backward pass,\none box a gradient", "network,\none box a bucket"])
    axes.set_ylim(-0.45, 1.75)
    axes.set_xlabel("milliseconds from the first gradient's computation")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    sheet.tight_layout()
    sheet.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(sheet)
    return True


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        return 0 if draw(json.load(file), sys.argv[2]) else 1


if __name__ == "__main__":
    sys.exit(main())
