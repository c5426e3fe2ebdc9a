"""ddp.horovod.torch on 2 and 3 ranks: tensors and their gradients, DistributedOptimizer against one process with the global batch, and
the state of ranks. Every rank runs all tests in the same order."""
import itertools
import unittest
import warnings

import support

support.need("torch")

import torch

import ddp.horovod.torch as hvd

MOST = 6  # samples of a rank


def net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def samples(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(MOST, 4, generator=generator), torch.randn(MOST, 3, generator=generator)


def parameters(model):
    return torch.cat([param.detach().flatten() for param in model.parameters()])


@unittest.skipIf(support.RANK < 0, "needs ranks")
class Tensors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    def test_types(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
                      torch.uint8):
            with self.subTest(dtype=dtype):
                mine = torch.arange(6).reshape(2, 3).to(dtype) + self.rank
                expected = sum(torch.arange(6).reshape(2, 3) + rank for rank in range(self.size)).to(dtype)
                total = hvd.allreduce(mine, op=hvd.Sum)
                self.assertEqual(total.dtype, dtype)
                torch.testing.assert_close(total, expected)
                self.assertIs(hvd.allreduce_(mine, op=hvd.Sum), mine)
                torch.testing.assert_close(mine, expected)
                sent = hvd.broadcast(torch.full((2,), self.rank).to(dtype), 1)
                torch.testing.assert_close(sent, torch.full((2,), 1).to(dtype))
        self.assertEqual(hvd.broadcast(torch.tensor(self.rank == 1), 1).item(), True)
        self.assertEqual(hvd.allreduce(torch.tensor(float(self.rank))).item(), (self.size - 1) / 2)
        with self.assertRaisesRegex(ValueError, "sparse_allreduce_async"):
            hvd.allreduce(torch.eye(2).to_sparse())

    def test_not_contiguous(self):
        whole = torch.arange(12.).reshape(3, 4) * (self.rank + 1)
        view, factor = whole.t(), sum(range(1, self.size + 1))
        torch.testing.assert_close(hvd.allreduce(view, op=hvd.Sum), torch.arange(12.).reshape(3, 4).t() * factor)
        hvd.allreduce_(view, op=hvd.Sum)
        torch.testing.assert_close(whole, torch.arange(12.).reshape(3, 4) * factor)

    def test_compression(self):
        mine = torch.linspace(0, 1, 50) + self.rank
        result = hvd.allreduce(mine, compression=hvd.Compression.fp16)
        self.assertEqual(result.dtype, torch.float32)
        torch.testing.assert_close(result, torch.linspace(0, 1, 50) + (self.size - 1) / 2, rtol=2e-3, atol=2e-3)

    def test_sparse(self):
        dense = torch.zeros(5, 2)
        dense[self.rank] = dense[4] = self.rank + 1.
        expected = sum(torch.zeros(5, 2).index_fill(0, torch.tensor([rank, 4]), rank + 1.) for rank in range(self.size))
        total = hvd.synchronize(hvd.sparse_allreduce_async(dense.to_sparse(1), op=hvd.Sum))
        torch.testing.assert_close(total.to_dense(), expected)
        mean = hvd.sparse_allreduce_async(dense.to_sparse(1), name="mean")()
        torch.testing.assert_close(mean.to_dense(), expected / self.size)

    def gradient(self, function, shape=(4, 2)):
        """The gradient of the sum of function(x) times weights that differ by rank."""
        x = torch.ones(shape, requires_grad=True)
        result = function(x)
        (result * (torch.arange(result.numel()).reshape(result.shape) + self.rank)).sum().backward()
        return x.grad

    def test_gradients(self):
        rows, size, rank = 4, self.size, self.rank
        own = torch.arange(8.).reshape(4, 2)
        everyones = sum(own + other for other in range(size))
        torch.testing.assert_close(self.gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)), everyones)
        torch.testing.assert_close(self.gradient(lambda x: hvd.allreduce(x, prescale_factor=2.)), 2 * everyones / size)
        torch.testing.assert_close(self.gradient(lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1]), everyones)
        of_root = everyones / size if rank == 1 else torch.zeros(4, 2)
        torch.testing.assert_close(self.gradient(lambda x: hvd.broadcast(x, 1)), of_root)
        gathered = sum(torch.arange(8. * size).reshape(-1, 2) + other for other in range(size)) / size
        torch.testing.assert_close(self.gradient(hvd.allgather), gathered[rows * rank:rows * (rank + 1)])
        parts = [rows // size + (other < rows % size) for other in range(size)]
        scattered = torch.cat([torch.arange(2. * part).reshape(-1, 2) + other for other, part in enumerate(parts)])
        torch.testing.assert_close(self.gradient(hvd.reducescatter), scattered)
        torch.testing.assert_close(self.gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum, postscale_factor=3.)), scattered * 3 * size)
        sent = self.gradient(hvd.alltoall, (size, 2))
        torch.testing.assert_close(sent, torch.stack([torch.arange(2.) + 2 * rank + other for other in range(size)]))
        output, received = hvd.alltoall(torch.ones(size), splits=torch.ones(size, dtype=torch.int64))
        self.assertEqual((output.tolist(), received.tolist(), received.dtype), ([1.] * size, [1] * size, torch.int64))

    def test_sync_batch_norm(self):
        for shape in ((5, 3), (4, 3, 2, 2)):
            batches = [torch.randn((shape[0] + rank, *shape[1:]), generator=torch.Generator().manual_seed(rank))
                       for rank in range(self.size)]
            whole = torch.cat(batches).requires_grad_()
            reference = (torch.nn.BatchNorm1d if len(shape) == 2 else torch.nn.BatchNorm2d)(3)
            ours, mine = hvd.SyncBatchNorm(3), batches[self.rank].requires_grad_()
            expected, result = reference(whole), ours(mine)
            begin = sum(len(batch) for batch in batches[:self.rank])
            place = slice(begin, begin + len(mine))
            torch.testing.assert_close(result, expected[place])
            expected.square().sum().mul(0.5).add(expected.sin().sum()).backward()
            result.square().sum().mul(0.5).add(result.sin().sum()).backward()
            torch.testing.assert_close(mine.grad, whole.grad[place], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(hvd.allreduce(ours.weight.grad, op=hvd.Sum), reference.weight.grad, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(ours.running_var, reference.running_var)
            torch.testing.assert_close(ours.running_mean, reference.running_mean)
            torch.testing.assert_close(ours.eval()(mine), reference.eval()(whole)[place])


@unittest.skipIf(support.RANK < 0, "needs ranks")
class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    def alone(self, make, steps, passes=1):
        """The parameters after training on the batches of all ranks in this process."""
        model = net()
        optimizer = make(model.parameters())
        for step in range(steps):
            optimizer.zero_grad()
            for part, rank in itertools.product(range(passes), range(self.size)):
                x, y = samples(passes * step + part, rank)
                ((model(x) - y).square().mean() / self.size).backward()
            optimizer.step()
        return parameters(model)

    def trained(self, make, steps, passes=1, model=None, **options):
        model = model or net()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), named_parameters=model.named_parameters(),
                                             backward_passes_per_step=passes, **options)
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(passes):
                x, y = samples(passes * step + part, self.rank)
                (model(x) - y).square().mean().backward()
            optimizer.step()
        return parameters(model)

    def check(self, make, passes=1, tolerance=1e-5, **options):
        torch.testing.assert_close(self.trained(make, 5, passes, **options), self.alone(make, 5, passes), rtol=tolerance, atol=tolerance)

    def test_as_one_process(self):
        def sgd(params):
            return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)

        def adam(params):
            return torch.optim.AdamW(params, lr=0.01)

        self.check(sgd)
        self.check(adam)
        self.check(sgd, passes=3)
        self.check(sgd, gradient_predivide_factor=2.0)
        self.check(sgd, groups=2)
        self.check(sgd, compression=hvd.Compression.fp16, tolerance=5e-3)
        model = net()
        params = list(model.parameters())
        self.check(sgd, groups=[[params[3], params[0]], [params[1]]], model=model)

    def test_sum_and_process_set(self):
        make = lambda params: torch.optim.SGD(params, lr=0.1)
        torch.testing.assert_close(self.trained(lambda params: torch.optim.SGD(params, lr=0.1 / self.size), 3, op=hvd.Sum),
                                   self.trained(make, 3))
        some = hvd.add_process_set([1])
        mine = self.trained(make, 3, process_set=some)
        both = hvd.allgather_object(mine)
        self.assertFalse(torch.equal(both[0], both[1]))
        hvd.remove_process_set(some)

    def test_adasum(self):
        """The sum of the steps of two ranks; equal steps count once."""
        if self.size != 2:
            return
        model = net()
        before = parameters(model)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum)
        x, y = samples(0, 0)
        (model(x) - y).square().mean().backward()
        optimizer.step()
        reference = net()
        (reference(x) - y).square().mean().backward()
        torch.optim.SGD(reference.parameters(), lr=0.1).step()
        torch.testing.assert_close(parameters(model) - before, parameters(reference) - before, rtol=1e-4, atol=1e-6)
        with self.assertRaises(AssertionError):
            optimizer.skip_synchronize()

    def test_clipping(self):
        model, reference = net(), net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        x, y = samples(0, self.rank)
        (model(x) - y).square().mean().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        for rank in range(self.size):
            x, y = samples(0, rank)
            ((reference(x) - y).square().mean() / self.size).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        torch.optim.SGD(reference.parameters(), lr=0.1).step()
        torch.testing.assert_close(parameters(model), parameters(reference))

    def test_closure(self):
        model, reference = net(), net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        x, y = samples(0, self.rank)

        def closure():
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        self.assertGreater(optimizer.step(closure).item(), 0)
        for rank in range(self.size):
            a, b = samples(0, rank)
            ((reference(a) - b).square().mean() / self.size).backward()
        torch.optim.SGD(reference.parameters(), lr=0.1).step()
        torch.testing.assert_close(parameters(model), parameters(reference))

    def test_parameters_that_a_rank_does_not_use(self):
        torch.manual_seed(0)
        heads = torch.nn.ModuleList([torch.nn.Linear(2, 1) for _ in range(self.size)])
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(heads.parameters(), lr=1.), heads.named_parameters())
        before = [head.bias.item() for head in heads]
        heads[self.rank](torch.ones(1, 2)).sum().backward()
        optimizer.step()
        for head, old in zip(heads, before):
            self.assertAlmostEqual(head.bias.item(), old - 1 / self.size, places=6)

    def test_another_optimizer_is_what_it_was(self):
        model = net()
        inner = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.1)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
        self.assertIsInstance(optimizer, torch.optim.SGD)
        self.assertEqual((optimizer.defaults["momentum"], type(optimizer).__name__), (0.9, "SGD"))
        (model(torch.ones(1, 4)).sum() * self.rank).backward()
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the scheduler looks for steps of the inner one
            scheduler.step()
        self.assertAlmostEqual(optimizer.param_groups[0]["lr"], 0.05)
        everyones = hvd.allgather_object(parameters(model))
        for other in everyones[1:]:
            torch.testing.assert_close(other, everyones[0], rtol=0, atol=0)

    def test_mistakes(self):
        model = net()
        make = lambda **options: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options)
        named = list(model.named_parameters())
        for words, options in (("must be > 0", {"backward_passes_per_step": 0}),
                               ("op != Average", {"op": hvd.Sum, "gradient_predivide_factor": 2.}),
                               ("only appear once", {"groups": [[named[0][1]], [named[0][1]]]}), ("torch.Tensor", {"groups": [["a"]]})):
            with self.assertRaisesRegex(ValueError, words):
                make(**options)
        with self.assertRaisesRegex(ValueError, "were not named: parameter 1 of group 0"):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named[:1])
        with self.assertRaisesRegex(ValueError, "duplicates: a"):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), [("a", param) for _, param in named])
        optimizer = make()
        model(torch.ones(1, 4)).sum().backward()
        with self.assertRaisesRegex(AssertionError, "zero_grad"):
            optimizer.zero_grad()
        with self.assertRaisesRegex(AssertionError, "backward_passes_per_step"):
            model(torch.ones(1, 4)).sum().backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        self.assertIn("without optimizer.skip_synchronize()", str(caught[0].message))

    def test_state(self):
        for make in (lambda params: torch.optim.Adam(params, lr=0.1 * (self.rank + 1), betas=(0.5, 0.9)),
                     lambda params: torch.optim.SGD(params, lr=0.1 * (self.rank + 1), momentum=0.9)):
            model = net(self.rank)
            optimizer = make(model.parameters())
            if self.rank == 1:
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
            hvd.broadcast_parameters(model.state_dict(), root_rank=1)
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
            everyones = hvd.allgather_object((parameters(model), optimizer.state_dict()))
            for weights, state in everyones:
                torch.testing.assert_close(weights, everyones[1][0], rtol=0, atol=0)
                self.assertEqual(state["param_groups"], everyones[1][1]["param_groups"])
                for index, values in everyones[1][1]["state"].items():
                    for key, value in values.items():
                        torch.testing.assert_close(torch.as_tensor(state["state"][index][key]), torch.as_tensor(value), rtol=0, atol=0)
        hvd.broadcast_parameters([("a", torch.ones(1)), ("b", torch.ones(2))], 0)
        with self.assertRaisesRegex(ValueError, "LBFGS"):
            hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


if __name__ == "__main__":
    support.main((2, 3))
