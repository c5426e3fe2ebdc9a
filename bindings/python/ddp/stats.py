"""Figures of a context (ddp/stats.h)."""
from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stats:
    """Times are in nanoseconds: of the last synced step, and (total_) of all synced steps."""

    steps: int
    synced_steps: int
    rebuilds: int
    param_count: int
    bucket_count: int
    unused_params: int
    unsent_buckets: int
    param_bytes: int
    unused_bytes: int
    sent_bytes: int
    backward_ns: int
    comm_ns: int
    overlap_ns: int
    wait_ns: int
    total_backward_ns: int
    total_comm_ns: int
    total_overlap_ns: int
    total_wait_ns: int
    last_error: int
    hook_bytes_in: int
    hook_bytes_out: int
    copied_bytes: int
    bucket_cap_bytes: int
    tuning: int
    averaged_bytes: int

    @classmethod
    def of(cls, values: Any) -> "Stats":
        """From the C struct."""
        return cls(*(getattr(values, field.name) for field in dataclasses.fields(cls)))
