"""Tells clients which prefix blocks a worker holds (KV events, as in vLLM and Dynamo).

A client learns hashes of blocks, shortened to 8 bytes. Each is a link of a sha256 chain that begins with a tenant's
salt, an HMAC under the `salt_key` of the tenant's gateway: who has not that key cannot test a guess of a prompt.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from struct import unpack

from engine.memory.prefix_journal import PrefixJournal
from engine.workers.messages import Prefixes

HASH_BYTES = 8
"""Of a block's hash. Two blocks with one short hash make an estimate wrong; an engine compares whole hashes."""
HASHES_A_MESSAGE = 512
PUBLISH_SECONDS = 0.02
"""Time between two messages to a client, so it is sent 200 KiB a second at most for each model."""
CHANGES_READ = 4096
"""Changes read at once: about a millisecond."""


def short_hash(block_hash: bytes) -> int:
    """The hash of a block as clients know it."""
    return int.from_bytes(block_hash[:HASH_BYTES], "little")


def pack_hashes(hashes: Iterable[int]) -> bytes:
    """Short hashes as they are sent."""
    return b"".join([each.to_bytes(HASH_BYTES, "little") for each in hashes])


def unpack_hashes(packed: bytes) -> tuple[int, ...]:
    """Raises: struct.error: it is no sequence of short hashes."""
    return unpack(f"<{len(packed) // HASH_BYTES}Q", packed)


@dataclass(slots=True)
class _Reader:
    """A client: the hashes whose state it has not been sent, in the order of their first change."""

    send: Callable[[Prefixes], object]
    epoch: int = 0
    number: int = 0
    unsent: dict[int, None] = field(default_factory=dict)


class PrefixPublisher:
    """One model's cached blocks, and what each client was sent of them.

    A change that is undone before it was sent costs one hash: a client is sent the state of a block, not its history.
    Belongs to one thread.
    """

    def __init__(self, model: str, epoch: int) -> None:
        """`epoch`: the first one; others follow it. Those of another process that serves the model are far from it."""
        self.cached: set[int] = set()
        self._model = model
        self._epoch = epoch
        self._journal: PrefixJournal | None = None
        self._readers: dict[object, _Reader] = {}

    @property
    def watched(self) -> bool:
        """Whether a client wants to know."""
        return bool(self._readers)

    @property
    def must_begin(self) -> bool:
        """Whether `begin` is to be called: the blocks are not known, or changes are lost."""
        return self._journal is None or self._journal.is_lossy

    @property
    def is_done(self) -> bool:
        """Whether all clients have been sent all changes that were recorded."""
        unread = self._journal is not None and len(self._journal)
        return not unread and not any(reader.unsent or not reader.number for reader in self._readers.values())

    def begin(self, hashes: Iterable[bytes], journal: PrefixJournal) -> None:
        """All hashes under which blocks are published; `journal` has the changes since."""
        self._journal = journal
        self.cached = {short_hash(each) for each in hashes}
        for reader in self._readers.values():
            self._restart(reader)

    def watch(self, client: object, send: Callable[[Prefixes], object]) -> None:
        """Send a client all that is cached, then the changes. One that watches already begins again."""
        self._restart(self._readers.setdefault(client, _Reader(send)))

    def unwatch(self, client: object) -> None:
        """The client has gone. Idempotent."""
        self._readers.pop(client, None)

    def publish(self) -> None:
        """Read the changes, and send each client one message at most."""
        if self.must_begin:
            return
        assert self._journal is not None
        for block_hash, cached in self._journal.take(CHANGES_READ):
            short = short_hash(block_hash)
            (self.cached.add if cached else self.cached.discard)(short)
            for reader in self._readers.values():
                reader.unsent[short] = None
        for reader in self._readers.values():
            self._send(reader)

    def _restart(self, reader: _Reader) -> None:
        reader.unsent = dict.fromkeys(self.cached)
        reader.epoch, reader.number = self._epoch, 0
        self._epoch += 1

    def _send(self, reader: _Reader) -> None:
        if reader.number and not reader.unsent:
            return
        some = [each for each, _ in zip(reader.unsent, range(HASHES_A_MESSAGE), strict=False)]
        for each in some:
            del reader.unsent[each]
        stored = [each for each in some if each in self.cached]
        evicted = [each for each in some if each not in self.cached]
        message = Prefixes(
            self._model,
            reader.epoch,
            reader.number,
            not reader.unsent,
            pack_hashes(stored),
            pack_hashes(evicted),
        )
        reader.number += 1
        reader.send(message)
