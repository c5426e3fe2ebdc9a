"""../c/sharded.c in NumPy. The work and the state of AdamW are divided by the number of ranks, and any number of ranks goes on where others
have stopped.

    ddprun -n 4 python3 sharded.py FOLDER 1        one epoch, which is saved in FOLDER
    ddprun -n 3 python3 sharded.py FOLDER 2        and the second one
"""
import pathlib
import sys

from mnist import shuffled  # first: it sets the number of threads

import numpy as np

import ddp
import idx
from mlp import MLP

BATCH, SEED = 48, 1
DIGITS = pathlib.Path(__file__).resolve().parent.parent / "data" / "mnist"


class Trainer:
    """Gradients live in the buckets. Biases do not decay."""

    def __init__(self, group):
        self.group, self.net, self.ctx = group, MLP(SEED), ddp.Context(group, shard=True)
        for name, value in zip(self.net.names, self.net.values):
            self.ctx.register(name, value)
        self.norm = self.ctx.track_grad_norm()
        self.ctx.commit()
        self.net.gradients = [np.asarray(parameter.view()) for parameter in self.ctx.parameters]
        self.optimizer = ddp.Optimizer(self.ctx, "adamw", weight_decay=0.1)
        for parameter in self.ctx.parameters:
            if len(parameter.shape) == 1:
                self.optimizer.set("weight_decay", 0, parameter)

    def wait_for_values(self):
        for parameter in self.ctx.parameters:
            self.ctx.wait_value(parameter)

    def epoch(self, images, labels, number):
        """One pass over the digits. Returns this rank's part of the loss."""
        order, part, loss = shuffled(len(labels), SEED, number), BATCH // self.group.world_size, 0.0
        self.optimizer.set("lr", 1e-3 / (number + 1))
        for first in range(self.group.rank * part, len(labels) // BATCH * BATCH, BATCH):
            mine = order[first:first + part]
            self.wait_for_values()
            loss += self.net.forward(images[mine], labels[mine])[0]
            self.net.backward(labels[mine], self.ctx.grad_ready)
            self.ctx.finalize()
            self.ctx.clip_grad_norm(self.norm, 1)
            self.optimizer.step()
            self.ctx.publish()  # the new values travel
        self.wait_for_values()
        return loss

    def arrays(self):
        """The values and the state that this rank owns."""
        return {"value": [piece.value for piece in self.ctx.pieces()], **self.optimizer.state()}

    def go_on(self, folder):
        """How many epochs others have trained."""
        try:
            return int(self.ctx.load_shards(folder, self.arrays()))
        except ddp.NotFoundError:
            return 0  # the first ones


def main(folder, epochs):
    images, labels = idx.load(DIGITS, "train")
    group = ddp.Group()
    trainer = Trainer(group)
    for number in range(trainer.go_on(folder), int(epochs)):
        loss = np.array([trainer.epoch(images, labels, number) / (len(labels) // BATCH * BATCH)])
        group.allreduce(loss)
        if group.rank == 0:
            print(f"epoch {number + 1}  loss {loss[0]:.6f}")
        trainer.ctx.save_shards(folder, trainer.arrays(), note=str(number + 1))
    if group.rank == 0:
        tests, digits = idx.load(DIGITS, "t10k")
        print(f"test accuracy {100 * trainer.net.forward(tests, digits)[1] / len(digits):.2f} %")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: sharded.py FOLDER EPOCHS")
    main(*sys.argv[1:])
