"""A process that has both PyTorch and the wheel, imported in either order, ends with status 0.

    wheel_torch_test.py SCRATCH      SCRATCH: where wheel_test.py has installed the wheel

PyTorch is the one that this Python imports. The wheel's libraries must not mix with those that it loads.
"""
import os
import pathlib
import subprocess
import sys

SCRATCH = pathlib.Path(sys.argv[1]).resolve()
PYTHON = SCRATCH / "venv" / "bin" / "python"
ALONE = """
import {first}
import {second}
assert ddp.__file__.startswith("{scratch}"), ddp.__file__
"""
RANK = ALONE + """
from ddp.torch import DistributedDataParallel, process_group

group = process_group()
numbers = torch.tensor([group.rank + 1.0])
group.allreduce(numbers)
assert numbers.item() == 3, numbers
model = torch.nn.Linear(1, 1)
with torch.no_grad():
    model.weight.fill_(1)
    model.bias.fill_(0)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model(torch.tensor([[group.rank + 1.0]])).sum().backward()  # gradients: 1 and 2 for the weight, 1 for the bias
optimizer.step()
assert (model.module.weight.item(), model.module.bias.item()) == (0.25, -0.5), list(model.parameters())
"""


def run(*command, **options):
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90,
                          check=False, **options)


def main():
    if not PYTHON.exists():
        print("skipped: there is no wheel, because python.wheel was skipped")
        return
    try:
        import torch
    except ImportError as error:
        print("skipped: no PyTorch:", error)
        return
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and name != "DDP_MODULE_PATH"}
    # The wheel's Python finds PyTorch, and what that needs, where this Python does. It prefers the wheel.
    site = SCRATCH / "venv" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "torch_of_the_test.pth").write_text(str(pathlib.Path(torch.__file__).parent.parent) + "\n")
    for order in (("torch", "ddp"), ("ddp", "torch")):
        names = dict(zip(("first", "second"), order), scratch=SCRATCH)
        for command in ((PYTHON, "-c", ALONE.format(**names)),
                        (PYTHON, "-m", "ddp.run", "-n", 2, PYTHON, "-c", RANK.format(**names))):
            done = run(*command, env=clean, cwd="/")
            if done.returncode != 0:
                sys.exit(f"import {order[0]}, then {order[1]}: status {done.returncode}\n{done.stdout}")
    print(f"PyTorch {torch.__version__}: both orders")


if __name__ == "__main__":
    main()
