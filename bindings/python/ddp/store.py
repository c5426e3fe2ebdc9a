"""The rendezvous store: a small key-value service that the ranks of a job share (ddp/store.h)."""
from __future__ import annotations

from typing import Any, Iterable, List, Optional, Union

from . import _ddp
from ._arrays import milliseconds

Value = Union[bytes, bytearray, memoryview, str]


def _encoded(value: Value) -> Union[bytes, bytearray, memoryview]:
    return value.encode() if isinstance(value, str) else value


class Store:
    """A connection to a store. Values are bytes; text that is given is encoded in UTF-8. Times are in seconds.

    uri: "tcp://host:port", "file:///absolute/path" or "etcd://host:port/name". server: this process also runs the server
    (tcp only; port 0 takes a free one, see `port`). secret and insecure are those of ddp_store_options.
    """

    def __init__(self, uri: str, *, server: bool = False, timeout: Optional[float] = None,
                 secret: Optional[str] = None, insecure: bool = False):
        options = _ddp.ddp_store_options()
        options.uri = uri
        options.is_server = int(server)
        options.timeout_ms = milliseconds(timeout)
        options.secret = secret
        options.flags = insecure * _ddp.DDP_STORE_INSECURE
        self._handle = _ddp.ddp_store_create(options)

    @classmethod
    def _of(cls, handle: _ddp.Handle) -> "Store":
        store = cls.__new__(cls)
        store._handle = handle
        return store

    @property
    def port(self) -> int:
        """The port that the server listens on; -1 for a store in a file or on etcd."""
        return _ddp.ddp_store_port(self._handle)

    def set(self, key: str, value: Value) -> None:
        """Sets key to value, in place of the old value."""
        _ddp.ddp_store_set(self._handle, key, _encoded(value))

    def get(self, key: str, timeout: Optional[float] = None) -> bytes:
        """Waits until key exists, then returns its value."""
        return _ddp.ddp_store_get(self._handle, key, milliseconds(timeout))

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Sets key to `desired` if its value is `expected` (b"": or the key is missing). Returns the value that key
        then has."""
        return _ddp.ddp_store_compare_set(self._handle, key, _encoded(expected), _encoded(desired))

    def add(self, key: str, amount: int) -> int:
        """Adds to the decimal integer under key, and returns the sum."""
        return _ddp.ddp_store_add(self._handle, key, amount)

    def check(self, keys: Iterable[str]) -> bool:
        """Whether all keys exist now."""
        return bool(_ddp.ddp_store_check(self._handle, list(keys)))

    def wait(self, keys: Iterable[str], timeout: Optional[float] = None) -> None:
        """Waits until all keys exist."""
        _ddp.ddp_store_wait(self._handle, list(keys), milliseconds(timeout))

    def delete(self, key: str) -> bool:
        """Deletes a key. Returns whether it existed."""
        return bool(_ddp.ddp_store_delete(self._handle, key))

    def keys(self, prefix: str = "") -> List[str]:
        """The keys that begin with prefix, sorted."""
        return [key.decode() for key in _ddp.ddp_store_list_keys(self._handle, prefix).split(b"\0")[:-1]]

    def close(self) -> None:
        """Closes the connection, and ends the server if it is here. Later calls raise InvalidStateError."""
        self._handle.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
