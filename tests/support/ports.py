"""Ports for tests to listen on."""
import random
import socket


def free_port():
    """A port that nobody has, and that the system gives to nobody who asks for any: one of those that it does give may be taken by the
    time that it is used."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as given:
        first_given = int(given.read().split()[0])
    for _ in range(100):
        port = random.randrange(10_000, max(first_given, 10_001))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise OSError("no free port was found")
