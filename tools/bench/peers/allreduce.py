#!/usr/bin/env python3
"""The same as `ddp-bench allreduce`, through torch.distributed.all_reduce over Gloo: one JSON line for each size."""

import argparse
import json

import job


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--bytes", default="4096,65536,1048576,4194304,26214400", help="sizes, separated by commas")
    parser.add_argument("--iters", type=int, default=0, help="0: as many as fit into --seconds, at least 10")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--timeout", type=float, default=900.0)
    return parser.parse_args()


def measure_size(torch, dist, options, size):
    memory = torch.zeros(max(1, size // 4))

    def loop():
        start = job.now_ms()
        dist.all_reduce(memory)
        return job.now_ms() - start

    series = job.measure(options.iters, options.seconds, [loop])
    return job.row("torch-allreduce", 4 * memory.numel(), series[0], dtype="f32")


def main():
    options = parse()
    torch = job.require_torch()
    if not job.is_rank():
        raise SystemExit(job.launch(options.world, options.timeout))
    dist = job.join()
    for size in options.bytes.split(","):
        result = measure_size(torch, dist, options, int(size))
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
