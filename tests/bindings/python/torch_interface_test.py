"""The interface of DistributedDataParallel that libraries and programs use beside forward and backward passes, with ddp.torch's.

    torch_interface_test.py     on 2 and on 3 ranks
"""
import copy
import gc
import pickle
import weakref

import support
from torch_case import BesidePyTorch, Network  # before PyTorch, which may not be there

import torch
from torch import distributed, nn

import ddp
from ddp.torch import DistributedDataParallel

BOUND = 1e-5


class Box:
    """The kinds of result that a program may return from forward()."""

    def __init__(self, tensor):
        self.tensor = tensor


class Interface(BesidePyTorch):
    def mean_of(self, module, function=lambda module, x: module(x).square().sum(), ranks=None):
        """The gradients that the inputs of all ranks give, over the world size."""
        module.zero_grad()
        for rank in range(self.world) if ranks is None else ranks:
            function(module, self.inputs(rank)).backward()
        return [None if tensor.grad is None else tensor.grad / self.world for tensor in module.parameters()]

    def compare(self, module, expected, bound=BOUND):
        for (name, tensor), wanted in zip(module.named_parameters(), expected):
            self.assertLess((tensor.grad - wanted).abs().max().item(), bound, name)

    def test_a_hook_edits_what_set_buffer_gave(self):
        def clipped(_, bucket):
            for gradient in bucket.gradients():
                gradient.mul_(1000)  # before: of the bucket
            bucket.set_buffer(torch.zeros(bucket.buffer().numel(), dtype=torch.float64))
            for gradient, tensor in zip(bucket.gradients(), bucket.parameters()):
                self.assertEqual(gradient.shape, tensor.shape)
                gradient.fill_(tensor.numel())
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        module = nn.Sequential(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.Flatten(), nn.Linear(4, 2))
        for view in (False, True):
            model = DistributedDataParallel(module, gradient_as_bucket_view=view)
            model.register_comm_hook(None, clipped)
            model(torch.ones(1, 3, 3, 3)).sum().backward()
            for tensor in module.parameters():
                self.assertTrue(tensor.grad.eq(tensor.numel()).all())

    def test_wrong_results_of_hooks(self):
        def future_of_none(_, bucket):
            future = torch.futures.Future()
            future.set_result(None)
            return future

        for hook, words in ((lambda _, bucket: None, ("the hook '", "returned None for bucket 0; return a tensor of its ",
                                                      " elements of type float32, such as bucket.buffer(), or a torch.futures.Future")),
                            (future_of_none, ("returned a Future of None for bucket 0; return a tensor of",)),
                            (lambda _, bucket: [], ("returned an object of type list for bucket 0",)),
                            (lambda _, bucket: torch.tensor(7.0), ("returned a tensor of 1 elements of type float32 for bucket 0",)),
                            (lambda _, bucket: bucket.buffer()[:1], ("returned a tensor of 1 elements of type float32",)),
                            (lambda _, bucket: bucket.buffer() * 1j, ("elements of type complex64 for bucket 0; return",)),
                            (lambda _, bucket: 7, ("returned an object of type int for bucket 0",)),
                            (lambda _, bucket: bucket.set_buffer(torch.zeros(1)), ("set_buffer", "1 elements"))):
            group = self.group.split(0)
            with support.raises(self, (TypeError, ValueError, ddp.Error), *words):  # or as another rank tells it, in whatever call
                model = DistributedDataParallel(Network(), process_group=group)
                model.register_comm_hook(None, hook)
                model(self.inputs()).sum().backward()
            self.group.barrier()

    def check_hook(self, hook, state, bound):
        model = DistributedDataParallel(Network())
        model.register_comm_hook(state, hook)
        for _ in range(4):
            model.zero_grad()
            model(self.inputs()).square().sum().backward()
            first = model.module.first.weight.grad.clone()
            self.group.broadcast(first, 0)
            self.assertTrue(torch.equal(first, model.module.first.weight.grad))
        if bound:
            self.compare(model.module, self.mean_of(Network()), bound)

    def test_hooks_of_pytorch(self):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
        self.check_hook(default_hooks.fp16_compress_hook, None, 0.1)
        self.check_hook(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), None, 0.1)
        self.check_hook(default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
                        powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), None)

    def test_the_hook_of_pytorch_for_bfloat16(self):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        try:
            distributed.all_reduce(torch.zeros(1, dtype=torch.bfloat16))
        except RuntimeError as error:
            self.skipTest(f"torch.distributed of this PyTorch does not reduce bfloat16 on the CPU: {error}")
        self.check_hook(default_hooks.bf16_compress_hook, None, 0.5)

    def test_builtin_hooks(self):
        for kind, bound in ((distributed.BuiltinCommHookType.ALLREDUCE, BOUND), (distributed.BuiltinCommHookType.FP16_COMPRESS, 0.1)):
            model = DistributedDataParallel(Network())
            model._register_builtin_comm_hook(kind)
            model(self.inputs()).square().sum().backward()
            self.compare(model.module, self.mean_of(Network()), bound)

    def test_optimizers_in_the_backward_pass(self):
        try:
            from torch.distributed.optim import _apply_optimizer_in_backward
        except ImportError:
            self.skipTest("this PyTorch has no _apply_optimizer_in_backward")
        for view in (False, True):
            for before in (True, False):
                module, other = Network(), Network()
                expected = [tensor.detach() - 0.1 * grad for tensor, grad in zip(other.parameters(), self.mean_of(other))]
                if before:
                    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
                model = DistributedDataParallel(module, gradient_as_bucket_view=view)
                if not before:
                    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
                model(self.inputs()).square().sum().backward()
                for tensor, wanted in zip(module.parameters(), expected):
                    self.assertLess((tensor - wanted).abs().max().item(), BOUND)
                    self.assertIsNone(tensor.grad)
                with model.no_sync():
                    model(self.inputs()).square().sum().backward()
                self.assertIsNotNone(module.first.weight.grad)

    def test_fused_optimizer(self):
        module, other = Network(), Network()
        expected = [tensor.detach() - 0.1 * grad for tensor, grad in zip(other.parameters(), self.mean_of(other))]
        model = DistributedDataParallel(module)
        model._register_fused_optim(torch.optim.SGD, lr=0.1)
        model(self.inputs()).square().sum().backward()
        for tensor, wanted in zip(module.parameters(), expected):
            self.assertLess((tensor - wanted).abs().max().item(), BOUND)

    def test_it_is_taken_for_pytorchs(self):
        model = DistributedDataParallel(Network())
        self.assertIsInstance(model, nn.parallel.DistributedDataParallel)
        self.assertNotIsInstance(Network(), nn.parallel.DistributedDataParallel)
        self.assertFalse(model.will_sync_module_buffers())
        self.assertTrue(DistributedDataParallel(nn.BatchNorm1d(3)).will_sync_module_buffers())
        data = model._get_ddp_logging_data()
        self.assertEqual((data["world_size"], data["rank"], data["num_parameter_tensors"]), (self.world, self.rank, 4))

    def test_reducer(self):
        """As Lightning's manual optimization: forward() in no_sync, and then a step."""
        model = DistributedDataParallel(Network())
        with model.no_sync():
            loss = model(self.inputs()).square().sum()
        model.reducer.prepare_for_backward([])
        loss.backward()
        self.compare(model.module, self.mean_of(Network()))

    def test_join_of_pytorch(self):
        from torch.distributed.algorithms.join import Join
        for divide in (True, False):
            for options in ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
                module = nn.Sequential(Network(), nn.BatchNorm1d(2))
                model = DistributedDataParallel(module, **options)
                with Join([model], divide_by_initial_world_size=divide):
                    for step in range(2 + self.rank):
                        present = [rank for rank in range(self.world) if step < 2 + rank]
                        other = Network()
                        other.load_state_dict(module[0].state_dict())
                        model.zero_grad()
                        model(self.inputs() + torch.tensor([[0.0] * 3, [1.0] * 3])).square().sum().backward()
                        expected = torch.zeros(())
                        twin = nn.Sequential(other, nn.BatchNorm1d(2))
                        for rank in present:
                            twin.zero_grad()
                            with torch.no_grad():
                                [one.copy_(two) for one, two in zip(twin.parameters(), module.parameters())]
                            twin(self.inputs(rank) + torch.tensor([[0.0] * 3, [1.0] * 3])).square().sum().backward()
                            expected = expected + twin[1].weight.grad
                        expected = expected / (self.world if divide else len(present))
                        self.assertLess((module[1].weight.grad - expected).abs().max().item(), 1e-3)
                        with torch.no_grad():
                            [tensor.sub_(0.01 * tensor.grad) for tensor in module.parameters()]
                for tensor in module.state_dict().values():
                    first = tensor.clone()
                    self.group.broadcast(first, 0)
                    self.assertTrue(torch.equal(tensor, first))

    def test_outputs_that_are_objects(self):
        class Hidden(Network):
            def forward(self, x):
                result = super().forward(x)
                return lambda: result  # in which nobody finds it

        class Boxed(Network):
            def forward(self, x):
                return Box([Box(super().forward(x))])

        for kind, get in ((Boxed, lambda output: output.tensor[0].tensor), (Hidden, lambda output: output())):
            for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
                module = kind()
                if options:
                    module.never = nn.Linear(2, 2)
                model = DistributedDataParallel(module, **options)
                expected = self.mean_of(Network())
                for _ in range(3):
                    model.zero_grad()
                    get(model(self.inputs())).square().sum().backward()
                    self.compare(module, expected)

    def test_strides(self):
        for view in (False, True):
            module = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
            module.gap = nn.Parameter(torch.ones(4, 6)[:, ::2])
            module.turned = nn.Parameter(torch.ones(5, 5).t())
            other = nn.Conv2d(3, 8, 3)
            model = DistributedDataParallel(module, gradient_as_bucket_view=view)
            for name in ("weight", "bias"):
                getattr(other, name).data.copy_(getattr(module, name).data)
            x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
            scale = torch.arange(25.0).view(5, 5)
            with torch.no_grad():
                module.forward = lambda x: (nn.Conv2d.forward(module, x).square().sum() + (module.turned * scale).sum()
                                            + (module.gap * scale[:4, :3]).sum())
            for _ in range(3):
                model.zero_grad(), other.zero_grad()
                model(x * (1 + self.rank)).backward()
                for rank in range(self.world):
                    (other(x * (1 + rank)).square().sum() / self.world).backward()
                self.assertEqual(module.weight.grad.stride(), module.weight.stride())
                self.assertEqual(module.turned.grad.stride(), module.turned.stride())
                self.assertTrue(torch.allclose(module.weight.grad, other.weight.grad, rtol=1e-4))
                self.assertTrue(torch.equal(module.turned.grad, scale) and torch.equal(module.gap.grad, scale[:4, :3]))
            module.weight.data.add_(self.rank)
            mean = module.weight.detach() - self.rank + (self.world - 1) / 2
            model.context.average_parameters()
            self.assertLess((module.weight - mean).abs().max().item(), BOUND)

    def test_other_strides_on_a_rank(self):
        module = nn.Linear(4, 4)
        if self.rank == 1:
            module.weight = nn.Parameter(torch.ones(4, 4).t())
        with support.raises(self, ddp.MismatchError, "weight", "memory", "rank 1"):
            DistributedDataParallel(module, process_group=self.group.split(0))

    def test_types_that_are_only_copied(self):
        types = [torch.int8, torch.int16, torch.bool, torch.complex64]
        types += [getattr(torch, name) for name in ("uint16", "uint32", "float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
        module = Network()
        for dtype in types:
            name = str(dtype).rpartition(".")[2]
            value = torch.tensor([[1, 0, 2], [3, 1, 1]]) * (self.rank + 1)
            module.register_buffer(f"buffer_{name}", value.to(dtype).t())
            module.register_buffer(f"number_{name}", torch.tensor(1 + self.rank).to(dtype))
            setattr(module, f"frozen_{name}", nn.Parameter(value.to(dtype), requires_grad=False))
        model = DistributedDataParallel(module)
        expected = torch.tensor([[1, 0, 2], [3, 1, 1]])
        for dtype in types:
            name = str(dtype).rpartition(".")[2]
            self.assertTrue(torch.equal(getattr(module, f"frozen_{name}").float(), expected.to(dtype).float()), name)
            self.assertTrue(torch.equal(getattr(module, f"buffer_{name}").float(), expected.t().to(dtype).float()), name)
            with torch.no_grad():
                getattr(module, f"buffer_{name}").copy_((expected.t() + 1 + self.rank).to(dtype))
        model(self.inputs()).sum().backward()
        for dtype in types:
            name = str(dtype).rpartition(".")[2]
            self.assertTrue(torch.equal(getattr(module, f"buffer_{name}").float(), (expected.t() + 1).to(dtype).float()), name)

    def test_join_does_not_send_what_is_frozen(self):
        module = Network()
        module.frozen = nn.Parameter(torch.ones(1000), requires_grad=False)
        model = DistributedDataParallel(module)
        with model.join():
            for _ in range(2 + self.rank):
                with torch.no_grad():
                    module.frozen.fill_(self.rank)
                model(self.inputs()).sum().backward()
                self.assertTrue(module.frozen.eq(self.rank).all())
        self.assertTrue(module.frozen.eq(self.rank).all())

    def test_a_buffer_that_is_replaced_in_join(self):
        module = Network()
        module.register_buffer("seen", torch.zeros(2))
        model = DistributedDataParallel(module)
        with model.join():
            for step in range(2 + self.rank):
                module.seen = torch.full((2,), 10.0 * step + self.rank)
                model(self.inputs()).sum().backward()
                if step:  # the buffers of the lowest rank with inputs
                    self.assertEqual(module.seen[0].item(), 10 * step + step - 1)

    def test_other_arguments(self):
        module = Network()
        model = DistributedDataParallel(module, bucket_cap_mb=0, delay_all_reduce_named_params=[("first.weight", module.first.weight)],
                                        param_to_hook_all_reduce=module.last.weight)
        self.assertEqual(model.context.bucket_count, 4)
        for _ in range(3):
            model.zero_grad()
            model(self.inputs()).square().sum().backward()
            self.compare(module, self.mean_of(Network()))

    def test_device_mesh(self):
        try:
            from torch.distributed.device_mesh import init_device_mesh
        except ImportError:
            self.skipTest("this PyTorch has none")
        module = Network()
        model = DistributedDataParallel(module, device_mesh=init_device_mesh("cpu", (self.world,)))
        pickle.loads(pickle.dumps(model))
        model(self.inputs()).square().sum().backward()
        self.compare(module, self.mean_of(Network()))
        with support.raises(self, ValueError, "device_mesh", "2 dimensions"):
            DistributedDataParallel(module, device_mesh=init_device_mesh("cpu", (self.world, 1)))

    def test_buffers_of_each_rank(self):
        """broadcast_buffers=False leaves a rank its buffers from the beginning. forward_sync_buffers=False sends them once."""
        for options, first, then in (({}, 0, 10), ({"broadcast_buffers": False}, self.rank, 10 + self.rank),
                                     ({"forward_sync_buffers": False}, 0, 10 + self.rank),
                                     ({"broadcast_buffers": False, "forward_sync_buffers": True}, 0, 10)):
            with self.subTest(**options):
                module = Network()
                module.register_buffer("own", torch.full((1,), float(self.rank)))
                model = DistributedDataParallel(module, **options)
                self.assertEqual(module.own.item(), first)
                module.own.fill_(10 + self.rank)
                model(self.inputs()).sum().backward()
                self.assertEqual(module.own.item(), then)
                self.assertEqual(model.broadcast_buffers, options.get("forward_sync_buffers", options.get("broadcast_buffers", True)))
                if not model.broadcast_buffers:
                    module.own.fill_(20 + self.rank)
                    with model.join():
                        [model(self.inputs()).sum().backward() for _ in range(1 + self.rank)]
                    from torch.distributed.algorithms.join import Join
                    with Join([model]):
                        [model(self.inputs()).sum().backward() for _ in range(1 + self.rank)]
                    self.assertEqual(module.own.item(), 20 + self.rank)
                model.double()  # registers it again
                model(self.inputs().double()).sum().backward()
                if not model.broadcast_buffers:
                    self.assertEqual(module.own.item(), 20 + self.rank)

    def test_arguments_of_none(self):
        """As libraries pass on that know PyTorch's defaults."""
        module = Network()
        module.register_buffer("own", torch.full((1,), float(self.rank)))
        model = DistributedDataParallel(module, broadcast_buffers=None, bucket_cap_mb_list=None, forward_sync_buffers=None, device_mesh=None)
        self.assertEqual(module.own.item(), 0)
        module.own.fill_(10 + self.rank)
        model(self.inputs()).sum().backward()
        self.assertEqual(module.own.item(), 10)

    def test_it_goes_with_its_last_reference(self):
        """Buckets of models that are gone would pile up until Python looks for cycles."""
        gc.collect()
        gc.disable()
        try:
            for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}):
                model = DistributedDataParallel(Network(), **options)
                model.register_comm_hook(self.group, lambda _, bucket: bucket.buffer())
                for _ in range(2):
                    model(self.inputs()).sum().backward()
                gone = weakref.ref(model), weakref.ref(model._steps), weakref.ref(model.context)
                del model
                self.assertEqual([reference() for reference in gone], [None] * 3, options)
        finally:
            gc.enable()

    def test_caps_of_buckets(self):
        module = nn.Sequential(*(nn.Linear(100, 100) for _ in range(4)))
        model = DistributedDataParallel(module, bucket_cap_mb_list=[0.03, 0.07])
        self.assertEqual(model.bucket_bytes_cap_list, [int(0.03 * 2 ** 20), int(0.07 * 2 ** 20)])
        for _ in range(3):
            model.zero_grad()
            model(torch.full((1, 100), self.rank + 1.0)).sum().backward()
            self.compare(module, self.mean_of(copy.deepcopy(module), lambda m, x: m(x[:1, :1].expand(1, 100)).sum()), 1e-3)
        self.assertEqual(list(model.context.bucket_sizes()), [40400, 80800, 40400])
        with support.raises(self, ValueError, "bucket_cap_mb_list"):
            DistributedDataParallel(module, bucket_cap_mb_list=[0])

    def test_unused_buckets_are_not_sent(self):
        for skip in (False, True):
            module = nn.ModuleList([nn.Linear(100, 100), nn.Linear(100, 100)])
            module.forward = lambda x, module=module: module[0](x)
            model = DistributedDataParallel(module, find_unused_parameters=True, skip_all_reduce_unused_params=skip, bucket_cap_mb=0.03)
            for _ in range(3):
                model.zero_grad()
                model(torch.full((1, 100), self.rank + 1.0)).sum().backward()
                self.assertAlmostEqual(module[0].weight.grad[0, 0].item(), (self.world + 1) / 2, places=4)
                self.assertIsNone(module[1].weight.grad)
            self.assertEqual(model.context.stats().unsent_buckets > 0, skip)

    def test_what_is_logged(self):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        model = DistributedDataParallel(Network())
        model._set_ddp_runtime_logging_sample_rate(2)
        self.assertNotIn("comm_hook", model._get_ddp_logging_data())
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        for _ in range(3):
            model(self.inputs()).sum().backward()
        data = model._get_ddp_logging_data()
        self.assertEqual((data["comm_hook"], data["iteration"], data["join_uneven_inputs"]), ("allreduce_hook", 3, False))
        self.assertGreater(data["avg_backward_comm_time"], 0)
        with support.raises(self, ValueError, "sample_rate"):
            model._set_ddp_runtime_logging_sample_rate(0)

    def test_ignored_parameters(self):
        module = Network()
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["first.weight"])
        DistributedDataParallel(module)
        named = DistributedDataParallel._get_data_parallel_params(module, named_params=True)
        self.assertEqual([name for name, _ in named], ["first.bias", "last.weight", "last.bias"])
        self.assertEqual(len(list(DistributedDataParallel._get_data_parallel_params(module))), 3)

    def test_one_context_at_a_time(self):
        """So that a module that is registered again never has two copies of its gradients."""
        model = DistributedDataParallel(Network())
        made, make = [model.context], ddp._torch_steps.Context

        def watched(*arguments, **options):
            with self.assertRaises(ddp.Error):
                made[-1].stats()  # closed
            made.append(make(*arguments, **options))
            return made[-1]

        ddp._torch_steps.Context = watched
        try:
            model.double()
            model(self.inputs().double()).sum().backward()
            with model.join():
                model(self.inputs().double()).sum().backward()
        finally:
            ddp._torch_steps.Context = make
        self.assertEqual(len(made), 4)

    def test_a_view_is_the_only_copy(self):
        """A view is the only copy of a gradient. Without a view there are two: .grad and its place in the bucket."""
        for view in (True, False):
            model = DistributedDataParallel(Network(), gradient_as_bucket_view=view)
            for _ in range(3):
                model.zero_grad()
                model(self.inputs()).sum().backward()
                for index, tensor in enumerate(model.module.parameters()):
                    place = torch.from_dlpack(model.context.grad_view(index)).data_ptr()
                    self.assertEqual(tensor.grad.data_ptr() == place, view)


support.main((2, 3))
