"""Messages between the scheduler's side of the second pool and its copier."""

from typing import NamedTuple


class BlockRecord(NamedTuple):
    """A block of the pool and the slot of its record."""

    block: int
    block_hash: bytes
    slot: int
    salt: bytes


class WriteOrder(NamedTuple):
    """Copy these blocks, report `CopiedOut`, write them, and report `WriteEnd`."""

    number: int
    records: tuple[BlockRecord, ...]


class FetchOrder(NamedTuple):
    """Fill these blocks in order, up to the first that fails, and report `FetchEnd`."""

    number: int
    records: tuple[BlockRecord, ...]


class EraseOrder(NamedTuple):
    """Make these slots unreadable. Not reported; after the writes that were ordered before."""

    slots: tuple[int, ...]


Order = WriteOrder | FetchOrder | EraseOrder


class CopiedOut(NamedTuple):
    """The bytes of a write are in the copier's buffer: the pool may have its blocks back."""

    number: int


class WriteEnd(NamedTuple):
    """`written`: whether each record was. `elapsed_ns`: of all of them."""

    number: int
    written: tuple[bool, ...]
    elapsed_ns: int


class FetchEnd(NamedTuple):
    """`blocks`: leading blocks that are filled and verified. `elapsed_ns`: of the reading."""

    number: int
    blocks: int
    elapsed_ns: int


Report = CopiedOut | WriteEnd | FetchEnd
