"""Prefix events: what a worker says of its prefix cache, and what its clients make of that."""

from collections import deque
from random import Random

import pytest

from engine.config import SchedulerConfig
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.memory.prefix_journal import PrefixJournal
from engine.request import STANDARD, FinishReason, SamplingParams, TokenDelta, Usage
from engine.runtime.submission import Submission
from engine.scheduling import Scheduler
from engine.simulation import FakeExecutor, make_request, run_to_completion
from engine.workers.messages import Aborted, Deltas, Prefixes, Refused, WatchPrefixes, decode_from_worker, encode
from engine.workers.prefix_events import HASHES_A_MESSAGE, PrefixPublisher, pack_hashes, short_hash
from engine.workers.prefix_index import HeldBlocks, PromptPrefix, UnansweredPrefixes
from engine.workers.replicas import Replica, ReplicaSet
from tests.support.worker_messages import ready


def submission(tokens: list[int], salt: bytes = b"", request_id: str = "r") -> Submission:
    return Submission((request_id,), (1,), tokens, len(tokens), SamplingParams(), 16, STANDARD, "t", salt)


class Client:
    """A client's side of a connection that delays messages, and may lose some."""

    def __init__(self, publisher: PrefixPublisher, random: Random) -> None:
        self.held = HeldBlocks()
        self.resyncs = 0
        self._publisher = publisher
        self._random = random
        self._on_the_way: deque[bytes] = deque()
        publisher.watch(self, self._send)

    def _send(self, message: Prefixes) -> None:
        assert len(message.stored) + len(message.evicted) <= 8 * HASHES_A_MESSAGE
        self._on_the_way.append(encode(message))

    def receive(self, *, loses: bool = False) -> None:
        if self._on_the_way:
            message = decode_from_worker(self._on_the_way.popleft())
            assert isinstance(message, Prefixes)
            if not loses and not self.held.receive(message):
                self.resyncs += 1
                self._publisher.watch(self, self._send)

    def reconnect(self) -> None:
        self._publisher.unwatch(self)
        self._on_the_way.clear()
        self.held = HeldBlocks()
        self._publisher.watch(self, self._send)

    @property
    def waits(self) -> bool:
        return bool(self._on_the_way)


class World:
    """A real pool under random operations, its publisher, and clients."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.pool = BlockPool(self.random.choice([8, 60, 900]))
        self.max_unread = self.random.choice([6, 1 << 17])
        self.publisher = PrefixPublisher("m", 7)
        self.begins = 0
        self.tables: list[list[int]] = []
        self.hashes = [bytes([number % 256, number // 256]) + bytes(30) for number in range(1200)]
        self.clients = [Client(self.publisher, self.random) for _ in range(self.random.randint(1, 3))]

    def move(self) -> None:
        random, chance = self.random, self.random.random()
        client = random.choice(self.clients)
        if chance < 0.3:
            self.allocate()
        elif chance < 0.5 and self.tables:
            self.pool.release(self.tables.pop(random.randrange(len(self.tables))))
        elif chance < 0.55 and self.tables:
            self.pool.forget(random.choice(self.tables))
        elif chance < 0.6:
            found = self.pool.match(random.sample(self.hashes, 1))
            self.pool.acquire(found)
            self.tables += [found] if found else []
        elif chance < 0.8:
            self.publish()
        elif chance < 0.97:
            client.receive(loses=random.random() < 0.05)
        elif chance < 0.98:
            client.reconnect()

    def allocate(self) -> None:
        count = min(self.random.randint(1, 40), self.pool.free_blocks)
        blocks = self.pool.allocate(count)
        for block in blocks:
            if self.random.random() < 0.8:
                self.pool.publish(block, self.random.choice(self.hashes))
        self.tables.append(blocks)

    def publish(self) -> None:
        if self.publisher.must_begin:
            journal = PrefixJournal(self.max_unread)
            self.pool.journal = journal
            self.publisher.begin(self.pool.cached_hashes, journal)
            self.begins += 1
        self.publisher.publish()

    def settle(self) -> None:
        """One more block is cached, so that a message follows each that was lost; nothing is lost any more."""
        while self.tables:
            self.pool.release(self.tables.pop())
        self.tables.append(self.pool.allocate(1))
        self.pool.publish(self.tables[0][0], bytes([255]) * 32)
        for _ in range(30):
            self.publish()
            for client in self.clients:
                while client.waits:
                    client.receive()


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_clients_know_what_the_pool_holds(first: int) -> None:
    begins = resyncs = 0
    for seed in range(first, first + 30):
        world = World(seed)
        for _ in range(world.random.randint(50, 400)):
            world.move()
        world.settle()
        world.pool.check()
        cached = {short_hash(each) for each in world.pool.cached_hashes}
        assert world.publisher.cached == cached
        assert world.publisher.is_done
        for client in world.clients:
            assert client.held.is_complete
            assert client.held.hashes == cached
        begins += world.begins
        resyncs += sum(client.resyncs for client in world.clients)
    assert begins > 30, "no journal has overflowed"
    assert resyncs > 5, "no message was lost"


def test_a_large_cache_is_sent_in_parts() -> None:
    journal = PrefixJournal()
    messages: list[Prefixes] = []
    publisher = PrefixPublisher("m", 1)
    publisher.begin([number.to_bytes(8, "little") + bytes(24) for number in range(2 * HASHES_A_MESSAGE + 5)], journal)
    publisher.watch("client", messages.append)
    for _ in range(5):
        publisher.publish()
    assert [len(message.stored) // 8 for message in messages] == [HASHES_A_MESSAGE, HASHES_A_MESSAGE, 5]
    assert [message.complete for message in messages] == [False, False, True]
    assert [message.number for message in messages] == [0, 1, 2]


def test_a_change_that_is_undone_is_sent_as_it_stands() -> None:
    journal = PrefixJournal()
    messages: list[Prefixes] = []
    publisher = PrefixPublisher("m", 1)
    publisher.begin([], journal)
    publisher.watch("client", messages.append)
    publisher.publish()
    for cached in (True, False, True):
        journal.record(bytes(32), cached=cached)
    publisher.publish()
    publisher.publish()
    assert [(message.stored, message.evicted) for message in messages] == [(b"", b""), (bytes(8), b"")]


def test_another_epoch_is_a_loss() -> None:
    held = HeldBlocks()
    assert held.receive(Prefixes("m", 1, 0, True, pack_hashes([5]), b""))
    assert held.hashes == {5}
    assert not held.receive(Prefixes("m", 2, 1, True, pack_hashes([6]), b""))
    assert not held.is_complete
    assert not held.hashes
    assert held.receive(Prefixes("m", 2, 2, True, pack_hashes([7]), b"")), "it was asked for another one"
    assert not held.hashes
    assert not held.receive(Prefixes("m", 3, 1, True, pack_hashes([7]), b"")), "the first one of that is lost, too"
    assert held.receive(Prefixes("m", 4, 0, True, pack_hashes([8]), b""))
    assert held.hashes == {8}


def test_a_prompt_is_found_as_the_scheduler_finds_it() -> None:
    cache = KVCacheManager(BlockPool(64))
    scheduler = Scheduler(SchedulerConfig(max_running=4, classes=(STANDARD,)), cache, 1024)
    journal, held = PrefixJournal(), HeldBlocks()
    publisher = PrefixPublisher("m", 1)
    publisher.begin(scheduler.record_prefixes(journal), journal)
    publisher.watch("client", held.receive)
    tokens = [number % 20 + 1 for number in range(100)]
    run_to_completion(scheduler, FakeExecutor(64), [make_request("a", tokens, salt=b"one")])
    publisher.publish()
    for prompt, salt in ((tokens, b"one"), (tokens[:50], b"one"), (tokens[:40] + [9] * 60, b"one"), (tokens, b"two")):
        hits = cache.match(make_request("b", [*prompt, 3], salt=salt))
        assert PromptPrefix(submission(prompt, salt)).held_tokens(held) == 16 * len(hits)
    assert PromptPrefix(submission(tokens, b"one")).held_tokens(held) == 96
    assert PromptPrefix(submission(tokens, b"two")).held_tokens(held) == 0, "another tenant's prompt is not found"


def test_unanswered_prefixes_are_counted_once_for_each_request() -> None:
    random, unanswered = Random(3), UnansweredPrefixes()
    sent: dict[str, list[int]] = {}
    for step in range(600):
        request_id = f"r{random.randrange(12)}"
        match random.randrange(3):
            case 0:
                keys = [random.randrange(4) for _ in range(random.randrange(3))]
                unanswered.add(request_id, keys)
                sent[request_id] = keys
            case 1:
                unanswered.drop(request_id)
                sent.pop(request_id, None)
            case 2 if step % 5 == 0:
                kept = random.sample(sorted(sent), len(sent) // 2)
                unanswered.retain(kept)
                sent = {each: sent[each] for each in kept}
        unanswered.check()
        assert len(unanswered) == len(sent)
        known = {key for keys in sent.values() for key in keys}
        assert all((unanswered.cached_tokens([key]) > 0) == (key in known) for key in range(4))


class One:
    """A replica, and what was sent to it."""

    def __init__(self) -> None:
        self.set = ReplicaSet()
        self.sent: list[object] = []
        self.replica = Replica("a", self.set, self._send)
        self.set.replicas.append(self.replica)
        self.replica.on_ready(ready())

    def _send(self, message: object) -> bool:
        self.sent.append(message)
        return True

    def cached_tokens(self, tokens: list[int]) -> int:
        each = submission(tokens)
        return self.replica.view("m", each, PromptPrefix(each)).cached_tokens

    def submit(self, tokens: list[int], request_id: str = "r") -> None:
        self.set.submit("m", [submission(tokens, request_id=request_id)], lambda deltas: None, lambda error: None)


PROMPT = list(range(80)) * 3


def test_without_events_what_was_sent_counts() -> None:
    one = One()
    one.submit(PROMPT)
    one.replica.on_message(Deltas([TokenDelta("r", (1,), finish_reason=FinishReason.STOP, usage=Usage(240, 1))]))
    assert one.cached_tokens(PROMPT) == 192


def test_events_count_more_than_what_was_sent() -> None:
    one = One()
    one.replica.on_message(Prefixes("m", 1, 0, True, b"", b""))
    one.submit(PROMPT)
    assert one.cached_tokens(PROMPT) == 192, "it is being computed"
    one.replica.on_message(Deltas([TokenDelta("r", (1,))]))
    assert one.cached_tokens(PROMPT) == 0, "it is evicted already"
    prompt = PromptPrefix(submission(PROMPT))
    prompt.held_tokens(_everything(prompt, 15))
    one.replica.on_message(Prefixes("m", 1, 1, True, pack_hashes(prompt._short[:14]), b""))
    assert one.cached_tokens(PROMPT) == 224
    one.replica.on_message(Prefixes("m", 1, 2, True, b"", pack_hashes(prompt._short[3:4])))
    assert one.cached_tokens(PROMPT) == 48
    one.set.check()


def _everything(prompt: PromptPrefix, blocks: int) -> HeldBlocks:
    """An index that holds the first blocks of a prompt."""
    held = HeldBlocks()
    for _ in range(blocks):
        prompt.held_tokens(held)
        held.hashes.update(prompt._short)
    return held


def test_a_lost_message_has_all_sent_again() -> None:
    one = One()
    assert one.sent == [WatchPrefixes("m")]
    one.replica.on_message(Prefixes("m", 1, 0, True, b"", b""))
    one.replica.on_message(Prefixes("m", 1, 2, True, b"", b""))
    one.replica.on_message(Prefixes("m", 1, 3, True, b"", b""))
    assert one.sent == [WatchPrefixes("m")] * 2
    one.replica.on_ended()
    one.replica.on_message(Prefixes("m", 1, 4, True, b"", b""))
    one.replica.on_ready(ready())
    assert one.sent == [WatchPrefixes("m")] * 3


@pytest.mark.parametrize("way", ["refused", "aborted", "lost"])
def test_a_request_that_is_over_is_no_prefix(way: str) -> None:
    one = One()
    one.replica.on_message(Prefixes("m", 1, 0, True, b"", b""))
    record = one.set.submit("m", [submission(PROMPT)], lambda deltas: None, lambda error: None)
    assert one.cached_tokens(PROMPT)
    match way:
        case "refused":
            one.replica.on_message(Refused(1, "EngineError", "it cannot"))
        case "aborted":
            one.set.abort(record, ["r"], lambda usages: None)
            one.replica.on_message(Aborted(2, {}))
        case "lost":
            one.replica.on_ended()
            one.set.abort(record, ["r"], lambda usages: None)
            one.replica.on_ready(ready())
            one.replica.on_message(Prefixes("m", 2, 0, True, b"", b""))
    assert one.cached_tokens(PROMPT) == 0
    one.set.check()
