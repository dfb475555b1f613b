"""A file of encrypted KV blocks in slots of equal size.

    preamble | header of slot 0 ... header of slot n-1 | record 0 ... record n-1

The preamble has the model's identity: a file of another model, format or size is replaced. A header names the block
(hash, owner, nonce, number of the write) behind a checksum, so that the index is read from one table. A record is the
block's bytes in AES-GCM. Nothing is synced: a header and a record that do not belong together do not open.
"""

import fcntl
import os
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Self

from engine.memory.tiers.keys import OWNER_BYTES, owner_of, record_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HASH_BYTES = 32
_PAGE = 4096
_ALIGNMENT = 512
_NONCE_BYTES = 12
_TAG_BYTES = 16
_MAX_KEYS = 1024
"""Tenants whose expanded keys are kept."""
_SUFFIX = ".kv"

_PREAMBLE = Struct("<8sIQQ32sI")
_MAGIC = b"TPKVDISK"
_VERSION = 1
_HEADER = Struct(f"<I{HASH_BYTES}s{OWNER_BYTES}s{_NONCE_BYTES}sQ")
_EMPTY_HEADER = bytes(_HEADER.size)


class DiskUnavailable(RuntimeError):
    """The folder or the file of stored KV cannot be used; the message says why."""


class UnreadableRecord(RuntimeError):
    """A record is torn, corrupted, or not the one that was asked for."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A header as found on disk. `number`: grows with each write."""

    slot: int
    block_hash: bytes
    owner: bytes
    number: int


def file_of(folder: Path, model: str) -> Path:
    """The file of a model's blocks."""
    return folder / f"{sha256(model.encode()).hexdigest()[:16]}{_SUFFIX}"


def remove_others(folder: Path, models: Collection[str]) -> None:
    """Remove the files of models other than these, unless another process uses them."""
    kept = {file_of(folder, model) for model in models}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        if path in kept:
            continue
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)


class DiskStore:
    """The slots of one model's file. After construction used on one thread at a time.

    `found`: the records at the start, oldest write first. They are not verified: `read` does.
    """

    def __init__(self, path: Path, identity: bytes, block_bytes: int, max_bytes: int) -> None:
        """`identity`: 32 bytes that name everything that the meaning of a block's bytes depends on. `max_bytes`: of the
        whole file.

        Raises:
            DiskUnavailable: the file cannot be opened, another process uses it, or it would hold no block.
        """
        assert len(identity) == HASH_BYTES, "an identity is a sha256 digest"
        self.block_bytes = block_bytes
        self._identity = identity
        self._slot_bytes = _aligned(block_bytes + _TAG_BYTES, _ALIGNMENT)
        self.num_slots = max(0, max_bytes - 2 * _PAGE) // (self._slot_bytes + _HEADER.size)
        if not self.num_slots:
            raise DiskUnavailable(f"{max_bytes} bytes hold no KV block of {block_bytes} bytes")
        self._records_at = _PAGE + _aligned(self.num_slots * _HEADER.size, _PAGE)
        self._keys: OrderedDict[bytes, AESGCM] = OrderedDict()
        self._number = 0
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DiskUnavailable(f"{path}: {error.strerror}") from error
        try:
            self._lock(path)
            self.found = self._open()
        except OSError as error:
            os.close(self._file)
            raise DiskUnavailable(f"{path}: {error.strerror}") from error
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; another process may use it then. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def write(self, slot: int, block_hash: bytes, salt: bytes, block: bytes) -> None:
        """Fill a slot with a block of the tenant with this salt.

        Raises:
            OSError: the disk fails or is full. The slot holds nothing that opens.
        """
        assert len(block) == self.block_bytes, "a block of another size"
        assert 0 <= slot < self.num_slots, f"there is no slot {slot}"
        nonce, owner = secrets.token_bytes(_NONCE_BYTES), owner_of(salt)
        sealed = self._cipher(salt).encrypt(nonce, block, self._bound(block_hash, owner))
        self._number += 1
        fields = _HEADER.pack(0, block_hash, owner, nonce, self._number)[4:]
        _write(self._file, sealed, self._records_at + slot * self._slot_bytes)
        _write(self._file, zlib.crc32(fields).to_bytes(4, "little") + fields, _PAGE + slot * _HEADER.size)

    def read(self, slot: int, block_hash: bytes, salt: bytes) -> bytes:
        """The block of this hash and tenant in a slot, verified.

        Raises:
            UnreadableRecord: the slot holds something else, or its bytes are not what was written.
            OSError: the disk fails.
        """
        from cryptography.exceptions import InvalidTag  # the extra 'kvdisk'

        header = os.pread(self._file, _HEADER.size, _PAGE + slot * _HEADER.size)
        found = _parsed(header)
        owner = owner_of(salt)
        if found is None or found[:2] != (block_hash, owner):
            raise UnreadableRecord(f"slot {slot} has no record of this block")
        sealed = _read(self._file, self.block_bytes + _TAG_BYTES, self._records_at + slot * self._slot_bytes)
        try:
            return self._cipher(salt).decrypt(found[2], sealed, self._bound(block_hash, owner))
        except InvalidTag as error:
            raise UnreadableRecord(f"the record in slot {slot} is corrupted") from error

    def erase(self, slot: int) -> None:
        """Make a slot unreadable for good: its nonce is overwritten.

        Raises:
            OSError: the disk fails.
        """
        _write(self._file, _EMPTY_HEADER, _PAGE + slot * _HEADER.size)

    def drop_page_cache(self) -> None:
        """Write what is pending to the disk, and have the kernel forget the file's pages. For measurements."""
        os.fsync(self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DiskUnavailable(f"{path} is used by another process; give each its own kv_disk.folder") from error

    def _open(self) -> list[StoredRecord]:
        """Read the headers of a file of the same model; replace any other file."""
        preamble = self._preamble()
        total = self._records_at + self.num_slots * self._slot_bytes
        if os.pread(self._file, len(preamble), 0) != preamble:
            os.ftruncate(self._file, 0)
            os.ftruncate(self._file, total)
            _write(self._file, preamble, 0)
            return []
        os.ftruncate(self._file, total)
        table = _read(self._file, self.num_slots * _HEADER.size, _PAGE)
        found: dict[bytes, StoredRecord] = {}
        for slot in range(self.num_slots):
            header = table[slot * _HEADER.size : (slot + 1) * _HEADER.size]
            if header != _EMPTY_HEADER and (fields := _parsed(header)) is not None:
                record = StoredRecord(slot, fields[0], fields[1], fields[3])
                other = found.get(record.block_hash)
                if other is None or other.number < record.number:
                    found[record.block_hash] = record
        records = sorted(found.values(), key=lambda record: record.number)
        self._number = records[-1].number if records else 0
        return records

    def _preamble(self) -> bytes:
        fields = _PREAMBLE.pack(_MAGIC, _VERSION, self.block_bytes, self.num_slots, self._identity, 0)[:-4]
        return fields + zlib.crc32(fields).to_bytes(4, "little")

    def _bound(self, block_hash: bytes, owner: bytes) -> bytes:
        """The associated data of a record: its tag covers them in addition to its bytes."""
        return self._identity + block_hash + owner

    def _cipher(self, salt: bytes) -> "AESGCM":
        cipher = self._keys.get(salt)
        if cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # the extra 'kvdisk'

            cipher = self._keys[salt] = AESGCM(record_key(salt))
            if len(self._keys) > _MAX_KEYS:
                self._keys.popitem(last=False)
        return cipher


def _parsed(header: bytes) -> tuple[bytes, bytes, bytes, int] | None:
    """The hash, owner, nonce and number of a header; None: it is empty or torn."""
    if len(header) != _HEADER.size:
        return None
    checksum, block_hash, owner, nonce, number = _HEADER.unpack(header)
    return (block_hash, owner, nonce, number) if zlib.crc32(header[4:]) == checksum else None


def _aligned(count: int, to: int) -> int:
    return -(-count // to) * to


def _write(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _read(descriptor: int, count: int, at: int) -> bytes:
    """Exactly `count` bytes; zeros past the end of the file."""
    parts: list[bytes] = []
    while count:
        part = os.pread(descriptor, count, at)
        if not part:
            parts.append(bytes(count))
            break
        parts.append(part)
        count, at = count - len(part), at + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
