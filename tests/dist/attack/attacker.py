"""Attacks a job from outside, until it is killed: connects to whatever the job's processes listen on, and misbehaves.

    attacker.py KIND [--user UID] [--hold N] [--hello HEX] PID...

KIND is one of those below. --user: as this user. --hold: how many connections it keeps open. --hello: what "replay" sends, a
recorded ClientHello. PIDs: of processes in the network namespaces that are attacked. Writes to standard output "ready", then how many
connections it made: after the first, after each thousand, and at its end (SIGTERM); "got" when it got what only ranks may have, or the
answer to a hello.
"""
import argparse
import array
import contextlib
import os
import pathlib
import random
import resource
import signal
import socket
import struct
import sys
import time

PAUSE_S = 0.001
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # a TLS handshake begins like this
LISTENS = "0A"


def endpoints(pids):
    """(host, port) of all listening TCP sockets of the namespaces of these processes."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state != LISTENS:
                    continue
                host, port = local.split(":")
                found.add((socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16)))
    return sorted(found)


def abstract_sockets(pids):
    """The names of unix sockets of these processes that are not files."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{pid}/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
                path = line.split()[-1]
                if path.startswith("@"):
                    found.add("\0" + path[1:])
    return sorted(found)


def connect(endpoint):
    stranger = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    stranger.settimeout(0.2)
    stranger.connect(endpoint)
    return stranger


class Attack:
    """One kind of attack. knock() is called for each endpoint again and again."""

    hold = 50
    niceness = 10
    rest = 10  # times the processor's time of a search for endpoints: the kernel looks through its whole table of sockets

    def __init__(self, hold):
        self.count = 0
        self.hold = hold or self.hold
        self.held = []

    def knock(self, endpoint):
        with contextlib.suppress(OSError):
            stranger = connect(endpoint)
            self.note()
            self.act(stranger)

    def note(self):
        self.count += 1
        if self.count == 1 or self.count % 1000 == 0:
            print(self.count, flush=True)

    def keep(self, stranger):
        self.held.append(stranger)
        if len(self.held) > self.hold:
            self.held.pop(0).close()

    def end(self):
        pass

    def act(self, stranger):
        raise NotImplementedError


class Scan(Attack):
    """A port scan: connects and resets."""

    def act(self, stranger):
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()


class Garbage(Attack):
    def act(self, stranger):
        stranger.sendall(random.randbytes(random.randrange(1, 300)))
        stranger.close()


class Preamble(Attack):
    """As many bytes as Gloo's pairs expect from whoever connects."""

    def act(self, stranger):
        stranger.sendall(random.randbytes(48))
        self.keep(stranger)


class Silent(Attack):
    hold = 600

    def act(self, stranger):
        self.keep(stranger)


class HalfTls(Attack):
    def act(self, stranger):
        stranger.sendall(CLIENT_HELLO + random.randbytes(random.randrange(0, 400)))
        self.keep(stranger)


class Memory(Attack):
    """Hands a segment of its own to whoever asks for one on a unix socket."""

    rest = 0  # an endpoint is there for some milliseconds only

    def endpoints(self, pids):
        return abstract_sockets(pids)

    def knock(self, endpoint):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(0.2)
            stranger.connect(endpoint)
            self.note()
            memory = os.memfd_create("foreign")
            os.ftruncate(memory, 1 << 20)
            rights = array.array("i", [memory]).tobytes()
            stranger.sendmsg([b"\x01"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            os.ftruncate(memory, 0)
            os.close(memory)


class Thief(Attack):
    """Asks each unix socket for its shared memory: says nothing, guesses, or repeats the name that everybody can read."""

    rest = 0

    def endpoints(self, pids):
        return [name for name in abstract_sockets(pids) if name.startswith("\0libddp-")]

    def knock(self, endpoint):
        for said in (b"", b"0" * 64, endpoint[1:].encode().ljust(64, b"0")[-64:], random.randbytes(64)):
            with contextlib.suppress(OSError):
                thief = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                thief.settimeout(0.05)
                thief.connect(endpoint)
                self.note()
                if said:
                    thief.sendall(said)
                else:
                    self.keep(thief)
                _, descriptors, _, _ = socket.recv_fds(thief, 1, 1)
                if descriptors:
                    print("got", flush=True)
                    for descriptor in descriptors:
                        os.close(descriptor)


class Replay(Attack):
    """Sends a recorded ClientHello again and again."""

    hold = 600
    niceness = 0  # its rate bounds what it takes
    hello = b""
    every_s = 1 / 1200

    def __init__(self, hold):
        super().__init__(hold)
        self.next = time.monotonic()

    def act(self, stranger):
        stranger.sendall(self.hello)
        self.keep(stranger)
        self.next = max(self.next + self.every_s, time.monotonic() - 0.1)
        time.sleep(max(0, self.next - time.monotonic()))

    def keep(self, stranger):
        self.held.append(stranger)
        if len(self.held) > self.hold:
            self.look(self.held.pop(0))

    def look(self, stranger):
        with stranger, contextlib.suppress(OSError):
            if stranger.recv(1, socket.MSG_DONTWAIT) == b"\x16":
                print("got", flush=True)

    def end(self):
        for stranger in self.held:
            self.look(stranger)


KINDS = {"scan": Scan, "garbage": Garbage, "preamble": Preamble, "silent": Silent, "half-tls": HalfTls, "memory": Memory, "thief": Thief, "replay": Replay}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--user", type=int)
    parser.add_argument("--hold", type=int)
    parser.add_argument("--hello", type=bytes.fromhex)
    parser.add_argument("pids", nargs="+", type=int)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
    attack = KINDS[options.kind](options.hold)
    os.nice(attack.niceness)
    attack.hello = options.hello
    find = getattr(attack, "endpoints", endpoints)
    find(options.pids)  # Python loads what this needs, which that user may not read
    if options.user is not None:
        os.setgroups([])
        os.setresgid(options.user, options.user, options.user)
        os.setresuid(options.user, options.user, options.user)

    def end(*_):
        attack.end()
        print(attack.count, flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    found, next_look = [], 0.0
    while True:
        if time.monotonic() >= next_look:
            before = time.thread_time()  # a search may wait for seconds on a busy machine
            found = find(options.pids)
            next_look = time.monotonic() + attack.rest * (time.thread_time() - before)
        for endpoint in found:
            attack.knock(endpoint)
        # An attacker that took the processor from the ranks would show nothing else.
        if not found or len(attack.held) in (0, attack.hold):
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
