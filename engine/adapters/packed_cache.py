"""Packed adapters that have lost their slot, on the host: the next load of one of them reads no files."""

import threading
from collections import OrderedDict

from kernels.adapters import PackedAdapter


class PackedCache:
    """The most recently used packed adapters within `capacity_bytes`, by digest. Thread-safe.

    Those that are in a slot on a CPU take no memory of their own here: it is the same object.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._packed: OrderedDict[str, PackedAdapter] = OrderedDict()
        """The least recently used first."""
        self._bytes = 0

    def get(self, digest: str) -> PackedAdapter | None:
        """The packed adapter; None if it is not here."""
        with self._lock:
            if digest not in self._packed:
                return None
            self._packed.move_to_end(digest)
            return self._packed[digest]

    def put(self, digest: str, packed: PackedAdapter) -> None:
        """Keep a packed adapter, and drop the least recently used ones that do not fit any more."""
        with self._lock:
            if digest in self._packed or packed.bytes > self._capacity_bytes:
                return
            self._packed[digest] = packed
            self._bytes += packed.bytes
            while self._bytes > self._capacity_bytes:
                _, dropped = self._packed.popitem(last=False)
                self._bytes -= dropped.bytes

    @property
    def bytes(self) -> int:
        """Bytes of all that is here."""
        return self._bytes
