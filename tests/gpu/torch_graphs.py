#!/usr/bin/env python3
"""Steps of ddp.torch.DistributedDataParallel in graphs of a GPU, beside one process on the CPU that has the whole batch:

    ddprun -n 1 python3 torch_graphs.py            its environment is that of torch_module.py

The cases are also those of tests/bindings/python/torch_played_test.py.
"""
import unittest

from torch_module import (DEVICE, PART, Case, DistributedDataParallel, Network, Normalised, late, loss_of, main, side_stream,
                          torch)


class Graph:
    """The work of a function as a graph of the device, captured on the current stream."""

    def __init__(self, body):
        if DEVICE.type == "cuda":
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
                body()
            return
        torch.ops.played.begin_capture(DEVICE.index)
        try:
            body()
        finally:
            self.graph = torch.ops.played.end_capture(DEVICE.index)

    def replay(self):
        """On the current stream."""
        if DEVICE.type == "cuda":
            self.graph.replay()
        else:
            torch.ops.played.launch_graph(self.graph, DEVICE.index)


class Graphs(Case):
    def graph_of_steps(self, module, **options):
        """A function that trains a module on an x and a y, by the launch of a graph."""
        model = DistributedDataParallel(module, **options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        x, y = (torch.zeros(PART, size, device=DEVICE) for size in (5, 4))

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss_of(model(x), y).backward()
            optimizer.step()

        before = [tensor.detach().clone() for tensor in module.parameters()]
        for _ in range(3):
            step()
        graph = Graph(step)
        with torch.no_grad():  # as if nothing had been trained
            for tensor, value in zip(module.parameters(), before):
                tensor.copy_(value)
                optimizer.state[tensor]["momentum_buffer"].zero_()

        def train(batch):
            x.copy_(batch[0])
            y.copy_(batch[1])
            late()
            graph.replay()
        train.kept = step  # all that the graph works on
        return train

    def test_steps_in_a_graph(self):
        if self.world > 1 and self.group.backend != "nccl":
            with side_stream(), self.raises(NotImplementedError, "graph", self.group.backend):
                self.graph_of_steps(Network().to(DEVICE))
            return
        for views in (False, True):
            with self.subTest(views=views), side_stream():  # PyTorch wants the model, its steps and the capture on one stream
                alone, module = Network(), Network().to(DEVICE)
                self.train(alone, slice(None))
                train = self.graph_of_steps(module, gradient_as_bucket_view=views, bucket_cap_mb=0.0003)
                for x, y in self.batches():
                    train((x[self.mine].to(DEVICE), y[self.mine].to(DEVICE)))
                self.same(alone.parameters(), module.parameters())

    @unittest.skipUnless(DEVICE.type == "cuda", "PyTorch has these for CUDA")
    def test_graphed_callables(self):
        alone, module = Network(), Network().to(DEVICE)
        self.train(alone, slice(None))
        x = torch.zeros(PART, 5, device=DEVICE, requires_grad=False)
        graphed = torch.cuda.make_graphed_callables(module, (x,), allow_unused_input=True)
        self.train(DistributedDataParallel(graphed), self.mine, DEVICE)
        self.same(alone.parameters(), module.parameters())

    def test_a_graph_cannot_hold_all(self):
        if self.world > 1 and self.group.backend != "nccl":
            return  # it cannot hold anything
        with side_stream(), self.raises(NotImplementedError, "find_unused"):
            self.graph_of_steps(Network().to(DEVICE), find_unused_parameters=True)
        if self.world > 1:
            with side_stream(), self.raises(NotImplementedError, "broadcast_buffers"):
                self.graph_of_steps(Normalised().to(DEVICE))


if __name__ == "__main__":
    main(__name__)
