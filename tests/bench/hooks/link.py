#!/usr/bin/env python3
"""Replays a model between two hosts with a slow link between them, with and without hooks, in the same run.

usage: link.py [--ddprun PATH] [--bench PATH] [--rate 1gbit] [--model resnet50] [--seconds 20] [--json FILE]
               [--page docs/hooks.md]

The hosts are two network namespaces of this machine, joined by a pair of virtual interfaces that tc shapes to the rate,
in both directions. Needs the right to make namespaces (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN); says so and ends
with status 0 where that is missing. Status 1: a hook needs more than its share of the plain time.
"""
import argparse
import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile

BEGIN, END = "<!-- link: written by tests/bench/hooks/link.py -->\n", "<!-- link: end -->\n"

# Hook, options, and the share of the plain time that it may take.
HOOKS = [("fp16", "", 0.55), ("bf16", "", 0.55), ("powersgd", "rank=4,start=2", 0.15)]


class Link:
    """Two namespaces and a shaped link between them. Whatever happens, they are gone at the end."""

    def __init__(self, rate):
        self.rate = rate
        self.names = [f"ddp{os.getpid()}{side}" for side in "ab"]

    def __enter__(self):
        a, b = self.names
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", f"{a}-v", "netns", a, "type", "veth", "peer", "name", f"{b}-v", "netns", b)
            for number, name in enumerate(self.names, 1):
                ip("-n", name, "address", "add", f"10.210.0.{number}/24", "dev", f"{name}-v")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", f"{name}-v", "up")
                run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", f"{name}-v", "root", "tbf", "rate",
                    self.rate, "burst", "256kb", "latency", "50ms")
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def run(*command):
    subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)


def ip(*arguments):
    run("ip", *arguments)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ddprun", default="build/release/tools/run/ddprun")
    parser.add_argument("--bench", default="build/release/tools/bench/ddp-bench")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring each hook")
    parser.add_argument("--timeout", type=float, default=300.0, help="for each hook")
    parser.add_argument("--port", type=int, default=29400)
    parser.add_argument("--json", help="also write the rows to this file, one JSON object a line")
    parser.add_argument("--page", type=pathlib.Path, help="also write a table into this page")
    return parser.parse_args()


def replay(options, link, secret, hook, hook_options):
    """Runs one rank in each namespace and returns the row that rank 0 prints."""
    ranks = []
    try:
        for node, name in enumerate(link.names):
            ranks.append(subprocess.Popen(
                ["ip", "netns", "exec", name, options.ddprun, "--nnodes", "2", "--node-rank", str(node), "--rdzv",
                 f"10.210.0.1:{options.port}", "--secret-file", secret, "-n", "1", "--no-tag", options.bench, "replay", "--model", options.model,
                 "--seconds", str(options.seconds), "--hook", hook, "--hook-options", hook_options, "--json"],
                stdout=subprocess.PIPE, text=True))
        output = ranks[0].communicate(timeout=options.timeout)[0]
        ranks[1].communicate(timeout=30)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()
                rank.wait(timeout=30)
    if any(rank.returncode for rank in ranks):
        sys.exit(f"{hook}: status {[rank.returncode for rank in ranks]}")
    return json.loads(output.splitlines()[-1])


def main():
    options = parse()
    try:
        link = Link(options.rate).__enter__()
    except (OSError, subprocess.CalledProcessError) as reason:
        print(f"skipped: network namespaces cannot be made here ({getattr(reason, 'stderr', None) or reason})".strip())
        return
    with tempfile.NamedTemporaryFile("w", prefix="ddp-link-") as secret:
        secret.write(secrets.token_hex(32) + "\n")
        secret.flush()
        measure(options, link, secret.name)


def write_table(options, rows):
    lines = [f"{options.model}, {options.rate}:\n", "\n", "| Hook | Plain ms | Hook ms | Ratio | CPU ms a rank |\n",
             "|---|---|---|---|---|\n"]
    for row in rows:
        name = " ".join(filter(None, [row["hook"], row["hook_options"]]))
        lines.append(f"| {name} | {row['median_ms']:.0f} | {row['hook_ms']:.0f} | {row['hook_ratio']:.3f} | "
                     f"{row['hook_cpu_ms']:.0f} |\n")
    before, rest = options.page.read_text(encoding="utf-8").split(BEGIN)
    options.page.write_text(before + BEGIN + "".join(lines) + END + rest.split(END)[1], encoding="utf-8")


def measure(options, link, secret):
    failed = []
    try:
        print(f"{options.model}, 2 hosts, {options.rate}, compute 0")
        print(f"{'hook':>16}  {'plain_ms':>9}  {'hook_ms':>9}  {'ratio':>6}  {'at most':>7}  {'cpu_ms':>7}  {'sent':>6}")
        rows = []
        for hook, hook_options, most in HOOKS:
            row = replay(options, link, secret, hook, hook_options)
            rows.append(row)
            print(f"{row['hook']:>16}  {row['median_ms']:9.1f}  {row['hook_ms']:9.1f}  {row['hook_ratio']:6.3f}  {most:7.2f}  "
                  f"{row['hook_cpu_ms']:7.1f}  1/{row['hook_compression']:.1f}", flush=True)
            if row["hook_ratio"] > most:
                failed.append(hook)
    finally:
        link.__exit__()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if options.page:
        write_table(options, rows)
    if failed:
        sys.exit(f"too slow: {', '.join(failed)}")


if __name__ == "__main__":
    main()
