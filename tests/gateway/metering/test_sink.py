"""The sink stores every message and commits no offset before its message is stored."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gateway.analytics import AnalyticsAway, AnalyticsRefused
from gateway.metering.metrics import SinkCollector
from gateway.metering.reconciliation.gaps import MissingRange
from gateway.metering.relay.destination import Backoff
from gateway.metering.signature import EventSigner, Verification
from gateway.metering.sink.intake import DEAD_LETTERS_TABLE, EVENTS_TABLE, Intake, Message
from gateway.metering.sink.message_source import Fetched, Partition, SourceAway
from gateway.metering.sink.sink import Sink
from tests.support.usage_requests import SIGNER, a_message, an_event, until

Script = Sequence[str]
PARTITIONS = (Partition("usage", 0), Partition("usage", 1))
MESSAGES_EACH = 12
PER_FETCH = 3


class Store:
    """An `Analytics` that knows tokens. `script` says how its next inserts go: `ok`, `away`, or `lost`, where the rows
    are stored and the answer is not given."""

    def __init__(self, script: Script = ()) -> None:
        self.tables: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.tokens: list[str] = []
        self._known: dict[str, list[tuple[Any, ...]]] = {}
        self._script = list(script)

    async def insert(
        self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], deduplication_token: str | None
    ) -> None:
        assert deduplication_token is not None
        how = self._script.pop(0) if self._script else "ok"
        self.tokens.append(deduplication_token)
        if how == "away":
            raise AnalyticsAway("gone")
        if how == "refused":
            raise AnalyticsRefused("no such column", 16)
        if deduplication_token not in self._known:
            self._known[deduplication_token] = list(rows)
            self.tables[table] += rows
        assert self._known[deduplication_token] == list(rows), "one token for different rows"
        if how == "lost":
            raise AnalyticsAway("no answer")

    def recover(self) -> None:
        self._script.clear()

    @property
    def sequences(self) -> list[int]:
        return [row[2] for row in self.tables[EVENTS_TABLE]]


class Group:
    """A topic of two partitions and the committed offsets, as one member sees them. `script` says what comes before
    the next fetches: `ok`, `away`, `lose N` and `gain N` of a partition."""

    def __init__(self, messages: Mapping[Partition, Sequence[Message]], script: Script = ()) -> None:
        self._messages = messages
        self._positions = dict.fromkeys(messages, 0)
        self._script = list(script)
        self.committed = dict.fromkeys(messages, 0)
        self.stored: Store | None = None
        self.fetches_without_more = 0
        self.closed = False

    async def fetch(self, *, more: bool) -> Fetched:
        await asyncio.sleep(0)
        action, _, which = (self._script.pop(0) if self._script else "ok").partition(" ")
        match action:
            case "away":
                raise SourceAway("gone")
            case "lose":
                self._positions.pop(PARTITIONS[int(which)], None)
            case "gain":
                self._gain(PARTITIONS[int(which)])
        if not self._script:
            for each in PARTITIONS:
                self._gain(each)
        self.fetches_without_more += not more
        return Fetched(self._take() if more else {}, frozenset(self._positions))

    async def behind(self) -> Mapping[Partition, int]:
        return {place: len(self._messages[place]) - at for place, at in self._positions.items()}

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        for partition, offset in offsets.items():
            assert self.stored is not None
            known = self.stored.sequences + [row[2] for row in self.stored.tables[DEAD_LETTERS_TABLE]]
            before = self._messages[partition][:offset]
            assert all(sequence_of(each) in known for each in before), "committed before it was stored"
            self.committed[partition] = offset

    async def aclose(self) -> None:
        self.closed = True

    @property
    def is_through(self) -> bool:
        return all(self.committed[each] == len(self._messages[each]) for each in PARTITIONS)

    def _gain(self, partition: Partition) -> None:
        self._positions.setdefault(partition, self.committed[partition])

    def _take(self) -> dict[Partition, Sequence[Message]]:
        taken = {}
        for partition, position in self._positions.items():
            taken[partition] = self._messages[partition][position : position + PER_FETCH]
            self._positions[partition] += len(taken[partition])
        return taken


def sequence_of(message: Message) -> int:
    return int(message.body.split(b'"sequence":')[1].split(b",")[0])


def topic() -> dict[Partition, list[Message]]:
    return {
        partition: [
            a_message(offset, an_event(1 + offset * len(PARTITIONS) + partition.number))
            for offset in range(MESSAGES_EACH)
        ]
        for partition in PARTITIONS
    }


ALL_SEQUENCES = set(range(1, 1 + MESSAGES_EACH * len(PARTITIONS)))


def a_sink(group: Group, store: Store, **options: Any) -> Sink:
    group.stored = store
    intake = Intake(store, Verification(SIGNER))  # type: ignore[arg-type]
    return Sink(group, intake, **{"linger_ms": 0, "backoff": Backoff(0.0001, 0.0005)} | options)


async def through(group: Group, sink: Sink) -> None:
    running = asyncio.create_task(sink.run())
    try:
        await until(lambda: group.is_through or running.done())
    finally:
        sink.stop()
        await running


_FETCHES = st.lists(st.sampled_from(["ok", "ok", "lose 0", "lose 1", "gain 0", "gain 1"]), max_size=25)
_INSERTS = st.lists(st.sampled_from(["ok", "away", "lost"]), max_size=15)


@given(fetches=_FETCHES, inserts=_INSERTS, batch=st.integers(1, 10))
def test_faults_of_the_group_and_the_store_lose_no_event(fetches: list[str], inserts: list[str], batch: int) -> None:
    async def run() -> None:
        group, store = Group(topic(), fetches), Store(inserts)
        await through(group, a_sink(group, store, batch_messages=batch))
        assert set(store.sequences) == ALL_SEQUENCES
        if not any("gain" in each or "lose" in each for each in fetches):
            assert len(store.sequences) == len(ALL_SEQUENCES), "a repetition of the same rows has the same token"
        assert group.closed

    asyncio.run(run())


async def test_tokens_name_the_partition_and_its_offsets() -> None:
    group, store = Group(topic()), Store(["lost"])
    await through(group, a_sink(group, store, batch_messages=1))
    assert store.tokens[:3] == ["usage-0-0-2", "usage-0-0-2", "usage-1-0-2"]


async def test_what_is_no_event_is_kept_apart_with_its_reason() -> None:
    messages = topic()
    messages[PARTITIONS[0]][1] = Message(1, b"not JSON \xff", timestamp_ms=1_793_491_200_123)
    messages[PARTITIONS[1]][0] = Message(0, b"", timestamp_ms=2**62)  # a producer may state any timestamp
    group, store = Group(messages), Store(["away", "lost"])
    group.committed = dict.fromkeys(messages, 0)
    sink = a_sink(group, store)
    running = asyncio.create_task(sink.run())
    group.commit = _noted(group.committed)  # type: ignore[method-assign]
    await until(lambda: group.is_through)
    sink.stop()
    await running
    dead = {row[:3]: row[3:] for row in store.tables[DEAD_LETTERS_TABLE]}
    assert set(dead) == {("usage", 0, 1), ("usage", 1, 0)}
    assert dead["usage", 0, 1][1] == b"not JSON \xff"
    assert "not JSON" in dead["usage", 0, 1][0]
    assert dead["usage", 0, 1][2] == datetime(2026, 11, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    assert dead["usage", 1, 0][2] == datetime(2200, 1, 1, tzinfo=UTC)
    assert len(store.sequences) == len(set(store.sequences)) == len(ALL_SEQUENCES) - 2
    assert sink.counts.dead_letters_total == 2


def _noted(committed: dict[Partition, int]) -> Any:
    async def commit(offsets: Mapping[Partition, int]) -> None:
        committed.update(offsets)

    return commit


async def test_a_store_that_is_away_stops_the_fetching() -> None:
    group, store = Group(topic()), Store(["away"] * 1_000_000)
    sink = a_sink(group, store, batch_messages=4)
    running = asyncio.create_task(sink.run())
    await until(lambda: group.fetches_without_more > 50)
    assert sink.last_error == "gone"
    assert sink.held_messages <= 2 * (4 + len(PARTITIONS) * PER_FETCH)
    assert set(group.committed.values()) == {0}
    sink.stop()
    await running


async def test_tables_that_are_not_as_expected_make_nothing_a_dead_letter() -> None:
    group, store = Group(topic()), Store(["refused"] * 3)
    await through(group, a_sink(group, store))
    assert not store.tables[DEAD_LETTERS_TABLE]
    assert sorted(store.sequences) == sorted(ALL_SEQUENCES)


async def test_a_stop_stores_what_was_fetched() -> None:
    group, store = Group(topic()), Store()
    sink = a_sink(group, store, linger_ms=60_000)
    running = asyncio.create_task(sink.run())
    await until(lambda: sink.held_messages == len(ALL_SEQUENCES))
    assert not store.sequences
    sink.stop()
    await running
    assert set(store.sequences) == ALL_SEQUENCES
    assert group.is_through


@dataclass
class Found:
    """Latest results of a sink's watches."""

    behind: Mapping[Partition, int]
    missing: Sequence[MissingRange] = ()


async def test_metrics_say_how_far_behind_it_is() -> None:
    minute_ago_ms = time.time_ns() // 1_000_000 - 60_000
    messages = {place: [each._replace(timestamp_ms=minute_ago_ms) for each in topic()[place]] for place in PARTITIONS}
    group, store = Group(messages), Store(["away"] * 1_000_000)
    sink, started = a_sink(group, store, batch_messages=4), asyncio.Event()
    found = Found(await group.behind(), [MissingRange("s", 3, 4)])
    registry = CollectorRegistry()
    registry.register(SinkCollector(sink, found, found, started.is_set))

    def value(name: str, **labels: str) -> float:
        shown = registry.get_sample_value(f"turnpike_{name}", labels)
        assert shown is not None
        return shown

    assert value("sink_failing") == 1, "it could not use its store yet"
    started.set()
    assert (value("sink_failing"), value("sink_lag_seconds")) == (0, 0)
    assert value("usage_missing_events", source="s") == 2
    running = asyncio.create_task(sink.run())
    await until(lambda: value("sink_failing") == 1)
    found.behind = await group.behind()
    for place in PARTITIONS:
        assert value("sink_lag_messages", partition=str(place.number)) == MESSAGES_EACH
    assert 60 <= value("sink_lag_seconds") < 1_000
    store.recover()
    await until(lambda: group.is_through)
    found.behind = await group.behind()
    assert [value("sink_lag_messages", partition=str(place.number)) for place in PARTITIONS] == [0, 0]
    assert (value("sink_lag_seconds"), value("sink_failing")) == (0, 0)
    sink.stop()
    await running


def forged(offset: int, **claimed: object) -> Message:
    """An event with an invented source, as any client with write access to the topic could send it."""
    event = replace(an_event(offset + 1, source="invented"), **claimed)  # type: ignore[arg-type]
    return Message(offset, event.to_json(), 1_793_491_200_000)


async def test_an_event_that_no_gateway_signed_is_put_aside_and_not_billed() -> None:
    messages = topic()
    stranger = EventSigner(b"another pepper, also of 32 bytes")
    genuine = an_event(1)
    signature = SIGNER.sign(genuine)
    dearer = replace(genuine, cost_nanodollars=genuine.cost_nanodollars + 1)
    partition = PARTITIONS[0]
    messages[partition] = [
        a_message(0, genuine),
        forged(1),
        forged(2)._replace(signature=signature),
        Message(3, dearer.to_json(), 0, signature),
        forged(4)._replace(signature=stranger.sign(an_event(5, source="invented"))),
        forged(5)._replace(signature="\ufffd" * 64),
        Message(6, genuine.to_json(), 0, signature),  # what was sent twice is billed once, by its id
    ]
    messages[PARTITIONS[1]] = []
    group, store = Group(messages), Store()
    group.commit = _noted(group.committed)  # type: ignore[method-assign]
    sink = a_sink(group, store)
    await through(group, sink)
    assert [row[:3] for row in store.tables[EVENTS_TABLE]] == [(genuine.event_id, "s", 1)] * 2
    assert {row[-1] for row in store.tables[EVENTS_TABLE]} == {signature}
    dead = {row[2]: row[3] for row in store.tables[DEAD_LETTERS_TABLE]}
    assert sorted(dead) == [1, 2, 3, 4, 5]
    assert all(reason.startswith("not authenticated: ") for reason in dead.values())
    assert "no signature" in dead[1]
    assert "signed under the pepper" in dead[4]
    counts = sink.counts
    assert (counts.events_total, counts.unauthenticated_total, counts.dead_letters_total) == (2, 5, 0)
    assert counts.unsigned_total == 0


async def test_unsigned_events_are_accepted_until_an_instant_of_this_machine() -> None:
    """Timestamps of the event and its message do not matter."""
    now_ms = 1_000
    verification = Verification(SIGNER, lambda: now_ms)
    verification.accept_unsigned_until(now_ms + 1)
    messages = [forged(0), forged(1)._replace(signature="wrong")]
    store = Store()
    stored = await Intake(store, verification).store("usage", 0, messages)  # type: ignore[arg-type]
    assert (stored.events, stored.unsigned, stored.unauthenticated) == (1, 1, 1)
    now_ms += 1
    stored = await Intake(store, verification).store("usage", 0, messages[:1])  # type: ignore[arg-type]
    assert (stored.events, stored.unauthenticated) == (0, 1)


async def test_what_was_put_aside_is_stored_when_it_is_read_again_under_another_setting() -> None:
    """The same messages are other rows then, and so have another token."""
    messages = [a_message(0, an_event(1)), forged(1)]
    store, verification = Store(), Verification(SIGNER)
    await Intake(store, verification).store("usage", 0, messages)  # type: ignore[arg-type]
    verification.accept_unsigned_until(2**62)
    await Intake(store, verification).store("usage", 0, messages)  # type: ignore[arg-type]
    assert [row[1] for row in store.tables[EVENTS_TABLE]] == ["s", "s", "invented"]
