"""device_mesh of ddp.torch.DistributedDataParallel beside PyTorch's class: a mesh of all ranks, and a row and a column of 2 x 2 ranks.

    torch_mesh_test.py     on 2 and on 4 ranks. DDP_TORCH_PYTHON names a Python with a newer PyTorch, if this one's is older
"""
import pickle

import support
import torch_case

torch_case.need(2, 2)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

import ddp  # noqa: E402
from ddp.torch import DistributedDataParallel  # noqa: E402


class Meshes(torch_case.BesidePyTorch):
    def compare(self, mesh, ranks):
        """Gradients and weights of PyTorch's class with the same mesh, bit for bit with two ranks."""
        theirs, ours = torch_case.Network(), torch_case.Network()
        for module in (theirs, ours):
            with torch.no_grad():
                module.first.weight.add_(self.rank)  # that of the mesh's first rank counts
        parallel, model = (kind(module, device_mesh=mesh) for kind, module in (
            (nn.parallel.DistributedDataParallel, theirs), (DistributedDataParallel, ours)))
        self.assertTrue(torch.equal(ours.first.weight, torch_case.Network().first.weight + ranks[0]))
        self.assertEqual((model.device_mesh, model.process_group.world_size), (mesh, len(ranks)))
        self.assertEqual(model.process_group.rank, ranks.index(self.rank))
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (theirs, ours)]
        for step in range(3):
            for each, optimizer in zip((parallel, model), optimizers):
                optimizer.zero_grad()
                each(self.inputs() + step).square().sum().backward()
            for one, other in zip(theirs.parameters(), ours.parameters()):
                if len(ranks) == 2:
                    self.assertTrue(torch.equal(one.grad, other.grad))
                self.assertLess((one.grad - other.grad).abs().max().item(), 1e-5)
            for optimizer in optimizers:
                optimizer.step()
        return model

    def test_all_ranks(self):
        model = self.compare(init_device_mesh("cpu", (self.world,)), list(range(self.world)))
        pickle.loads(pickle.dumps(model))(self.inputs()).sum().backward()

    def test_parts_of_a_mesh_of_two_dimensions(self):
        if self.world != 4:
            return
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        row, column = self.rank // 2, self.rank % 2
        self.compare(mesh["shard"], [2 * row, 2 * row + 1])
        self.compare(mesh["replicate"], [column, column + 2])

    def test_a_mesh_of_some_ranks(self):
        """The other ranks have no part in it, and make nothing of it."""
        if self.world != 4:
            return
        mesh = DeviceMesh("cpu", [3, 1])  # whose group has them in order
        if self.rank in (1, 3):
            self.compare(mesh, [1, 3])
        else:
            with support.raises(self, ValueError, "device_mesh", f"rank {self.rank} is not in it"):
                DistributedDataParallel(torch_case.Network(), device_mesh=mesh)
        self.group.barrier()

    def test_a_mesh_of_two_dimensions(self):
        mesh = init_device_mesh("cpu", (self.world, 1), mesh_dim_names=("replicate", "shard"))
        for kind, error in ((nn.parallel.DistributedDataParallel, RuntimeError), (DistributedDataParallel, ValueError)):
            with self.assertRaises(error):
                kind(torch_case.Network(), device_mesh=mesh)
        with support.raises(self, ValueError, "device_mesh", "process_group"):
            DistributedDataParallel(torch_case.Network(), device_mesh=mesh["replicate"], process_group=self.group)

    def test_parameters_that_are_distributed(self):
        """Parameters of tensor parallelism are not for this class."""
        mesh = init_device_mesh("cpu", (self.world // 2, 2), mesh_dim_names=("replicate", "shard"))
        for placement in (Shard(0), Replicate()):
            module = nn.Linear(4, 4)
            module.weight = nn.Parameter(distribute_tensor(module.weight, mesh["shard"], [placement]))
            with support.raises(self, ddp.UnsupportedError, "weight", "DTensor"):
                DistributedDataParallel(module, device_mesh=mesh["replicate"])


support.main((2, 4))
