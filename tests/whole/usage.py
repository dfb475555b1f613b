"""Where usage goes in a simulation: a topic between the relay and the real sink, and a store in ClickHouse's place."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from gateway.analytics import AnalyticsAway
from gateway.analytics.refusals import REFUSALS_TABLE
from gateway.analytics.store import Parameters, Row, check_batch
from gateway.metering.journal.journal_file import JournalRow
from gateway.metering.relay.destination import DestinationAway
from gateway.metering.signature import EventSigner
from gateway.metering.sink.intake import EVENTS_TABLE, STORED_COLUMNS, Message
from gateway.metering.sink.message_source import Fetched, Partition, SourceAway

LOST_ANSWERS = 0.2
"""Share of the inserts of refusals that are stored and said to fail."""


class MemoryAnalytics:
    """An `Analytics` that takes rows as ClickHouse does: a block once by its token, an event as often as it comes, read
    once by its id. `away`: nothing answers. It answers no SQL: runs that ask in SQL have the real one.

    Refusals are not asked for again, so each run loses some answers of their inserts, by a source of chance of its own.
    """

    def __init__(self, random: Random) -> None:
        self.away = False
        self.was_away = False
        """To someone who called."""
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self._tokens: set[tuple[str, str]] = set()
        self._random = random
        self._of_refusals = Random("refusals")

    async def command(self, sql: str, parameters: Parameters | None = None) -> None:
        await self._travel()

    async def query(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        await self._travel()
        if "usage_signature_upgrades" in sql:
            return [(0, 0)]  # it never had an event without a signature
        raise AnalyticsAway("the simulated store answers no SQL")

    async def insert(
        self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], deduplication_token: str | None = None
    ) -> None:
        check_batch(rows)
        if table == REFUSALS_TABLE:
            await self._insert_refusals(columns, rows)
            return
        await self._travel()
        token = (table, deduplication_token or "")
        if deduplication_token is None or token not in self._tokens:
            self._tokens.add(token)
            self.tables.setdefault(table, []).extend(dict(zip(columns, row, strict=True)) for row in rows)
        await self._travel()

    async def aclose(self) -> None:
        """It outlives the gateway."""

    def events(self) -> dict[Any, dict[str, Any]]:
        """Each once, by its id. Two that differ under one id fail the run."""
        seen: dict[Any, dict[str, Any]] = {}
        for row in self.tables.get(EVENTS_TABLE, ()):
            known = seen.setdefault(row["event_id"], row)
            assert known == row, f"two events have one id: {known} and {row}"
        assert all(set(row) == set(STORED_COLUMNS) for row in seen.values())
        return seen

    def refusals(self) -> Counter[tuple[str, str]]:
        """Requests by tenant and code, of each row once, by its id."""
        seen: dict[Any, dict[str, Any]] = {}
        for row in self.tables.get(REFUSALS_TABLE, ()):
            known = seen.setdefault(row["refusal_id"], row)
            assert known == row, f"two rows of refusals have one id: {known} and {row}"
        counts: Counter[tuple[str, str]] = Counter()
        for row in seen.values():
            counts[row["tenant_id"], row["code"]] += row["requests"]
        return counts

    async def _insert_refusals(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        await self._travel(self._of_refusals)
        self.tables.setdefault(REFUSALS_TABLE, []).extend(dict(zip(columns, row, strict=True)) for row in rows)
        await self._travel(self._of_refusals)
        if self._of_refusals.random() < LOST_ANSWERS:
            raise AnalyticsAway("the simulated store's answer was lost")

    async def _travel(self, random: Random | None = None) -> None:
        await asyncio.sleep((random or self._random).uniform(1e-4, 5e-3))
        if self.away:
            self.was_away = True
            raise AnalyticsAway("the simulated store is away")


class AnalyticsLink:
    """One process's way to the store. `cut`: it was killed, and reaches nothing any more."""

    def __init__(self, store: MemoryAnalytics) -> None:
        self.cut = False
        self._store = store

    async def command(self, sql: str, parameters: Parameters | None = None) -> None:
        self._check()
        await self._store.command(sql, parameters)

    async def query(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        self._check()
        return await self._store.query(sql, parameters)

    async def insert(
        self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], deduplication_token: str | None = None
    ) -> None:
        self._check()
        await self._store.insert(table, columns, rows, deduplication_token)

    async def aclose(self) -> None:
        pass

    def _check(self) -> None:
        if self.cut:
            raise AnalyticsAway("the process was killed")


class Topic:
    """One partition, outside of every process. `down`: nothing answers; `repeats`: what was taken is said to fail."""

    def __init__(self, random: Random) -> None:
        self.messages: list[Message] = []
        self.committed = 0
        self.down = False
        self.repeats = 0
        self.random = random

    async def travel(self) -> bool:
        await asyncio.sleep(self.random.uniform(2e-4, 5e-3))
        return not self.down


class TopicDestination:
    """The relay's end."""

    linger_ms = 5

    def __init__(self, topic: Topic, signer: EventSigner) -> None:
        self.cut = False
        self._topic = topic
        self._signer = signer

    async def deliver(self, rows: Sequence[JournalRow]) -> None:
        topic = self._topic
        if not await topic.travel() or self.cut:
            raise DestinationAway("the simulated topic is away")
        for row in rows:
            topic.messages.append(Message(len(topic.messages), row.body, 0, self._signer.sign_json(row.body)))
        if topic.repeats:
            topic.repeats -= 1
            raise DestinationAway("the simulated topic's answer was lost")
        if not await topic.travel():
            raise DestinationAway("the simulated topic's answer was lost")

    async def aclose(self) -> None:
        pass


class TopicSource:
    """The sink's end: a group of one member."""

    PARTITION = Partition("usage", 0)

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._next = topic.committed

    async def fetch(self, *, more: bool) -> Fetched:
        await asyncio.sleep(0.05)
        if not await self._topic.travel():
            self._next = self._topic.committed
            raise SourceAway("the simulated topic is away")
        found = self._topic.messages[self._next :] if more else []
        self._next += len(found)
        return Fetched({self.PARTITION: found} if found else {}, frozenset([self.PARTITION]))

    async def behind(self) -> Mapping[Partition, int]:
        return {self.PARTITION: len(self._topic.messages) - self._next}

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        if not await self._topic.travel():
            raise SourceAway("the simulated topic is away")
        self._topic.committed = max(self._topic.committed, offsets[self.PARTITION])

    async def aclose(self) -> None:
        pass
