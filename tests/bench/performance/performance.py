#!/usr/bin/env python3
"""Measures what docs/performance.md tells, and writes that page.

usage: performance.py [SECTION...] [--page docs/performance.md] [--quick] ...

  allreduce    2 ranks of one host, 4 KiB to 240 MiB: libddp, Gloo, Open MPI, PyTorch, and the limit of the memory
  replay       resnet50 and bert-base beside PyTorch's DistributedDataParallel
  tail         the 99th percentile of small allreduces beside Gloo and beside a busy loop
  overhead     2,000 small parameters on one rank
  crowd        8 ranks
  join         64 ranks of one host join over tcp, beside Gloo
  store        10 to 10,000 clients of one store join, meet and hear of a key
  elastic      a rank is killed, a rank joins, and a step without either, in an elastic job
  link         two hosts and a slow link: its limit, PyTorch's DistributedDataParallel, overlap
  fast-link    two hosts and a link that nothing slows: plain and encrypted, beside TCP alone and Gloo
  round-robin  1, 2 and 4 round robin groups
  autotune     the bucket cap that libddp finds, beside the usual one and the best of a sweep
  predict      predicted steps (ddp-bench predict) beside measured ones
  first-used   a next forward pass that waits layer by layer: a plan in the order of first use, measured, and predictions
  gpu          one GPU, from --gpu-logs: what tools/test-gpu has left on a machine that has one

Without sections all of them; a page keeps the sections that are not measured again. What is missing here (a backend,
PyTorch, MPI, the right to make network namespaces) is said and left out. Status 1: a criterion was measured and not met.
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/bench/runs"))
import autotune
import elastic
import first_used
import gpu
import one_host
import prediction
import report
import running
import store
import two_hosts

SECTIONS = {
    "allreduce": ("Allreduce on one host", one_host.allreduce),
    "replay": ("A model's gradients beside PyTorch", one_host.replay),
    "tail": ("Small allreduces on busy processors", one_host.tail),
    "overhead": ("The cost of a step on one rank", one_host.overhead),
    "crowd": ("More ranks than cores", one_host.crowd),
    "join": ("Joining 64 ranks", one_host.join),
    "store": ("10,000 clients of a store", store.store),
    "elastic": ("Ranks that come and go", elastic.elastic),
    "link": ("Two hosts and a slow link", two_hosts.link),
    "fast-link": ("Two hosts and a fast link", two_hosts.fast_link),
    "round-robin": ("Round robin groups", two_hosts.round_robin),
    "autotune": ("Finding the bucket cap", autotune.autotune),
    "predict": ("Predicted steps", prediction.predict),
    "first-used": ("First-used layers first", first_used.first_used),
    "gpu": ("On a GPU", gpu.gpu),
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="of those above")
    parser.add_argument("--bench", default="build/release/tools/bench/ddp-bench")
    parser.add_argument("--ddprun", default="build/release/tools/run/ddprun")
    parser.add_argument("--elastic", default="build/release/tests/bench/bench_elastic")
    parser.add_argument("--clients", default="build/release/tests/bench/bench_clients")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has PyTorch and NumPy")
    parser.add_argument("--backend", default="shm", help="of libddp on one host")
    parser.add_argument("--link-backend", default="auto", help="of libddp between hosts with one rank each")
    parser.add_argument("--hierarchical", default="hierarchical", help="of libddp between hosts with two ranks each")
    parser.add_argument("--rate", default="1gbit", help="of the link")
    parser.add_argument("--gpu-logs", type=pathlib.Path, metavar="FOLDER", help="logs of tools/test-gpu; without them its section stays")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds, for each program that is started")
    parser.add_argument("--page", type=pathlib.Path, help="write the page, and its picture beside it")
    parser.add_argument("--quick", action="store_true", help="to try it out: few sizes, short; the figures mean nothing")
    return parser.parse_args()


def measure(name, options):
    title, function = SECTIONS[name]
    section = report.Section(name, title)
    try:
        if function.__module__ == "one_host":
            running.require(options, options.backend)
        function(section, options)
    except (running.Missing, RuntimeError) as reason:
        section.judge("the whole section", str(reason), None)
    return section


def main():
    options = parse()
    unknown = sorted(set(options.sections) - set(SECTIONS))
    if unknown:
        sys.exit(f"there is no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if options.page and not options.page.parent.is_dir():
        sys.exit(f"--page: there is no folder {options.page.parent}")
    known, found = report.facts(), []
    for name in options.sections or [name for name in SECTIONS if name != "gpu" or options.gpu_logs]:
        found.append(measure(name, options))
        if options.page:
            report.write_page(options.page, found, SECTIONS, known)  # after each, so that an interruption loses little
    if not options.page:
        print("\n\n".join([known["machine"], *(section.markdown(known) for section in found)]))
    return 1 if any(section.failed for section in found) else 0


if __name__ == "__main__":
    sys.exit(main())
