"""The changes of a pool's cached blocks, for a reader on another thread."""

from collections import deque

MAX_UNREAD = 1 << 17
"""Changes kept for a reader that is late. A later one begins again with all hashes."""


class PrefixJournal:
    """Hashes that were published and dropped, in order. One thread writes, one reads."""

    def __init__(self, max_unread: int = MAX_UNREAD) -> None:
        self._changes: deque[tuple[bytes, bool]] = deque(maxlen=max_unread)
        self.is_lossy = False
        """Whether changes that were not read may be lost. What was taken since is of no use then."""

    def __len__(self) -> int:
        """Changes that are not read."""
        return len(self._changes)

    def record(self, block_hash: bytes, *, cached: bool) -> None:
        """A block is published under this hash (`cached`), or no longer."""
        changes = self._changes
        if len(changes) == changes.maxlen:
            self.is_lossy = True
        changes.append((block_hash, cached))

    def take(self, max_changes: int) -> list[tuple[bytes, bool]]:
        """The oldest unread changes, at most `max_changes`."""
        changes = self._changes
        return [changes.popleft() for _ in range(min(len(changes), max_changes))]
