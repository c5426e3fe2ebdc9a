"""A rank in Python that waits: tests/dist/interrupt/worker.c tells how it is called and what it prints.

KeyboardInterrupt must come out of the call, with libddp's error as its context.
"""
import signal
import sys
import time

import numpy as np

import ddp

TIMEOUT = 60.0


def tell(word, error):
    print(word, f"{time.monotonic():.6f}", "INTERRUPTED" if isinstance(error, ddp.InterruptedError) else type(error).__name__,
          -1 if error.rank is None else error.rank, error, flush=True)


def waiting(call):
    """Makes the call that waits."""
    print("waiting", flush=True)
    try:
        call()
    except KeyboardInterrupt as interrupt:
        if interrupt.__context__ is None:
            sys.exit("the interrupt did not end a wait of libddp's: it has no context")
        tell("interrupted", interrupt.__context__)
    except ddp.Error as error:
        tell("error", error)
    else:
        sys.exit("the call did not wait")


def use_store(uri):
    store = ddp.Store(uri, server=uri.startswith("tcp:"), timeout=TIMEOUT)
    waiting(lambda: store.get("nobody sets this"))
    store.set("key", b"value")
    print("the store works" if store.get("key") == b"value" else "the store is broken", flush=True)


def sleep_until_broken(group):
    for _ in range(int(TIMEOUT / 0.02)):
        try:
            group.check()
        except ddp.Error as error:
            return tell("error", error)
        time.sleep(0.02)
    return None


def finalize(group, sleeps):
    with ddp.Context(group) as context:
        w = context.register("w", np.zeros(100, np.float32), np.zeros(100, np.float32))
        context.commit()
        if sleeps:
            return sleep_until_broken(group)
        context.grad_ready(w)
        return waiting(context.finalize)


def main():
    case, rank, world, uri, backend = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ctest and nohup may have left it ignored
    signal.alarm(100)
    if case == "store":
        return use_store(uri)

    def join():
        return ddp.Group(rank=int(rank), world_size=int(world), init_method=uri, backend=backend, timeout=TIMEOUT)

    if case == "join":
        return waiting(join)
    group = join()
    data = np.zeros(100, np.float32)
    sleeps = group.rank == group.world_size - 1
    if case == "finalize":
        finalize(group, sleeps)
    elif sleeps:
        sleep_until_broken(group)
    elif case == "barrier":
        waiting(group.barrier)
    elif case == "allreduce":
        waiting(lambda: group.allreduce(data))
    else:
        work = group.allreduce(data, async_op=True)
        waiting(lambda: work.wait(timeout=TIMEOUT if case == "timed" else None))
    return group.close()


main()
