"""Batch normalisation with the mean and variance over all ranks."""
# mypy: ignore-errors
# PyTorch may not be there.
from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .._job import size
from .mpi_ops import Sum, allreduce


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d to 3d whose batch is that of all ranks. Batches may differ in size. On any device."""

    def _check_input_dim(self, input: Any) -> None:  # pylint: disable=redefined-builtin
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # pylint: disable=redefined-builtin
        """As torch.nn.BatchNorm1d's. Collective while the module trains, or tracks no statistics."""
        if size() == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        self._check_input_dim(input)
        dims = [dim for dim in range(input.dim()) if dim != 1]
        places = [1, -1] + [1] * (input.dim() - 2)
        values = input if input.dtype in (torch.float32, torch.float64) else input.float()
        own = values.new_tensor([input.numel() / input.size(1)])
        sums = allreduce(torch.cat([values.sum(dims), own]), op=Sum)
        count = float(sums[-1].detach())
        mean = sums[:-1] / count
        centred = values - mean.view(places)
        variance = allreduce((centred * centred).sum(dims), op=Sum) / count
        if self.training and self.running_mean is not None:
            self._track(mean.detach(), variance.detach() * (count / max(count - 1, 1)))
        result = centred * torch.rsqrt(variance + self.eps).view(places)
        if self.affine:
            result = result * self.weight.view(places) + self.bias.view(places)
        return result.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)
