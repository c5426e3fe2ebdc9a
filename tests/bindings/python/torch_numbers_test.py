"""The optimizers of libddp (ddp/optimizer.h) beside those of torch.optim: the same values after the same gradients.

    torch_numbers_test.py            DDP_TORCH_PYTHON names a Python with a newer PyTorch, if this one's is older
    torch_numbers_test.py --time     the time of a step of each, on one thread
"""
import sys
import time
import unittest

import support
import torch_case

torch_case.need(2, 9)

import torch  # noqa: E402

import ddp  # noqa: E402
from ddp import _ddp  # noqa: E402

SHAPES = [(40, 25), (3,), (129, 61), (1,), (7, 9, 5), (1000,)]


class Training:
    """The same parameters under both."""

    def __init__(self, name, options, make, dtype=torch.float32, shapes=SHAPES):
        torch.manual_seed(1)
        self.theirs = [torch.randn(shape, dtype=dtype) for shape in shapes]
        self.ours = [value.clone() for value in self.theirs]
        self.gradients = [torch.zeros_like(value) for value in self.ours]
        self.context = ddp.Context(support.alone())
        for i, (value, gradient) in enumerate(zip(self.ours, self.gradients)):
            self.context.register(f"p{i}", value, gradient)
        self.context.commit()
        self.optimizer = _ddp.ddp_optimizer_create(self.context._handle, name, options)
        self.peer = make(self.theirs)
        for value in self.theirs:
            value.grad = torch.zeros_like(value)

    def backward(self):
        for i, (value, gradient) in enumerate(zip(self.theirs, self.gradients)):
            value.grad.copy_(torch.randn_like(value))
            gradient.copy_(value.grad)
            self.context.grad_ready(i)
        self.context.finalize()

    def step(self):
        self.backward()
        _ddp.ddp_optimizer_step(self.optimizer, 1.0)
        self.peer.step()

    def largest_difference(self):
        return max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in zip(self.ours, self.theirs))


class Numbers(unittest.TestCase):
    def compare(self, bound, *arguments, **options):
        training = Training(*arguments, **options)
        for _ in range(20):
            training.step()
            self.assertLessEqual(training.largest_difference(), bound)

    def test_adamw(self):
        for dtype, bound in (torch.float32, 5e-7), (torch.float64, 1e-15):
            self.compare(bound, "adamw", "lr=0.01,weight_decay=0.1",
                         lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), dtype=dtype)
        self.compare(5e-7, "adamw", "", torch.optim.AdamW)

    def test_sgd(self):
        for dtype, bound in (torch.float32, 1e-6), (torch.float64, 2e-15):
            self.compare(bound, "sgd", "lr=0.1,momentum=0.9,nesterov=1,weight_decay=0.1",
                         lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1), dtype=dtype)
            self.compare(bound, "sgd", "lr=0.1,momentum=0.9", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), dtype=dtype)
        self.compare(1e-6, "sgd", "", torch.optim.SGD)

    # PyTorch's iterations are in bf16.
    def test_muon(self):
        matrices = [(40, 25), (25, 40), (16, 16)]
        for options, kept in ("lr=0.01", {}), ("lr=0.01,match_rms_adamw=1", {"adjust_lr_fn": "match_rms_adamw"}):
            self.compare(0.01, "muon", options, lambda p: torch.optim.Muon(p, lr=0.01, **kept), shapes=matrices)

    def test_what_is_not_given_is_told(self):
        training = Training("adamw", "", torch.optim.AdamW)
        self.assertEqual(_ddp.ddp_optimizer_state_count(training.optimizer), 3 * len(SHAPES))
        state = _ddp.ddp_optimizer_state()
        _ddp.ddp_optimizer_state_get(training.optimizer, 4, state)
        self.assertEqual((state.param, state.name, state.count), (1, "exp_avg_sq", 3))
        with self.assertRaisesRegex(ValueError, "there is no setting 'rate'"):
            _ddp.ddp_optimizer_set(training.optimizer, -1, "rate", 1.0)


def measure(training, calls=30):
    training.backward()
    ours, theirs = [], []
    for _ in range(calls):
        training.backward()
        for times, step in (ours, lambda: _ddp.ddp_optimizer_step(training.optimizer, 1.0)), (theirs, training.peer.step):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    return sorted(ours)[calls // 2], sorted(theirs)[calls // 2]


if "--time" in sys.argv:
    for label, shapes in ("one of 25,000,000", [(5000, 5000)]), ("160 of 1,000 to 1,000,000", [(1000, 1), (1000, 1000)] * 80):
        count = sum(torch.Size(shape).numel() for shape in shapes)
        for name, make in ("adamw", lambda p: torch.optim.AdamW(p, foreach=True)), ("adamw", lambda p: torch.optim.AdamW(p, fused=True)):
            a, b = measure(Training(name, "", make, shapes=shapes))
            print(f"{name}, {label}: libddp {a * 1e3:.1f} ms ({28 * count / a / 1e9:.1f} GB/s), torch.optim {b * 1e3:.1f} ms")
else:
    support.main()
