"""Which group ddp.torch uses: that of the job, or that of the ranks of torch.distributed."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import secrets
import socket
import struct
import weakref

from torch import distributed

from ._errors import InvalidArgumentError, UnavailableError
from .group import Group, environment
from .store import Store

# Addresses of documentation: there is nobody, but the routing table has a way.
_ADDRESSES_OF_NOBODY = "192.0.2.1", "2001:db8::1"
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
    distributed.all_gather_object(hosts, _host(), group=torch_group)
    answer, server = [None], None
    if rank == 0:
        try:
            address, secret = "127.0.0.1" if len(set(hosts)) == 1 else _reachable_address(), secrets.token_hex(16)
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


def _host():
    """The same text for processes that reach each other at 127.0.0.1. A host name does not tell: containers of one machine have several,
    and cloned machines have the same, and one boot id. Network cards are there for these. DDP_HOST_ID, if set, says it instead."""
    if given := os.environ.get("DDP_HOST_ID"):
        return f"given {given}"
    parts = []
    with contextlib.suppress(OSError):
        parts.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/net"))
    for card in sorted(pathlib.Path("/sys/class/net").glob("*/address")):
        with contextlib.suppress(OSError):
            parts.append(card.read_text(encoding="ascii").strip())
    return " ".join(parts) or socket.gethostname()


def _reachable_address():
    address = next(_own_addresses(), None)
    if address is None:
        raise UnavailableError(
            f"process_group: the ranks are on several hosts, and {socket.gethostname()}, where rank 0 is, has no address but loopback. Name "
            "its network interface in DDP_IFACE, or give process_group a ddp.Group: "
            "ddp.Group(rank, world_size, 'tcp://HOST:PORT', secret=...)")
    return f"[{address}]" if ":" in address else address


def _own_addresses():
    """Addresses of this host that others may reach, best first. The host's own name is not looked up: that may take long."""
    interface = os.environ.get("DDP_IFACE") or os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        yield from _addresses_of(interface)
        return
    for peer in (os.environ.get("MASTER_ADDR"), *_ADDRESSES_OF_NOBODY):
        with contextlib.suppress(OSError):
            for family, _, _, _, place in socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM) if peer else ():
                address = _source_toward(family, place)
                if address and not address.startswith(("127.", "fe80:")) and address != "::1":
                    yield address
    for _, name in socket.if_nameindex():
        if name != "lo":
            yield from _addresses_of(name)


def _source_toward(family, place):
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return probe.getsockname()[0]
    return None


def _addresses_of(interface):
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", interface.encode()[:15]))  # SIOCGIFADDR
        yield socket.inet_ntoa(answer[20:24])
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as lines:
        for address, _, _, scope, _, name in map(str.split, lines):
            if name == interface and scope == "00":  # global
                yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address))
