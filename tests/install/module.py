#!/usr/bin/env python3
"""Checks that an installed libddp loads a module by its backend's name: module.py LIBDDP.SO BACKEND MODULE

A module may say that this machine lacks something. A copy of the library alone says which package has the module.
"""
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def available(path, backend):
    """1 and "", or 0 and why not."""
    ddp = ctypes.CDLL(str(path))
    ddp.ddp_error_message.restype = ctypes.c_char_p
    error = ctypes.c_void_p()
    found = ddp.ddp_backend_available(backend.encode(), ctypes.byref(error))
    return found, ddp.ddp_error_message(error).decode()


def without_module(path, backend, module):
    """In a process of its own: the loader knows a library by its name."""
    with tempfile.TemporaryDirectory() as folder:
        alone = shutil.copy(path.resolve(), pathlib.Path(folder) / "libddp.so.0")
        environment = {name: value for name, value in os.environ.items() if name != "DDP_MODULE_PATH"}
        asked = subprocess.run([sys.executable, "-B", __file__, "--alone", alone, backend, module], stdout=subprocess.PIPE, text=True,
                               timeout=30, env=environment, check=False)
    print(asked.stdout)
    parts = (f"'{backend}' needs the module libddp-{module}.so: ", f"{folder}/ddp/libddp-{module}.so: not there",
             f"install the Debian package libddp-{module}, or build libddp with DDP_BUILD_{module.upper()}=ON")
    return asked.returncode == 0 and all(part in asked.stdout for part in parts)


def main():
    if sys.argv[1] == "--alone":
        found, message = available(sys.argv[2], sys.argv[3])
        print(message)
        return found
    path, backend, module = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    found, message = available(path, backend)
    print(message)
    if found != 1 and f"backend '{backend}' cannot be used here: " not in message:
        return 1
    return 0 if without_module(path, backend, module) else 1


if __name__ == "__main__":
    sys.exit(main())
