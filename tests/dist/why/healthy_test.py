#!/usr/bin/env python3
"""Healthy jobs with random times, sizes and backends: neither ddprun nor ddp-why may blame anybody.

    DDPRUN=... DDP_WHY=... DDP_RECORD_WORKER=... python3 healthy_test.py [--count N] [--seed N]
"""
import argparse
import random

from jobs import SLACK, run_all, run_job

FINE = ("no rank waits for another", "no rank is slow")


def settings_of(seed):
    chance = random.Random(seed)
    return {
        "ranks": chance.randint(2, 4),
        "backend": chance.choice(("shm", "tcp", "gloo", "hierarchical")),
        "timeout": int(30_000 * SLACK),
        "steps": chance.randint(5, 60),
        "params": chance.randint(1, 12),
        "size": chance.choice((10, 1000, 20000)),
        "compute_us": chance.choice((0, 200, 2000)),
        "jitter_us": chance.choice((100, 1000, 5000)),
        "collectives": chance.randint(0, 2),
        "seed": seed,
    }


def check(seed):
    settings = settings_of(seed)
    said = run_job(**settings)
    blamed = said.ddprun + [line for line in said.why if not line.endswith(FINE)]
    return f"=== seed {seed}, {settings}: {blamed}\n{said}" if blamed or not said.why else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    options = parser.parse_args()
    run_all(check, range(options.seed, options.seed + options.count))


if __name__ == "__main__":
    main()
