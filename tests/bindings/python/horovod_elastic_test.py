"""hvd.elastic: a rank is killed, is started again and joins. The others go back to their last commit, and all end with the same bits,
those of one process that does the same steps. Also the sampler, without ranks."""
import collections
import os
import re
import signal
import sys
import time
import unittest

import support

support.need("torch")

import torch

import ddp
import ddp.horovod.torch as hvd

STEPS, EVERY = 60, 5


def step(model, optimizer):
    """All ranks have the same gradient, so that any number of them trains alike."""
    optimizer.zero_grad()
    (model(torch.arange(6.).reshape(2, 3)) - 1).square().mean().backward()
    optimizer.step()


def made(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def trainer():
    told = ddp.environment()
    hvd.init()
    first, optimizer = hvd.size(), None
    model, optimizer = made(hvd.rank() if told.restart == 0 else 99)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    sizes, dies = [], told.restart == 0 and os.environ["DDP_RANK"] == "1"

    @hvd.elastic.run
    def train(state):
        sizes.append((hvd.size(), state.step))
        while state.step < STEPS:
            if dies and state.step == 2 * EVERY + 3:
                os.kill(os.getpid(), signal.SIGKILL)
            step(model, optimizer)
            state.step += 1
            if state.step % EVERY == 0:
                if len(sizes) == 3 and state.step == 4 * EVERY:  # the killed rank comes back before the end
                    for _ in range(600):
                        time.sleep(0.1)
                        state.commit()
                state.commit()

    state = hvd.elastic.TorchState(model, optimizer, step=0)
    state.register_reset_callbacks([lambda: sizes.append("reset")])
    train(state)
    everyones = hvd.allgather_object(torch.cat([param.detach().flatten() for param in model.parameters()]).tolist())
    assert all(each == everyones[0] for each in everyones), everyones
    if hvd.rank() == 0:
        print(f"end {first} {sizes} {everyones[0]}")


class Elastic(unittest.TestCase):
    def test_killed_and_back(self):
        output = support.run_ranks(3, sys.executable, "-B", __file__, "--trainer", options=("--min-ranks", "1", "--max-restarts", "3"))
        first, sizes, weights = re.search(r"end (\d) (\[.*?\]) (\[.*\])", output).groups()
        self.assertEqual(first, "3")
        # the loss takes the two others back to the last commit; then the third comes
        self.assertEqual(eval(sizes), [(3, 0), "reset", (2, 2 * EVERY), "reset", (3, 4 * EVERY)])
        model, optimizer = made(0)
        for _ in range(STEPS):
            step(model, optimizer)
        torch.testing.assert_close(torch.tensor(eval(weights)), torch.cat([param.detach().flatten() for param in model.parameters()]))

    def test_alone(self):
        """Without ddprun: the state is saved and restored, and an error of the program's is its own."""
        hvd.init()
        model, optimizer = made(0)
        state = hvd.elastic.TorchState(model, optimizer, batch=0, seen=[])
        before = model.weight.detach().clone()
        step(model, optimizer)
        state.batch = 5
        state.seen.append(1)
        state.restore()
        torch.testing.assert_close(model.weight.detach(), before)
        self.assertEqual((state.batch, state.seen, optimizer.state_dict()["state"]), (0, [], {}))
        step(model, optimizer)
        state.batch = 7
        state.commit()
        kept = model.weight.detach().clone()
        step(model, optimizer)
        state.restore()
        torch.testing.assert_close(model.weight.detach(), kept)
        self.assertEqual(state.batch, 7)

        @hvd.elastic.run
        def wrong(state):
            raise hvd.HorovodInternalError("the program's own")

        with self.assertRaisesRegex(hvd.HorovodInternalError, "the program's own"):
            wrong(state)

    def test_sampler(self):
        hvd.init()
        sampler = hvd.elastic.ElasticSampler(range(20), seed=3)
        sampler.set_epoch(2)
        order = list(sampler)
        self.assertEqual(sorted(order), list(range(20)))
        sampler.record_batch(0, 6)
        self.assertEqual((list(sampler), len(sampler)), (order, 20))  # until the ranks change
        sampler.reset()
        self.assertEqual(list(sampler), order[6:])
        other = hvd.elastic.ElasticSampler(range(20), seed=3)
        other.load_state_dict(sampler.state_dict())
        self.assertEqual(list(other), order[6:])
        shares = collections.Counter()
        for rank in range(3):
            other.rank, other.num_replicas, other.num_samples = rank, 3, 5
            shares.update(other)
        self.assertEqual(sorted(shares), sorted(order[6:]))
        self.assertEqual(sum(shares.values()), 15)


if __name__ == "__main__":
    if "--trainer" in sys.argv:
        trainer()
    else:
        support.main()
