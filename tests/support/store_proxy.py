"""A proxy between one rank and the store, which after an exact number of bytes ends the connection or does something else."""
import contextlib
import selectors
import socket
import struct
import threading
import time

CHUNK = 4096
# Bytes of the handshake to the store and from it, its version among them. TcpSecurity.TheHandshakeHasAsManyBytesAsTestsCountOn.
HANDSHAKE = {"up": 329, "down": 259}


class Proxy:
    """Passes bytes on in both directions. When `after` bytes have gone in one of them ("up" to the store, "down" from it), it acts
    once: "rst", "fin" and "half" (only that direction's end is shut) end the connection, "stall" passes nothing more on, and a
    function is called and then bytes go on. Later connections stay whole, or end after `later` bytes from the store. Those that the
    store refuses do not count."""

    def __init__(self, port, direction, after, action, later=None):
        self.port_of_store = port
        self.later = later
        self.direction, self.after, self.action = direction, after, action
        self.passed = {"up": 0, "down": 0}
        self.acted = None  # when, by time.monotonic()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._stop, self._stopped = socket.socketpair()
        self._all = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self):
        self._stop.close()
        self._thread.join(10)
        for end in [self._listener, self._stopped, *self._all]:
            end.close()

    def fall_silent(self):
        """Passes nothing more on, and answers nobody; the connections stay open until close()."""
        self._stop.close()
        self._thread.join(10)

    def _run(self):
        selector = selectors.DefaultSelector()
        selector.register(self._stopped, selectors.EVENT_READ)
        selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._stopped:
                    return selector.close()
                if key.fileobj is self._listener:
                    self._accept(selector)
                else:
                    self._pass_on(selector, key.fileobj, *key.data)

    def _accept(self, selector):
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self.port_of_store), timeout=5)
        except OSError:
            return client.close()  # as where nobody listens
        self._all += [client, server]
        for end in (client, server):
            end.settimeout(5)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        counted = not self.acted and len(self._all) == 2
        selector.register(client, selectors.EVENT_READ, (server, "up", counted))
        selector.register(server, selectors.EVENT_READ, (client, "down", counted))
        if counted and self.after == 0:
            self._act(selector, client, server)

    def _pass_on(self, selector, source, target, direction, counted):
        watched = counted and direction == self.direction and not self.acted
        room = max(1, min(CHUNK, self.after - self.passed[direction])) if watched else CHUNK
        try:
            data = source.recv(room)
            if data:
                target.sendall(data)
        except OSError:
            data = b""
        if not data:
            return self._end(selector, source, target, abruptly=False)
        if counted:
            self.passed[direction] += len(data)
        elif self.later is not None and direction == "down":
            self.later -= len(data)
            if self.later <= 0:
                return self._end(selector, source, target, abruptly=False)
        if watched and self.passed[direction] >= self.after:
            self._act(selector, source, target)

    def _act(self, selector, source, target):
        self.acted = time.monotonic()
        if callable(self.action):
            self.action()
        elif self.action == "stall":
            selector.unregister(source)
            selector.unregister(target)
        elif self.action == "half":
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
            selector.unregister(source)
        else:
            self._end(selector, source, target, abruptly=self.action == "rst")

    @staticmethod
    def _end(selector, *ends, abruptly):
        for end in ends:
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(end)
            if abruptly:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
