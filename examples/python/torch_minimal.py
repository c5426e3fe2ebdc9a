"""torch_minimal.py: a whole distributed trainer in PyTorch. It fits y = w0 + w1 x to samples; each rank has its own.

    ddprun -n 2 python3 torch_minimal.py    every rank ends with the same model, trained on both ranks' samples
"""
import torch
from ddp.torch import DistributedDataParallel, process_group

rank = process_group().rank  # from the launcher; 0, and alone, without one
model = DistributedDataParallel(torch.nn.Linear(1, 1))  # every rank starts from rank 0's weights
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(500):
    x = torch.tensor([[(7 * step + rank) % 10 / 10]])  # a sample of this rank's own
    optimizer.zero_grad()
    (model(x) - (3 - 2 * x)).square().sum().backward()  # now every .grad is the mean over ranks
    optimizer.step()

print(f"rank {rank}: y = {model.module.bias.item():.3f} {model.module.weight.item():+.3f} x")
