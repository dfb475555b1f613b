"""The source of the sink's messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.metering.sink.intake import Message


class SourceAway(Exception):
    """The source is unavailable, or this member lost its group membership. Retry."""


class Partition(NamedTuple):
    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """`assigned`: this member's partitions after the fetch. Other members read the rest from the committed offset."""

    messages: Mapping[Partition, Sequence[Message]]
    assigned: frozenset[Partition]


class MessageSource(Protocol):
    """A member of a consumer group. A reassigned partition starts at its committed offset."""

    async def fetch(self, *, more: bool) -> Fetched:
        """Fetch new messages, within a fraction of a second. Without `more`, only those of newly assigned partitions.
        Calls must continue, since they keep the group membership.

        Raises:
            SourceAway
        """

    async def behind(self) -> Mapping[Partition, int]:
        """Number of unfetched messages of each assigned partition.

        Raises:
            SourceAway
        """

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets: earlier messages are not fetched again.

        Raises:
            SourceAway: earlier messages may be fetched again.
        """

    async def aclose(self) -> None:
        """Leave the group. Idempotent."""
