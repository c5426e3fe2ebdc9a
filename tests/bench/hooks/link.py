#!/usr/bin/env python3
"""Replays a model between hosts with slow links between them, with and without hooks, in the same run.

usage: link.py [--ddprun PATH] [--bench PATH] [--rate 1gbit] [--model resnet50] [--hosts 2,4] [--seconds 20] [--json FILE]
               [--page docs/hooks.md]

The hosts are network namespaces of this machine (namespaces.py). Where they cannot be made this says so and ends
with status 0. Status 1: a hook needs more than its share of the plain time.
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/bench/runs"))
import namespaces

BEGIN, END = "<!-- link: written by tests/bench/hooks/link.py -->\n", "<!-- link: end -->\n"

# Hook, options, and the share of the plain time that it may take.
HOOKS = [("fp16", "", 0.55), ("bf16", "", 0.55), ("quantize", "", 0.35), ("quantize", "rounding=stochastic", 0.45),
         ("powersgd", "rank=4,start=2", 0.15)]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ddprun", default="build/release/tools/run/ddprun")
    parser.add_argument("--bench", default="build/release/tools/bench/ddp-bench")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--hosts", default="2,4", help="how many; a run for each of these")
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring each hook")
    parser.add_argument("--timeout", type=float, default=300.0, help="for each hook")
    parser.add_argument("--port", type=int, default=29400)
    parser.add_argument("--json", help="also write the rows to this file, one JSON object a line")
    parser.add_argument("--page", type=pathlib.Path, help="also write a table into this page")
    return parser.parse_args()


def replay(options, link, hook, hook_options):
    """Runs one rank on each host and returns the row that rank 0 prints."""
    output = namespaces.run_job(link, options.ddprun, 1, [
        options.bench, "replay", "--model", options.model, "--seconds", str(options.seconds), "--hook", hook,
        "--hook-options", hook_options, "--json"], options.timeout, options.port)
    return json.loads(output.splitlines()[-1])


def main():
    options = parse()
    reason = namespaces.why_impossible(options.rate)
    if reason:
        print(f"skipped: network namespaces cannot be made here ({reason})")
        return
    rows = []
    try:
        for hosts in map(int, options.hosts.split(",")):
            with namespaces.Link(options.rate, hosts) as link:
                rows += [{"hosts": hosts, **row} for row in measure(options, link)]
    except RuntimeError as failure:
        sys.exit(str(failure))
    report(options, rows)


def write_table(options, rows):
    lines = [f"{options.model}, {options.rate}:\n", "\n", "| Hook | Hosts | Plain ms | Hook ms | Ratio | CPU ms a rank |\n",
             "|---|---|---|---|---|---|\n"]
    for row in rows:
        name = " ".join(filter(None, [row["hook"], row["hook_options"]]))
        lines.append(f"| {name} | {row['hosts']} | {row['median_ms']:.0f} | {row['hook_ms']:.0f} | {row['hook_ratio']:.3f} | "
                     f"{row['hook_cpu_ms']:.0f} |\n")
    before, rest = options.page.read_text(encoding="utf-8").split(BEGIN)
    options.page.write_text(before + BEGIN + "".join(lines) + END + rest.split(END)[1], encoding="utf-8")


def measure(options, link):
    print(f"{options.model}, {len(link.names)} hosts, {options.rate}, compute 0")
    print(f"{'hook':>16}  {'plain_ms':>9}  {'hook_ms':>9}  {'ratio':>6}  {'at most':>7}  {'cpu_ms':>7}  {'sent':>6}")
    rows = []
    for hook, hook_options, most in HOOKS:
        row = replay(options, link, hook, hook_options)
        rows.append({**row, "at_most": most})
        print(f"{row['hook']:>16}  {row['median_ms']:9.1f}  {row['hook_ms']:9.1f}  {row['hook_ratio']:6.3f}  {most:7.2f}  "
              f"{row['hook_cpu_ms']:7.1f}  1/{row['hook_compression']:.1f}", flush=True)
    return rows


def report(options, rows):
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if options.page:
        write_table(options, rows)
    failed = [f"{row['hook']} on {row['hosts']} hosts" for row in rows if row["hook_ratio"] > row["at_most"]]
    if failed:
        sys.exit(f"too slow: {', '.join(failed)}")


if __name__ == "__main__":
    main()
