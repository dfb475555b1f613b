"""The slots of the second pool: which hash is in which, whose it is, and which is reused next."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    """A hash with a slot. `readers`: fetches that read it."""

    slot: int
    owner: bytes
    written: bool
    readers: int = 0


class TierIndex:
    """A slot is free, or has one entry. An entry that is written is found under its hash; one that is being written or
    read keeps its slot, and is *doomed* if it was dropped in between: it is not found, and its slot is free afterwards.

    Entries are in the order of their last use. A new one takes a free slot, or that of the least recently used entry
    that no copy is in progress for: its owner's own, if that has `owner_slots` or more.
    """

    def __init__(self, num_slots: int, owner_slots: int) -> None:
        self.num_slots = num_slots
        self._owner_slots = max(1, owner_slots)
        self._free = list(range(num_slots - 1, -1, -1))
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._doomed: dict[int, _Entry] = {}
        """By slot."""
        self._of_owner: dict[bytes, OrderedDict[bytes, None]] = {}
        self.evictions_total = 0
        self._restored = False
        """Whether entries were found on disk, whose owners may exceed a share that has become smaller."""

    def __len__(self) -> int:
        """Entries that are written or being written."""
        return len(self._entries)

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether the hash has an entry, written or being written."""
        return block_hash in self._entries

    def is_stored(self, block_hash: bytes) -> bool:
        """Whether the hash can be read."""
        entry = self._entries.get(block_hash)
        return entry is not None and entry.written

    def owner_entries(self, owner: bytes) -> int:
        """Entries of an owner."""
        return len(self._of_owner.get(owner, ()))

    def restore(self, found: Iterable[tuple[int, bytes, bytes]]) -> None:
        """Add the entries that were found on disk: the slot, hash and owner of each, least recently used first.
        O(slots)."""
        taken = set()
        for slot, block_hash, owner in found:
            taken.add(slot)
            self._add(block_hash, _Entry(slot, owner, written=True))
        self._restored = bool(taken)
        self._free = [slot for slot in self._free if slot not in taken]

    def begin_write(self, block_hash: bytes, owner: bytes) -> int | None:
        """The slot for a hash that has no entry. None: all slots are being copied."""
        assert block_hash not in self._entries, "a hash is written twice"
        own = self._of_owner.get(owner, ())
        slot: int | None = None
        if len(own) >= self._owner_slots:
            slot = self._evict(own)
            if slot is None:
                return None
        elif self._free:
            slot = self._free.pop()
        else:
            slot = self._evict(self._entries)
        if slot is not None:
            self._add(block_hash, _Entry(slot, owner, written=False))
        return slot

    def end_write(self, block_hash: bytes, slot: int, *, ok: bool) -> None:
        """The copier has written a slot, or failed to."""
        if slot in self._doomed:
            self._release_doomed(slot)
            return
        entry = self._entries[block_hash]
        assert (entry.slot, entry.written) == (slot, False), "a slot was written that is not being written"
        entry.written = True
        if not ok:
            self.drop(block_hash)

    def begin_read(self, hashes: Sequence[bytes]) -> list[int]:
        """Lease the slots of stored hashes until `end_read`, and count them as used, the first one last."""
        for block_hash in hashes:
            self._entries[block_hash].readers += 1
        self.touch(hashes)
        return [self._entries[block_hash].slot for block_hash in hashes]

    def end_read(self, block_hash: bytes, slot: int) -> None:
        """End the lease of a slot."""
        entry = self._doomed.get(slot)
        if entry is None:
            entry = self._entries[block_hash]
        assert entry.slot == slot, "a slot was read that is another hash's"
        assert entry.readers, "a slot was read that is not being read"
        entry.readers -= 1
        if slot in self._doomed and not entry.readers:
            self._release_doomed(slot)

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Count the hashes of a chain as used: its end is reused before its beginning."""
        for block_hash in reversed(hashes):
            entry = self._entries.get(block_hash)
            if entry is not None:
                self._entries.move_to_end(block_hash)
                self._of_owner[entry.owner].move_to_end(block_hash)

    def drop(self, block_hash: bytes) -> int | None:
        """Forget a hash. Returns its slot, to be erased, or None: it has none."""
        entry = self._entries.get(block_hash)
        if entry is None:
            return None
        self._remove(block_hash, entry)
        if entry.readers or not entry.written:
            self._doomed[entry.slot] = entry
        else:
            self._free.append(entry.slot)
        return entry.slot

    def hashes_of(self, owner: bytes) -> list[bytes]:
        """The hashes of an owner."""
        return list(self._of_owner.get(owner, ()))

    def check(self) -> None:
        """Assert that each slot is free, doomed, or has one entry, and that owners are counted right."""
        used = [entry.slot for entry in self._entries.values()]
        assert sorted([*self._free, *self._doomed, *used]) == list(range(self.num_slots)), (
            "a slot is lost, or used twice"
        )
        owned: dict[bytes, list[bytes]] = {}
        for block_hash, entry in self._entries.items():
            owned.setdefault(entry.owner, []).append(block_hash)
            assert entry.written or not entry.readers, "a slot is read before it is written"
        assert owned == {owner: list(hashes) for owner, hashes in self._of_owner.items()}, "an owner is miscounted"
        for slot, entry in self._doomed.items():
            assert entry.slot == slot, "a doomed slot is another entry's"
            assert entry.readers or not entry.written, "a slot is doomed for no copy"
        if not self._restored:
            assert all(len(hashes) <= self._owner_slots for hashes in owned.values()), "an owner is over its share"

    def _add(self, block_hash: bytes, entry: _Entry) -> None:
        self._entries[block_hash] = entry
        self._of_owner.setdefault(entry.owner, OrderedDict())[block_hash] = None

    def _remove(self, block_hash: bytes, entry: _Entry) -> None:
        del self._entries[block_hash]
        own = self._of_owner[entry.owner]
        del own[block_hash]
        if not own:
            del self._of_owner[entry.owner]

    def _evict(self, among: Iterable[bytes]) -> int | None:
        """Free the slot of the least recently used of these hashes that is not being copied."""
        for block_hash in among:
            entry = self._entries[block_hash]
            if entry.written and not entry.readers:
                self._remove(block_hash, entry)
                self.evictions_total += 1
                return entry.slot
        return None

    def _release_doomed(self, slot: int) -> None:
        del self._doomed[slot]
        self._free.append(slot)
