#!/usr/bin/env python3
"""Checks rules that a compiler does not: which room may include which, which file of a binding may include which, what no tracked
file may hold, and that each function of the C ABI gives its own name to guard(), which puts it into messages.

The arrows point one way: capi -> core -> hooks -> comm -> {backends, rendezvous, device}, backends -> {kernels, wire},
rendezvous -> {launch, wire} -> util and kernels -> device -> util. Tests import from tools, and tools never from tests.
A name in quotes or angle brackets that begins with a room's name is an include of that room. `ddp/...` is the public interface,
which all may include.
"""
import pathlib
import re
import shutil
import subprocess
import sys

# Which rooms each room may include besides itself.
ROOMS = {
    "util": set(),
    "device": {"util"},
    "kernels": {"device", "util"},
    "wire": {"util"},
    "launch": {"util"},
    "rendezvous": {"launch", "wire", "util"},
    "record": {"util"},
    "backends": {"record", "wire", "kernels", "device", "util"},
    "comm": {"backends", "rendezvous", "launch", "record", "kernels", "device", "util"},
    "hooks": {"comm", "kernels", "device", "util"},
    "core": {"hooks", "comm", "rendezvous", "launch", "record", "kernels", "device", "util"},
    "optimizer": {"core", "comm", "kernels", "device", "util"},
    "outer": {"core", "hooks", "comm", "kernels", "device", "util"},
    "elastic": {"outer", "core", "comm", "rendezvous", "launch", "device", "util"},
    "capi": {"core", "optimizer", "outer", "elastic", "hooks", "comm", "rendezvous", "launch", "record", "kernels", "device", "util"},
}
# A backend is written against the public vtable in ddp/backend.h, as a user's own would be. It sees what all backends share, and no
# other backend: only `hierarchical` is made of two.
SHARED_BY_BACKENDS = "backends/common"
MADE_OF = {"backends/hierarchical": {"backends/shm", "backends/tcp"}}
# Which stores and launchers exist is no business of a group.
ONLY_HEADERS = {("comm", "rendezvous"): {"rendezvous/store.h"}, ("comm", "launch"): {"launch/environment.h"}}
# The folders of each module: no code outside it includes them.
MODULES = {"backends/gloo": "gloo", "rendezvous/etcd": "etcd", "backends/mpi": "mpi", "backends/nccl": "cuda", "device/cuda": "cuda",
           "kernels/cuda": "cuda"}
# The files of a binding, in an order in which each includes or imports only those before it. A file is named without its suffix.
ORDERS = {
    "bindings/python/native": "base dlpack_abi xla_ffi_abi unused interrupt failure handle callbacks convert jax memory take show memory_type",
    "bindings/python/ddp":
        "_ddp _words _errors _arrays stats store work group _context_state bucket context_batches context_hooks context_devices optimizer context_shards context_votes context averager elastic record sampler __init__ _launched ray _spark_rank spark _torch_groups _torch_devices _torch_module _torch_precision _torch_buffers _torch_hooks _torch_join _owners _torch_passes _torch_norm _torch_shards _torch_steps _torch_optimizer torch _gradient_context numpy _jax_leaves _jax_pieces _jax_optimizer _jax_calls jax _keras_gradients _keras_state _keras_tensorflow _keras_jax _keras_torch keras _tinygrad_ways tinygrad run",
    "bindings/python/ddp/horovod": "exceptions _numbers _requests _negotiation _collectives _worker _job _calls _elastic __init__ numpy _tensorflow_compression _tensorflow_ops _gradients _keras _keras_names _keras_elastic",
    "bindings/python/ddp/horovod/torch": "compression mpi_ops functions optimizer sync_batch_norm elastic __init__",
    "bindings/python/ddp/horovod/tensorflow": "elastic __init__",
    "bindings/java/native": "memory failure convert callbacks",
}
# Third-party headers, and the only folders that may know them: the one that wraps each, and its unit tests.
THIRD_PARTY = {
    r"gloo/": {"lib/backends/gloo", "tools/bench/peers"},
    r"uv\.h": {"lib/rendezvous", "tools"},
    r"httplib\.h": {"tools/run"},
    r"openssl/": {"lib/wire", "tests/unit/wire", "tools"},
    r"curl/": {"lib/rendezvous/etcd"},
    r"nlohmann/": {"lib/core", "lib/rendezvous/etcd", "tests/hooks", "tools"},
    r"hwy/": {"lib/kernels/cpu", "tests/unit/device"},
    r"Random123/": {"lib/kernels"},
    r"(cuda|cublas|nccl)[a-z0-9_]*\.h": {"lib/device/cuda", "lib/kernels/cuda", "lib/backends/nccl", "tests/gpu", "examples/cuda", "tools/bench/cuda"},
    r"mpi\.h": {"lib/backends/mpi", "tests/dist/mpi", "tools/bench/peers"},
}

# Written in pieces, so that this file passes its own test.
FORBIDDEN = {
    "the address of a package registry": re.compile(r"//[a-z.-]*(?:debian|pypi|npmjs)[a-z.]*"),
    "a path of one machine": re.compile(r"(?<![\w.$}-])/" + r"work/"),
}

# A function of the C ABI, and the name that it gives to guard() or step_call().
PUBLIC = re.compile(r"^[A-Za-z]\w*[\w* ]* \*?(ddp_\w+)\(")
GUARD = re.compile(r"(?<!ddp_status )\b(?:guard(?:<[\w:]+>)?\((?:error|nullptr)|step_call\(context, error), (\S*),")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# from .work import Work; from . import _ddp
IMPORT = re.compile(r"^\s*from \.(\w*) import ([\w, ]*)")


def include_fault(folder, header):
    """Why a file in `folder` (relative to the root) may not include `header`, or None."""
    for pattern, homes in THIRD_PARTY.items():
        if re.match(pattern, header) and not any(folder == home or folder.startswith(home + "/") for home in homes):
            return f"only {', '.join(sorted(homes))} may include {header}"
    parts = folder.split("/")
    if parts[0] == "lib" and header.startswith("."):
        return "includes in lib/ are written from lib/, so that this test can follow them"
    target = header.split("/")[0]
    if parts[0] != "lib" or len(parts) < 2 or target not in ROOMS:
        return None
    room = parts[1]
    if room not in ROOMS:
        return f"the room {room} is not in the table of this test"
    backend = "/".join(parts[1:3])
    homes = (backend, SHARED_BY_BACKENDS, *MADE_OF.get(backend, ()))
    if room == target == "backends" and not header.startswith(tuple(home + "/" for home in homes)):
        return f"{backend} may include of the backends only {', '.join(homes)}"
    if target != room and target not in ROOMS[room]:
        return f"{room} may not include {target}"
    module = MODULES.get("/".join(header.split("/")[:2]))
    if module and MODULES.get(backend) != module:
        return f"only the module {module} may include {header}"
    allowed = ONLY_HEADERS.get((room, target))
    if allowed and header not in allowed:
        return f"{room} may include of {target} only {', '.join(sorted(allowed))}"
    return None


def order_fault(path, line):
    """Why a file of a binding may not hold this line, or None."""
    path = pathlib.PurePosixPath(path)
    order = ORDERS.get(str(path.parent), "").split()
    if not order or path.suffix not in (".c", ".h", ".py"):
        return None
    if path.stem not in order:
        return f"{path.stem} is not in the table of this test"
    named = []
    if match := INCLUDE.match(line):
        named = [pathlib.PurePosixPath(match[1]).stem]
    elif match := IMPORT.match(line):
        named = [match[1]] if match[1] else match[2].replace(" ", "").split(",")
    for target in named:
        if target in order and order.index(target) > order.index(path.stem):
            return f"{path.stem} may not include {target}, which comes after it"
    return None


def faults_of(path, text):
    lines = text.splitlines()
    folder = str(pathlib.PurePosixPath(path).parent)
    public = None
    for number, line in enumerate(lines, 1):
        for what, pattern in FORBIDDEN.items():
            if pattern.search(line):
                yield number, f"holds {what}: {line.strip()}"
        match = INCLUDE.match(line)
        fault = (match and include_fault(folder, match.group(1))) or order_fault(path, line)
        if fault:
            yield number, f"{fault}: {line.strip()}"
        if folder.split("/")[0] == "tools" and "sys.path" in line and "tests" in line:
            yield number, f"tools may not import from tests: {line.strip()}"
        if folder == "lib/capi" and path.endswith(".cc"):
            public = match[1] if (match := PUBLIC.match(line)) else public
            for name in GUARD.findall(line):
                if name != f'"{public}"':
                    yield number, f"{public} gives guard() the name {name}"


def tracked_files(root):
    """The files that git tracks or would track; without git (an unpacked source archive), every file outside the build folders."""
    if shutil.which("git"):
        listed = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True)
        if listed.returncode == 0:
            return sorted(set(listed.stdout.decode().split("\0")) - {""})
    paths = (p.relative_to(root) for p in root.rglob("*") if p.is_file())
    return sorted(str(p) for p in paths if not p.parts[0].startswith(("build", ".git")))


def main():
    root = pathlib.Path(sys.argv[1])
    count = faults = 0
    for path in tracked_files(root):
        try:
            text = (root / path).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # data, or deleted but not yet committed
        count += 1
        for number, fault in faults_of(path, text):
            faults += 1
            print(f"{path}:{number}: {fault}")
    print(f"{count} files, {faults} faults")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
