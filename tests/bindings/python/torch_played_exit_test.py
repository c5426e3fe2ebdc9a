"""A program whose last backward pass has just ended, or failed, ends as it would with PyTorch's class.

    torch_played_exit_test.py FAKE_DEVICE COMPILER FOLDER

The arguments are those of torch_played_test.py. backward() comes back while a thread that autograd has for the device still holds what the
pass was given, here for a while.
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "played"))
import played  # noqa: E402

played.need()

FAKE_DEVICE, COMPILER, FOLDER, *HOW = sys.argv[1:]
ENDS = {"well": (0, ""), "fails": (1, "ArithmeticError: in the backward pass"),
        "incomplete": (1, "ddp.InvalidStateError: This backward pass gave no gradient for 0.weight, 0.bias"),
        "stray": (1, "ddp.InvalidStateError: 2.bias has got a gradient in a backward pass that no forward pass")}


def program(how):
    import time

    import torch
    from torch import nn
    played.load(played.build(COMPILER, FAKE_DEVICE, FOLDER))
    from ddp.torch import DistributedDataParallel

    class Slow:
        def __call__(self):
            pass

        def __del__(self):
            time.sleep(0.3)

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * 1

        @staticmethod
        def backward(_, grad):
            if how == "fails":
                raise ArithmeticError("in the backward pass")
            return grad

    class Between(nn.Module):
        def forward(self, x):
            return x.detach() if how == "incomplete" else Step.apply(x)

    def hold(_):
        torch.autograd.Variable._execution_engine.queue_callback(Slow())

    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), Between(), nn.Linear(4, 4)).to("played:0"))
    loss = (model.module if how == "stray" else model)(torch.randn(3, 4, device="played:0")).sum()
    loss.register_hook(hold)
    loss.backward()


if HOW:
    program(*HOW)
    sys.exit()
played.build(COMPILER, FAKE_DEVICE, FOLDER)
failed = False
for how, (code, last) in ENDS.items():
    done = subprocess.run([sys.executable, "-B", *sys.argv, how], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
                          env={name: value for name, value in os.environ.items() if not name.startswith("DDP_RANK")})
    said = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode != code or not said[0].startswith(last):
        print(f"{how}: ended with {done.returncode}:\n{done.stdout}")
        failed = True
sys.exit(failed)
