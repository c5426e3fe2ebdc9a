#!/usr/bin/env python3
"""The cost of ddp_grad_ready from Python: nanoseconds a call, the best of several rounds, without and with the call's overhead in
a loop. The gradients are views of one element in one bucket, so that nothing is copied and nothing is sent meanwhile.

    grad_ready.py [--limit-ns N]      ends with status 1 if the best round took longer
"""
import argparse
import sys
import time

import ddp

PARAMS, ROUNDS = 2000, 30


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit-ns", type=float, default=float("inf"))
    limit = parser.parse_args().limit_ns
    with ddp.Group(0, 1) as group, ddp.Context(group) as ctx:
        params = [ctx.register(f"p{i}", shape=(1,)) for i in range(PARAMS)]
        ctx.commit()
        ready, best = ctx.grad_ready, float("inf")
        for _ in range(ROUNDS):
            ctx.step_begin()
            start = time.perf_counter_ns()
            for param in params:
                ready(param)
            best = min(best, (time.perf_counter_ns() - start) / PARAMS)
            ctx.finalize()
    print(f"ddp_grad_ready from Python {sys.version.split()[0]}: {best:.0f} ns a call, the loop included")
    return 0 if best <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
