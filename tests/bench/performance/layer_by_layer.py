#!/usr/bin/env python3
"""A rank whose passes sleep: it shows how long steps take when the next forward pass waits for all gradients, or layer by layer.

usage: layer_by_layer.py LAYERSxELEMENTS BACKWARD_MS FORWARD_MS STEPS BUCKET_BYTES finalize|wait-param [PLAN]

PLAN: a file with a bucket plan, which the rank adopts. Rank 0 prints the median of the steps in milliseconds.
"""
import pathlib
import statistics
import sys
import time

import ddp
import numpy as np

WARM = 2  # steps: libddp plans the buckets again after the first one


class Model:
    """Equal layers, whose buckets are full of what the rank says."""

    def __init__(self, group, ctx, layers, elements):
        self.group, self.ctx = group, ctx
        self.gradients = [np.zeros(elements, np.float32) for _ in range(layers)]
        self.params = [ctx.register(f"param{i}", np.zeros(elements, np.float32), gradient) for i, gradient in enumerate(self.gradients)]

    def backward(self, milliseconds):
        for param, gradient in zip(reversed(self.params), reversed(self.gradients)):
            time.sleep(milliseconds / 1e3 / len(self.params))
            gradient[:] = 1 + self.group.rank
            self.ctx.grad_ready(param)

    def forward(self, milliseconds, wait):
        mean = (1 + self.group.world_size) / 2
        for param, gradient in zip(self.params, self.gradients):
            if wait:
                self.ctx.wait_param(param)
            assert gradient[0] == gradient[-1] == mean, (param, gradient[0], mean)
            time.sleep(milliseconds / 1e3 / len(self.params))


def main():
    model, backward, forward, steps, bucket, schedule, *plan = sys.argv[1:]
    layers, elements = map(int, model.split("x"))
    group = ddp.Group()
    times = []
    with ddp.Context(group, bucket_cap=int(bucket), first_bucket_cap=int(bucket)) as ctx:
        trained = Model(group, ctx, layers, elements)
        if plan:
            ctx.adopt_plan(pathlib.Path(plan[0]).read_text(encoding="utf-8"))
        ctx.commit()
        for _ in range(WARM + int(steps)):
            start = time.perf_counter()
            trained.backward(float(backward))
            if schedule == "finalize":
                ctx.finalize()
                trained.forward(float(forward), False)
            else:
                ctx.finalize_async()
                trained.forward(float(forward), True)
                ctx.finalize()
            times.append(1e3 * (time.perf_counter() - start))
    if group.rank == 0:
        print(f"{statistics.median(times[WARM:]):.3f}")


if __name__ == "__main__":
    main()
