"""shuffle.py: deals the samples of all ranks anew, as between two epochs. Each rank has read files of its own; after this any sample may
be on any rank.

    ddprun -n 2 python3 shuffle.py
"""
import ddp
import numpy as np

group = ddp.Group()
rank, world = group.rank, group.world_size
samples = np.arange(1000 * rank, 1000 * (rank + 1))  # a sample is a number here
to = np.random.default_rng(rank).integers(world, size=len(samples))
send = samples[np.argsort(to, kind="stable")]

# First how many, then the samples.
send_counts, recv_counts = np.bincount(to, minlength=world), np.zeros(world, np.int64)
group.all_to_all(recv_counts, send_counts)
recv = np.zeros(recv_counts.sum(), np.int64)
group.all_to_all(recv, send, recv_counts, send_counts)

print(f"rank {rank}: {len(recv)} samples, sum {recv.sum()}, {recv_counts[rank]} of its own")
