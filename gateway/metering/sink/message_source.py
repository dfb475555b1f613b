"""Where the sink takes messages from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.metering.sink.intake import Message


class SourceAway(Exception):
    """The source does not answer, or this member has lost its place in the group. Try again."""


class Partition(NamedTuple):
    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """`assigned` is what this member holds after the fetch: what is not in it, somebody else reads from the last
    committed offset on."""

    messages: Mapping[Partition, Sequence[Message]]
    assigned: frozenset[Partition]


class MessageSource(Protocol):
    """A member of a consumer group. A partition that comes back to it starts at its committed offset again."""

    async def fetch(self, *, more: bool) -> Fetched:
        """New messages, within a fraction of a second; none where `more` is false, but for partitions that are new.
        To be called again and again: that keeps the place in the group.

        Raises:
            SourceAway
        """

    async def behind(self) -> Mapping[Partition, int]:
        """How many messages there are of each partition that this member holds and has not fetched.

        Raises:
            SourceAway
        """

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """What is before these offsets need not come again.

        Raises:
            SourceAway: it may.
        """

    async def aclose(self) -> None:
        """Leave the group. Idempotent."""
