#!/usr/bin/env python3
"""What a link can do at best: one TCP stream each way at once, so many bytes, as often as told.

usage: wire.py listen ADDRESS PORT BYTES TIMES       prints the milliseconds of the slower side, one a line
       wire.py connect ADDRESS PORT BYTES TIMES

An allreduce between two ranks sends half the bytes each way to be reduced and half to be gathered: as many bytes each
way as it reduces.
"""
import socket
import struct
import sys
import threading
import time

TIMEOUT_S = 120


def accept(address, port):
    with socket.create_server((address, port)) as server:
        server.settimeout(TIMEOUT_S)
        return server.accept()[0]


def connect(address, port):
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=TIMEOUT_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def receive(stream, memory):
    got = 0
    while got < len(memory):
        count = stream.recv_into(memory[got:])
        if count == 0:
            raise ConnectionError("the other side is gone")
        got += count


def exchange(stream, value):
    """Sends a number, and returns the other side's: both go on at the same time."""
    stream.sendall(struct.pack("d", value))
    theirs = bytearray(8)
    receive(stream, memoryview(theirs))
    return struct.unpack("d", theirs)[0]


def both_ways(stream, outgoing, incoming):
    start = time.perf_counter()
    sender = threading.Thread(target=stream.sendall, args=(outgoing,), daemon=True)
    sender.start()
    receive(stream, incoming)
    sender.join(TIMEOUT_S)
    return 1e3 * (time.perf_counter() - start)


def main():
    side, address, port, size, times = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    with {"listen": accept, "connect": connect}[side](address, port) as stream:
        stream.settimeout(TIMEOUT_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outgoing, incoming = memoryview(bytearray(size)), memoryview(bytearray(size))
        for _ in range(times):
            exchange(stream, 0.0)
            mine = both_ways(stream, outgoing, incoming)
            slower = max(mine, exchange(stream, mine))
            if side == "listen":
                print(f"{slower:.3f}", flush=True)


if __name__ == "__main__":
    main()
