"""ddp.torch over ranks of torch.distributed on two hosts, which are network namespaces of this machine: one boot, and one host name.

    torch_hosts_test.py         IPv4, then IPv6
"""
import os
import pathlib
import subprocess
import sys

import support

support.need("torch")
if len(sys.argv) == 1:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/bench/runs"))
    import namespaces  # (tools/bench/runs)

    if reason := namespaces.why_impossible(None):
        print(f"skipped: {reason}")
        sys.exit()
    with namespaces.Link(None) as link:
        for name, interface, address in zip(link.names, link.interfaces, ("fd00:210::1", "fd00:210::2")):
            namespaces.ip("-n", name, "address", "add", f"{address}/64", "dev", interface, "nodad")
        for address in (link.addresses[0], "fd00:210::1"):
            ranks = [subprocess.Popen(
                [*link.prefix(rank), sys.executable, "-B", __file__, str(rank), address, link.interfaces[rank]],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]
            try:
                outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
            for rank, output in zip(ranks, outputs):
                assert rank.returncode == 0 and "the mean is 1.5" in output, "\n".join(outputs)
            if ":" not in address:
                for name, interface, old in zip(link.names, link.interfaces, link.addresses):
                    namespaces.ip("-n", name, "address", "delete", f"{old}/24", "dev", interface)
    sys.exit()

RANK, ADDRESS, INTERFACE = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ.update(MASTER_ADDR=ADDRESS, MASTER_PORT="29610", GLOO_SOCKET_IFNAME=INTERFACE, DDP_TIMEOUT_MS="30000")

import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402

from ddp.torch import DistributedDataParallel, process_group  # noqa: E402

torch.set_num_threads(1)
distributed.init_process_group("gloo", rank=RANK, world_size=2)
del os.environ["GLOO_SOCKET_IFNAME"]  # libddp finds an address without it
module = nn.Linear(1, 1, bias=False)
model = DistributedDataParallel(module)
assert process_group().world_size == 2
model(torch.full((1, 1), RANK + 1.0)).sum().backward()
print(f"the mean is {module.weight.grad.item()}", flush=True)
distributed.barrier()
distributed.destroy_process_group()
