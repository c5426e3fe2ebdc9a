#!/usr/bin/env python3
"""Checks that an installed libddp loads a module by its backend's name: module.py LIBDDP.SO BACKEND LIBRARY

LIBRARY is the begin of a file name that the module needs, and libddp may not. A module may say that this machine lacks something.
"""
import ctypes
import subprocess
import sys


def needed(path):
    headers = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout
    return [line.split()[1] for line in headers.splitlines() if line.strip().startswith("NEEDED")]


def main():
    path, backend, library = sys.argv[1:]
    if any(name.startswith(library) for name in needed(path)):
        print(f"{path} needs {needed(path)}")
        return 1
    ddp = ctypes.CDLL(path)
    ddp.ddp_error_message.restype = ctypes.c_char_p
    error = ctypes.c_void_p()
    if ddp.ddp_backend_available(backend.encode(), ctypes.byref(error)) != 1:
        message = ddp.ddp_error_message(error).decode()
        print(message)
        return 0 if f"backend '{backend}' cannot be used here: " in message else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
