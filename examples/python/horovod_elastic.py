"""horovod_elastic.py: horovod_torch.py as a job that goes on when a rank dies, and takes in ranks that come.

    ddprun -n 3 --min-ranks 1 --max-restarts 10 python3 horovod_elastic.py
"""
import torch
import ddp.horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    while state.step < 500:
        x = torch.tensor([[(7 * state.step + hvd.rank()) % 10 / 10]])
        optimizer.zero_grad()
        (model(x) - (3 - 2 * x)).square().sum().backward()
        optimizer.step()
        state.step += 1
        if state.step % 20 == 0:
            state.commit()  # a loss goes back to here; ranks that wait come in here


train(hvd.elastic.TorchState(model, optimizer, step=0))
print(f"rank {hvd.rank()}: y = {model.bias.item():.3f} {model.weight.item():+.3f} x")
