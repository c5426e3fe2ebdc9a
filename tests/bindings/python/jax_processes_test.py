"""ddp.jax where JAX knows the other processes: two of them under jax.distributed, on the CPU.

    jax_processes_test.py
"""
import os
import socket
import subprocess
import sys
import unittest

import support

support.need("jax")

PORTS = [int(port) for port in sys.argv[2:]]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_without_launcher(*command):
    """Two processes that know of each other through jax.distributed alone."""
    known = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    processes = [subprocess.Popen([sys.executable, "-B", __file__, *command, str(process)], env=known, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) for process in range(2)]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=100)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()


def initialize(process):
    import jax
    jax.distributed.initialize(f"127.0.0.1:{PORTS[0]}", 2, process)
    return jax


def check_steps(jax, parallel):
    """The mean of what the two processes have."""
    from jax import numpy as jnp
    case, rank = unittest.TestCase(), jax.process_index()
    case.assertEqual((parallel.group.rank, parallel.group.world_size), (rank, jax.process_count()))
    case.assertEqual(parallel.params["w"].tolist(), [10, 10, 10])  # rank 0's
    for function in (lambda params, x: jnp.sum(params["w"] * x), lambda params, x: jnp.sum(parallel.overlap(params)["w"] * x)):
        gradients = jax.jit(jax.grad(function))
        for step in range(3):
            means = parallel.mean(gradients(parallel.params, jnp.float32(step + 2 * rank)))
            case.assertEqual(means["w"].tolist(), [step + 1] * 3)
            case.assertTrue(means["w"].devices() <= set(jax.local_devices()))


def with_ddprun():
    import ddp
    told = ddp.environment()
    jax = initialize(told.rank)
    from ddp.jax import DataParallel
    from jax import numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    parallel = DataParallel({"w": jnp.full(3, 10.0 + told.rank)})
    check_steps(jax, parallel)
    everywhere = NamedSharding(Mesh(jax.devices(), ("processes",)), PartitionSpec("processes"))
    shared = jax.make_array_from_process_local_data(everywhere, jnp.ones(2), (4,))
    case = unittest.TestCase()
    with support.raises(case, ValueError, "params", "several processes", "jax.local_devices()"):
        DataParallel({"w": shared})
    with support.raises(case, ValueError, "grads: w", "several processes"):
        DataParallel({"w": jnp.ones(4)}, parallel.group).mean({"w": shared})
    parallel.group.barrier()


def with_other_ranks():
    """ddprun and jax.distributed count the processes in another order."""
    import ddp
    rank = ddp.environment().rank
    initialize(1 - rank)
    from ddp.jax import DataParallel
    with support.raises(unittest.TestCase(), ValueError, f"this process is {1 - rank} of 2 for jax.distributed", f"rank {rank} of 2 for libddp",
                        "jax.distributed.initialize"):
        DataParallel({"w": [1.0]})


def without_ddprun(process):
    """Each process would train alone."""
    jax = initialize(process)
    import ddp
    from ddp.jax import DataParallel
    from jax import numpy as jnp
    with support.raises(unittest.TestCase(), ValueError, f"this process is {process} of 2 for jax.distributed", "rank 0 of 1 for libddp", "group="):
        DataParallel({"w": [1.0]})
    group = ddp.Group(jax.process_index(), jax.process_count(), f"tcp://127.0.0.1:{PORTS[1]}")
    parallel = DataParallel({"w": jnp.full(3, 10.0 + process)}, group)
    check_steps(jax, parallel)
    group.barrier()


if len(sys.argv) == 1:
    for name in ("with_ddprun", "with_other_ranks"):
        print(support.run_ranks(2, sys.executable, "-B", __file__, name, free_port()))
    run_without_launcher("without_ddprun", str(free_port()), str(free_port()))
elif sys.argv[1] == "without_ddprun":
    without_ddprun(PORTS.pop())
else:
    globals()[sys.argv[1]]()
