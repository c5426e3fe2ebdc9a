#!/usr/bin/env python3
"""A storm of elastic jobs: ranks are killed at random times and at named places, stopped, cut off, added, and leave. Whatever happens,
the bits at the end are those of one process, and what the ranks say makes one history.

    storm.py --quick          a few short scenarios, for the suite
    storm.py --count 1000     many; --first N: from this seed on; --jobs 3: at once
    storm.py --seed 17        one, with everything that its ranks say
    storm.py --one-kill       of three ranks that call something between ddp_finalize and ddp_elastic_commit; also with the others
    storm.py --one-stop       of three ranks one is stopped for longer than the others wait; also with the others
    storm.py --kind hosts     one of shm, tcp, gloo, hierarchical, hosts (two network namespaces), etcd (three servers, whose leader dies)

A scenario is made of its seed and of the kinds alone, but the moment of an event among the steps of the ranks is not. By hand:

    DDP_ELASTIC_WORKER=... DDP_ELASTIC_STORE=... python3 storm.py --count 100
"""
import argparse
import concurrent.futures
import contextlib
import signal
import subprocess
import sys
import time
import traceback

import jobs  # first: it knows where tests/support is
import etcd_servers  # tests/support
import namespaces  # tools/bench/runs
from jobs import BOUND_S, SLACK, Job
from storm_scenario import KINDS, History, OneKill, OneStop, Scenario

# Short ones with many deaths: in a meeting, a rebuild, a step, the optimizer, after a commit; two at once; a stop.
QUICK = (1197, 1198, 1199)
# At a call before the optimizer and at one after it, in the optimizer of the first of two contexts, and at a random moment.
QUICK_KILLS = tuple(range(8))
KILL_KINDS = ("shm", "tcp")
QUICK_STOPS = tuple(range(6))
STOP_KINDS = ("shm", "tcp", "hierarchical")
QUICK_KINDS = ("shm", "tcp", "gloo", "hierarchical")
# How long one that was left behind tries to reach the store again.
REJOIN_S = 40


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few that are short")
    parser.add_argument("--one-kill", action="store_true")
    parser.add_argument("--one-stop", action="store_true")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this scenario")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--jobs", type=int, default=3, help="scenarios at once")
    return parser.parse_args()


def possible_kinds():
    kinds = list(KINDS)
    for kind, reason in (("hosts", namespaces.why_impossible(None)), ("etcd", etcd_servers.what_is_missing())):
        if reason:
            print(f"no scenarios of {kind}: {reason}")
            kinds.remove(kind)
    return kinds


@contextlib.contextmanager
def job_of(scenario):
    settings = {**scenario.settings, "timeout": int(3000 * SLACK), "settle": int(1500 * SLACK), "rejoin": int(REJOIN_S * SLACK)}
    with contextlib.ExitStack() as stack:
        link = servers = init = None
        if scenario.kind == "hosts":
            link = stack.enter_context(namespaces.Link(None))
        elif scenario.kind == "etcd":
            servers = stack.enter_context(etcd_servers.Servers(3))
            init = servers.uri("storm", ttl_s=3)
        yield stack.enter_context(Job(link=link, init=init, **settings)), servers


def happen(job, servers, event):
    time.sleep(event.after_s)
    alive = [rank for rank in job.ranks if rank.poll() is None]
    first = int(event.who * len(alive))
    chosen = [alive[(first + i) % len(alive)] for i in range(min(len(alive), 2 if event.what == "two" else 1))] if alive else []
    if event.what in ("kill", "two"):
        for rank in chosen:
            rank.kill()
    elif event.what == "stop":
        for rank in chosen:
            rank.send_signal(signal.SIGSTOP)
        time.sleep(event.lasts_s * SLACK)
        for rank in chosen:
            rank.send_signal(signal.SIGCONT)
    elif event.what == "cut":
        name, interface = job.link.names[1], job.link.interfaces[1]
        namespaces.ip("-n", name, "link", "set", interface, "down")
        time.sleep(event.lasts_s * SLACK)
        namespaces.ip("-n", name, "link", "set", interface, "up")
    elif event.what == "leader":
        servers.kill_leader()
    else:
        job.start(**event.settings)


def run(scenario):
    """The output of the ranks, by rank, and the faults in it."""
    with job_of(scenario) as (job, servers):
        for settings in scenario.starters:
            job.start(**settings)
        deadline = time.monotonic() + 2 * BOUND_S
        for event in scenario.events:
            happen(job, servers, event)
        said, faults = [], []
        for rank in job.ranks:
            try:
                said.append(jobs.output(rank, deadline))
            except subprocess.TimeoutExpired:
                faults.append(f"rank {len(said)} did not end:\n{jobs.stacks(rank.pid)}")
                rank.kill()
                said.append(jobs.output(rank, time.monotonic() + 10))
        return said, faults + judge(scenario, [rank.returncode for rank in job.ranks], said)


def judge(scenario, statuses, said):
    history = History(scenario.steps, scenario.settings["accumulate"])
    faults, sums = [], {}
    expected = jobs.reference(**scenario.reference()) if scenario.reference() else None
    for i, (status, text) in enumerate(zip(statuses, said)):
        roster = history.add(f"process {i}", text)
        if status == -signal.SIGKILL:
            continue
        done = [line for line in text.splitlines() if line.startswith("done ")]
        if status != 0 or not (done or "\nleft " in text):
            faults.append(f"process {i} ended with {status}")
        elif done and expected and done != [expected]:
            faults.append(f"process {i}: wanted '{expected}', got {done}")
        elif done:
            sums.setdefault(roster, set()).add(done[0])
    faults += [f"roster {roster} ends with {sorted(lines)}" for roster, lines in sums.items() if len(lines) > 1]
    return faults + history.judge()


def story(scenario, whole=False):
    """None, or what went wrong."""
    start = time.monotonic()
    try:
        said, faults = run(scenario)
    except Exception:
        said, faults = [], [traceback.format_exc()]
    if not faults and not whole:
        return None
    shown = [f"--- process {i}\n" + (text if whole else text[-3000:]) for i, text in enumerate(said)]
    return "\n".join([f"=== {scenario}", f"  {time.monotonic() - start:.1f} s", *(f"FAULT {fault}" for fault in faults), *shown])


def main():
    given = arguments()
    if given.one_kill:
        make, quick, kinds = OneKill, QUICK_KILLS, given.kind or KILL_KINDS
    elif given.one_stop:
        make, quick, kinds = OneStop, QUICK_STOPS, given.kind or STOP_KINDS
    else:
        make, quick, kinds = Scenario, QUICK, QUICK_KINDS if given.quick else given.kind or possible_kinds()
    if given.seed is not None:
        text = story(make(given.seed, kinds), whole=True)
        print(text)
        return sys.exit("\nFAULT " in text)
    seeds = quick if given.quick else range(given.first, given.first + given.count)
    # Processes, as names of namespaces have their number.
    with concurrent.futures.ProcessPoolExecutor(given.jobs) as pool:
        stories = [pool.submit(story, make(seed, kinds)) for seed in seeds]
        faults = 0
        for done in concurrent.futures.as_completed(stories):
            if text := done.result():
                faults += 1
                print(text, flush=True)
    print(f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}, of {', '.join(kinds)}: {faults} with faults")
    return sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
