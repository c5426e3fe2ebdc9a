"""Which group ddp.torch uses: that of the job, or that of the ranks of torch.distributed."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import secrets
import socket
import weakref

from torch import distributed

from ._errors import InvalidArgumentError, UnavailableError
from .group import Group, environment
from .store import Store

_default_group = None
_groups_of_torch = weakref.WeakKeyDictionary()


def process_group() -> Group:
    """The group of this process's job, which is joined by the first call. It is the default of DistributedDataParallel.

    In a program that has called torch.distributed.init_process_group, it is the group of those ranks. After a failure has broken it,
    the next call joins a new one: all ranks make that call.
    """
    global _default_group  # pylint: disable=global-statement
    if distributed.is_available() and distributed.is_initialized() and not _launcher_agrees():
        return group_of(distributed.group.WORLD)
    if _default_group is None or _default_group.broken:
        _default_group = Group()
    return _default_group


def _launcher_agrees():
    """Whether a launcher gave this process the rank that it has in torch.distributed. The launcher's store is then at hand."""
    try:
        told = environment()
    except InvalidArgumentError:  # torch.distributed needs fewer variables
        return False
    return told is not None and (told.rank, told.world_size) == (distributed.get_rank(), distributed.get_world_size())


def group_of(torch_group) -> Group:
    """A group of the ranks of a torch.distributed.ProcessGroup, which carries the first messages. Later calls with the same
    ProcessGroup return the same group, unless a failure has broken it: then a new one. Collective over those ranks."""
    if distributed.get_rank(torch_group) < 0:
        raise ValueError("process_group: this process is not in it")
    group = _groups_of_torch.get(torch_group)
    if group is None or group.broken:
        group = _groups_of_torch[torch_group] = _joined(torch_group)
    return group


def _joined(torch_group):
    rank, size = distributed.get_rank(torch_group), distributed.get_world_size(torch_group)
    hosts = [None] * size
    distributed.all_gather_object(hosts, socket.gethostname(), group=torch_group)
    answer, server = [None], None
    if rank == 0:
        try:
            address, secret = "127.0.0.1" if len(set(hosts)) == 1 else _own_address(), secrets.token_hex(16)
            server = Store(f"tcp://{address}:0", server=True, secret=secret)
            answer = [(f"tcp://{address}:{server.port}", secret)]
        except Exception as failure:  # pylint: disable=broad-except
            answer = [failure]  # which ends the others' wait, too
    distributed.broadcast_object_list(answer, distributed.get_global_rank(torch_group, 0), group=torch_group)
    if isinstance(answer[0], Exception):
        raise answer[0]
    uri, secret = answer[0]
    store = server or Store(uri, secret=secret)
    return Group(rank, size, store=store, secret=secret)


def _own_address():
    """The address of this host's name. A host may give its name an address that others cannot reach."""
    address = socket.gethostbyname(socket.gethostname())
    if address.startswith("127."):
        raise UnavailableError(
            f"process_group: the address of this host's name, {socket.gethostname()}, is {address}, which other hosts cannot reach. "
            "Give process_group a ddp.Group: ddp.Group(rank, world_size, 'tcp://HOST:PORT', secret=...)")
    return address
