"""tinygrad_minimal.py: a whole distributed trainer in tinygrad. It fits y = w0 + w1 x to samples; each rank has its own.

    ddprun -n 2 python3 tinygrad_minimal.py     every rank ends with the same model, trained on both ranks' samples
"""
from ddp.tinygrad import DataParallel
from tinygrad import Context, Tensor, nn

model = nn.Linear(1, 1)
parallel = DataParallel(model)  # every rank starts from rank 0's weights
rank = parallel.group.rank  # from the launcher; 0, and alone, without one
optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.5)
with Context(TRAINING=1):
    for step in range(300):
        x = Tensor([[(7 * step + rank) % 10 / 10]])  # a sample of this rank's own
        optimizer.zero_grad()
        (model(x) - (3 - 2 * x)).square().sum().backward()
        parallel.average()  # now every .grad is the mean over ranks
        optimizer.step()

print(f"rank {rank}: y = {model.bias.item():.3f} {model.weight.item():+.3f} x")
