#!/usr/bin/env python3
"""The frames of docs/security.md, written from that page alone with another library: one end in Python, the other a channel of
libddp's (frames_peer.cc), which sends back what comes.

    python3 frames.py FRAMES_PEER
    python3 frames.py --vectors          prints those of frames_test.cc
"""
import os
import random
import socket
import subprocess
import sys

try:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
except ImportError:
    print("skipped: there is no python3-cryptography")
    sys.exit(77)

LONGEST = 65536


class Direction:
    def __init__(self, secret, frames_of_a_key=1 << 22):
        self.frames_of_a_key = frames_of_a_key
        self.use(secret)

    def use(self, secret):
        expand = lambda label, size: HKDFExpand(SHA256(), size, label).derive(secret)
        self.aead, self.mask = AESGCM(expand(b"libddp frame key", 16)), expand(b"libddp frame mask", 12)
        self.next_secret, self.number = expand(b"libddp next secret", 32), 0

    def nonce(self):
        if self.number == self.frames_of_a_key:
            self.use(self.next_secret)
        number, self.number = self.number, self.number + 1
        return bytes(a ^ b for a, b in zip(self.mask, bytes(4) + number.to_bytes(8, "big")))

    def seal(self, content):
        header, nonce = len(content).to_bytes(4, "little"), self.nonce()  # which may bring a new key
        return header + self.aead.encrypt(nonce, content, header)

    def open(self, take):
        """take(n): the next n bytes."""
        header = take(4)
        size = int.from_bytes(header, "little")
        assert 0 < size <= LONGEST, size
        nonce = self.nonce()
        return self.aead.decrypt(nonce, take(size + 16), header)


class Peer:
    """libddp's end. Secrets: of what it sends, and of what it receives."""

    def __init__(self, program, frames_of_a_key):
        sends, receives = os.urandom(32), os.urandom(32)
        self.socket, other = socket.socketpair()
        self.socket.settimeout(20)
        self.process = subprocess.Popen([program, str(other.fileno()), sends.hex(), receives.hex(), str(frames_of_a_key)],
                                        pass_fds=[other.fileno()], stdout=subprocess.PIPE, text=True)
        other.close()
        self.out, self.incoming = Direction(receives, frames_of_a_key), Direction(sends, frames_of_a_key)

    def take(self, size):
        taken = b""
        while len(taken) < size:
            more = self.socket.recv(size - len(taken))
            if not more:
                raise EOFError
            taken += more
        return taken

    def receive(self, size):
        came = b""
        while len(came) < size:
            came += self.incoming.open(self.take)
        return came

    def end(self):
        """Closes the connection. Returns the line with which the other end stops."""
        self.socket.close()
        said, _ = self.process.communicate(timeout=20)
        return said.strip()


def check(condition, text):
    if not condition:
        sys.exit(f"failed: {text}")


def echo(program):
    chance = random.Random(1)
    for frames_of_a_key in (1 << 22, 3, 1):
        peer = Peer(program, frames_of_a_key)
        for size in (1, 2, 15, 16, 17, 4096, LONGEST - 1, LONGEST, *(chance.randrange(1, 1 << chance.randrange(1, 17)) for _ in range(40))):
            content = chance.randbytes(size)
            peer.socket.sendall(peer.out.seal(content))
            check(peer.receive(size) == content, f"other bytes come back than the {size} that were sent")
        check(peer.end() == "the connection ended", "the end of the connection has another name")


def refused(program, change, text):
    peer = Peer(program, 1 << 22)
    content = bytes(1000)
    peer.socket.sendall(peer.out.seal(content))
    check(peer.receive(1000) == content, "the frame before is not taken")
    peer.socket.sendall(change(peer.out))
    try:
        peer.receive(1)
        check(False, f"{text} was answered")
    except (EOFError, ConnectionResetError):
        pass
    said = peer.end()
    check(said == "bytes of the connection were changed on the way", f"{text}: {said}")


def flipped(at):
    def change(out):
        frame = bytearray(out.seal(bytes(1000)))
        frame[at] ^= 1
        return bytes(frame) + bytes(1 << 17)
    return change


def again(out):
    out.number -= 1
    return out.seal(bytes(1000))


def left_out(out):
    out.seal(bytes(1000))
    return out.seal(bytes(1000))


def of_another(out):
    other = Direction(os.urandom(32))
    other.number = out.number
    return other.seal(bytes(1000))


def vectors():
    direction = Direction(bytes(range(32)), 2)
    for content in (b"gradients", bytes(20), b"!"):
        print(direction.seal(content).hex())


if sys.argv[1:] == ["--vectors"]:
    vectors()
else:
    echo(sys.argv[1])
    for at, what in ((0, "another length"), (2, "a long length"), (4, "a changed first byte"), (1003, "a changed last byte"), (1019, "a changed code")):
        refused(sys.argv[1], flipped(at), what)
    refused(sys.argv[1], lambda out: bytes(4) + bytes(16), "an empty frame")
    refused(sys.argv[1], lambda out: (LONGEST + 1).to_bytes(4, "little"), "a frame that is too long")
    refused(sys.argv[1], again, "a frame that came before")
    refused(sys.argv[1], left_out, "a frame after one that is missing")
    refused(sys.argv[1], of_another, "a frame of another connection")
    print("ok")
