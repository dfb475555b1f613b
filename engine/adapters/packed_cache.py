"""Packed adapters that have lost their slot, on the host: the next load of one of them reads no files."""

import threading
from collections import OrderedDict
from typing import Any


class PackedCache:
    """The most recently used packed adapters within `capacity_bytes`, by digest. Thread-safe.

    Those that are in a slot on a CPU take no memory of their own here: it is the same object.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._packed: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        """With the size of each, the least recently used first."""
        self._bytes = 0

    def get(self, digest: str) -> Any | None:
        """The packed adapter; None if it is not here."""
        with self._lock:
            if digest not in self._packed:
                return None
            self._packed.move_to_end(digest)
            return self._packed[digest][0]

    def put(self, digest: str, packed: Any, size_bytes: int) -> None:
        """Keep a packed adapter, and drop the least recently used ones that do not fit any more."""
        with self._lock:
            if digest in self._packed or size_bytes > self._capacity_bytes:
                return
            self._packed[digest] = packed, size_bytes
            self._bytes += size_bytes
            while self._bytes > self._capacity_bytes:
                _, (_, dropped_bytes) = self._packed.popitem(last=False)
                self._bytes -= dropped_bytes

    @property
    def bytes(self) -> int:
        """Bytes of all that is here."""
        return self._bytes
