"""horovod_torch.py: torch_minimal.py with Horovod's names. It fits y = w0 + w1 x to samples; each rank has its own.

    ddprun -n 2 python3 horovod_torch.py    every rank ends with the same model, trained on both ranks' samples
"""
import torch
import ddp.horovod.torch as hvd  # was: import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for step in range(500):
    x = torch.tensor([[(7 * step + hvd.rank()) % 10 / 10]])  # a sample of this rank's own
    optimizer.zero_grad()
    (model(x) - (3 - 2 * x)).square().sum().backward()
    optimizer.step()  # waits until every .grad is the mean over ranks

print(f"rank {hvd.rank()}: y = {model.bias.item():.3f} {model.weight.item():+.3f} x")
