"""ddp.torch.process_group() of ranks on two hosts that have one name, as cloned machines: network namespaces. Over IPv4 and IPv6.

Skipped (77) where namespaces cannot be made, and without PyTorch.
"""
import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools/bench/runs"))
import namespaces  # noqa: E402  (tools/bench/runs)

BOUND = 120
PORT = 29471
RANK = """
import sys
from torch import distributed
import torch
import ddp.torch
distributed.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
group = ddp.torch.process_group()
value = torch.tensor([float(group.rank + 1)])
group.allreduce(value.numpy(), op="sum")
print("sum", value.item(), "over", group.backend, flush=True)
"""


def run_ranks(link, address, **variables):
    env = {**os.environ, "DDP_TIMEOUT_MS": "30000", **variables}
    init = f"tcp://[{address}]:{PORT}" if ":" in address else f"tcp://{address}:{PORT}"
    ranks = []
    try:
        for rank in range(2):
            ranks.append(subprocess.Popen([*link.prefix(rank), sys.executable, "-c", RANK, init, str(rank)], text=True,
                                          env={**env, "GLOO_SOCKET_IFNAME": link.interfaces[rank]},
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        for process in ranks:
            output = process.communicate(timeout=BOUND)[0]
            if process.returncode != 0 or "sum 3.0 over" not in output:
                sys.exit(f"ranks at {address} ended with {process.returncode}:\n{output}")
            print(output.strip())
    finally:
        for process in ranks:
            process.kill()
            process.wait()


if importlib.util.find_spec("torch") is None:
    print("skipped: PyTorch is not installed (Debian: python3-torch)")
    sys.exit(0)
namespaces.skip_where_impossible()
with namespaces.Link(None) as link:
    run_ranks(link, link.addresses[0])
    run_ranks(link, link.addresses[0], MASTER_ADDR=link.addresses[0])
    addresses = ["fd00:dd::1", "fd00:dd::2"]
    for name, interface, address, other in zip(link.names, link.interfaces, addresses, link.addresses):
        namespaces.ip("-n", name, "address", "add", f"{address}/64", "dev", interface, "nodad")
    run_ranks(link, addresses[0], MASTER_ADDR=addresses[0])
    for name, interface, address in zip(link.names, link.interfaces, link.addresses):
        namespaces.ip("-n", name, "address", "delete", f"{address}/24", "dev", interface)
    run_ranks(link, addresses[0])
