"""A program that uses most of the package, for typing_test.py: mypy --strict has nothing to say about it. It is not run."""
import array
from typing import List, Optional

import ddp


def in_two_steps(group: ddp.Group, bucket: ddp.Bucket) -> Optional[ddp.Work]:
    if bucket.is_last:
        group.allreduce(bucket.buffer, bucket.op)
        return None
    return group.allreduce(bucket.buffer, bucket.op, async_op=True).then(lambda: group.barrier(async_op=True))


def on_buffers(group: ddp.Group, buffers: List[ddp.Memory]) -> None:
    for each in buffers:
        group.broadcast(each)


def collectives(group: ddp.Group, values: ddp.Memory, in_turns: bool) -> List[ddp.Work]:
    group.allreduce(values, "max")
    group.reduce_scatter(values, send=values)
    started = [group.broadcast(values, async_op=True), group.allgather(values, async_op=True), group.barrier(async_op=True),
               group.reduce_scatter(values, values, ddp.SUM, async_op=True), group.all_to_all(values, values, async_op=True)]
    group.all_to_all(values, values, [1], [1])
    perhaps: Optional[ddp.Work] = group.allreduce(values, async_op=in_turns)
    if perhaps is not None:
        started.append(perhaps)
    return started


async def wait_for(works: List[ddp.Work]) -> None:
    for work in works:
        await work


def train(group: ddp.Group, weights: "array.array[float]") -> ddp.Stats:
    with ddp.Context(group, reduction="sum", find_unused=True) as ctx:
        parameter: ddp.Parameter = ctx.register("w", weights, dtype=ddp.F32)
        ctx.set_hook(in_two_steps)
        ctx.set_buffer_hook(on_buffers)
        ctx.set_reduced_callback(lambda each, used: print(each.name, used))
        ctx.commit()
        with ctx.no_sync():
            ctx.step_begin()
            parameter.ready(weights)
        ctx.finalize()
        averager = ddp.Averager(ctx, [2, 4], [2, 4])
        averager.set_outer("slowmo", 1, momentum=0.5, inner_learning_rate=0.1)
        averager.set_outer(fragments=2, delay=1, alpha=0.5, sent_dtype="bf16")
        averager.set_fragments([0, 1])
        averager.go_back()
        averager.load_state(averager.state())
        print(averager.step(), parameter.view().shape[0], ctx.plan(), ctx.bucket_sizes())
        return ctx.stats()


def sharded(ctx: ddp.Context, bias: ddp.Parameter, folder: str) -> int:
    norm: int = ctx.track_grad_norm()
    ctx.commit()
    optimizer = ddp.Optimizer(ctx, "sgd", lr=0.1, nesterov=True, momentum=0.9)
    optimizer.set("weight_decay", 0, bias)
    optimizer.step(min(1 / ctx.grad_norm(norm), 1))
    ctx.publish()
    steps: ddp.Memory = optimizer.state()["step"]["w"].data
    ctx.save_shards(folder, {"value": [piece.value for piece in ctx.pieces()], **optimizer.state()}, note=str(steps.count))
    return int(ctx.load_shards(folder, optimizer.state()))


def main() -> int:
    environment: Optional[ddp.Environment] = ddp.environment()
    try:
        with ddp.Group(timeout=10) as group, ddp.Store("tcp://127.0.0.1:0", server=True) as store:
            store.set("key", b"value")
            rank: int = group.rank
            print(train(group, array.array("f", [rank])).steps, store.get("key").decode(), ddp.dtype_name("f32"))
            half = group.split(rank % 2)
            return 0 if half is None else half.world_size
    except (ddp.RankFailedError, ddp.TimeoutError) as error:
        print(error.rank, error.param, environment)
    except ddp.Error as error:
        print(error.status, ddp.__version__)
    return 1
