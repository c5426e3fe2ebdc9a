"""Exceptions with Horovod's names."""
from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks disagree about it, a rank was lost, or time is up. The message is libddp's. An elastic job restores
    its last commit and goes on."""


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks have come or left between two commits. An elastic job goes on without restoring anything."""

    def __init__(self, skip_sync: bool = False):
        super().__init__("ranks have come or left")
        self.skip_sync = skip_sync
