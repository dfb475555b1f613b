"""Who waits for whose grammar: turns of tenants, bounds of queues and of memory. Without threads and processes."""

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar import GrammarRefused, GrammarSpec
from engine.grammar.compiler import MAX_CONCURRENT, MAX_WAITING, GrammarCompiler
from engine.grammar.grammar_cache import GrammarCache
from engine.grammar.sandbox import CheckedGrammar
from engine.grammar.sandbox_program import translate
from engine.grammar.tenant_queues import QueueFull, TenantQueues
from engine.grammar.vocabulary import LibraryVocabulary
from engine.text.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), tenants=st.integers(1, 4))
def test_turns(seed: int, tenants: int) -> None:
    """Calls arrive and end in any order on two workers: none is lost, none waits while a worker is free, no tenant has
    two workers while another waits, and each other tenant overtakes a waiting tenant without a worker at most once."""
    rng, turns = Random(seed), TenantQueues[int](5)
    waiting: dict[str, deque[int]] = {}
    running: list[str] = []
    passed_over: dict[str, Counter[str]] = {}
    for number in range(60):
        tenant = f"t{rng.randrange(tenants)}"
        if rng.random() < 0.6:
            if len(waiting.get(tenant, ())) == 5:
                with pytest.raises(QueueFull):
                    turns.add(tenant, number)
            else:
                turns.add(tenant, number)
                waiting.setdefault(tenant, deque()).append(number)
                passed_over.setdefault(tenant, Counter())
        elif running:
            ended = running.pop(rng.randrange(len(running)))
            turns.end(ended)
        while len(running) < 2 and (turn := turns.start()) is not None:
            started, job = turn
            assert waiting[started].popleft() == job
            others = {each for each, queue in waiting.items() if queue and each != started}
            assert started not in running or others <= set(running)
            if not waiting[started]:
                del waiting[started]
            passed_over.pop(started)
            if started in waiting:
                passed_over[started] = Counter()
            for other in others:
                passed_over[other][started] += 1
                if other in running:
                    passed_over[other].clear()
                assert passed_over[other][started] <= 1
            running.append(started)
        assert turns.running == len(running)
        assert len(running) == 2 or not any(waiting.values())
    assert sorted(turns.clear()) == sorted(job for queue in waiting.values() for job in queue)


@dataclass
class ByHand(Executor):
    """Runs a submitted call when the test says so."""

    submitted: deque[Callable[[], None]] = field(default_factory=deque)
    closed: bool = False

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted.append(lambda: future.set_result(call(*args, **kwargs)))
        return future

    def step(self) -> None:
        self.submitted.popleft()()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closed = True


@dataclass
class FakeSandbox:
    """Finds everything harmless but what is refused."""

    log: list[str]
    size_bytes: int
    alive: bool = True

    def check(self, spec: GrammarSpec) -> CheckedGrammar:
        self.log.append(spec.source)
        if spec.source.startswith("bad"):
            raise GrammarRefused("bad")
        return CheckedGrammar(translate(spec.kind.value, spec.source), self.size_bytes)

    def kill(self) -> None:
        self.alive = False

    def close(self) -> None:
        self.alive = False


class Pool:
    """A compiler over a hand-driven executor; `log` has what was check, in order."""

    def __init__(self, tokenizer: Tokenizer, *, size_bytes: int = 1000, cached_bytes: int = 1 << 20) -> None:
        self.log: list[str] = []
        self.executor = ByHand()
        self.compiler = GrammarCompiler(
            lambda: LibraryVocabulary.of(tokenizer, VOCAB_SIZE, (IM_END,)),
            cached_bytes=cached_bytes,
            executor=self.executor,
            start_sandbox=lambda *_: FakeSandbox(self.log, size_bytes),
        )

    def ask(self, source: str, tenant: str) -> Future[Any]:
        return self.compiler.compile(GrammarSpec.regex(source), tenant)

    def run(self) -> None:
        while self.executor.submitted:
            self.executor.step()


@pytest.fixture
def pool(tokenizer: Tokenizer) -> Pool:
    return Pool(tokenizer)


def test_a_tenant_with_many_grammars_holds_up_no_other(pool: Pool) -> None:
    for number in range(10):
        pool.ask(f"a{number}", "greedy")
    mine = pool.ask("mine", "modest")
    pool.run()
    assert pool.log[: MAX_CONCURRENT + 1] == ["a0", "a1", "mine"]
    assert mine.result()


def test_a_grammar_that_two_tenants_want_is_compiled_once_and_in_the_earlier_turn(pool: Pool) -> None:
    for number in range(6):
        pool.ask(f"a{number}", "greedy")
    assert pool.ask("a5", "modest") is pool.ask("a5", "greedy")
    pool.run()
    assert pool.log == ["a0", "a1", "a5", "a2", "a3", "a4"]


def test_a_queue_has_an_end_and_what_is_known_needs_none(pool: Pool) -> None:
    for number in range(MAX_CONCURRENT + MAX_WAITING):
        pool.ask(f"a{number}", "greedy")
    for _ in range(3):
        pool.ask("a9", "greedy")
    with pytest.raises(QueueFull):
        pool.ask("one more", "greedy")
    pool.ask("mine", "modest")
    pool.run()
    assert len(pool.log) == MAX_CONCURRENT + MAX_WAITING + 1
    pool.ask("one more", "greedy")


def test_a_refusal_leaves_the_worker_to_the_next(pool: Pool) -> None:
    outcomes = [pool.ask(source, "t") for source in ("bad1", "bad2", "bad3", "good")]
    pool.run()
    assert [type(each.exception()) for each in outcomes] == [GrammarRefused] * 3 + [type(None)]


def test_closing_ends_all_waiting(pool: Pool) -> None:
    outcomes = [pool.ask(f"a{number}", "t") for number in range(5)]
    pool.compiler.close()
    assert pool.executor.closed
    assert [each.cancelled() for each in outcomes] == [False] * MAX_CONCURRENT + [True] * 3


def test_grammars_are_forgotten_by_their_bytes(tokenizer: Tokenizer) -> None:
    """The ones used last stay, as far as there is room; a refusal takes little of it."""
    pool = Pool(tokenizer, size_bytes=100_000, cached_bytes=350_000)
    for source in ("a", "b", "c", "bad"):
        pool.ask(source, "t")
    pool.run()
    pool.ask("a", "t")
    pool.ask("d", "t")
    pool.run()
    assert pool.compiler.cached_bytes <= 350_000
    for source in ("a", "c", "d", "bad"):
        pool.ask(source, "t")
    pool.run()
    assert pool.log == ["a", "b", "c", "bad", "d"]
    pool.ask("b", "t")
    pool.run()
    assert pool.log[-1] == "b"


def test_what_is_larger_than_all_room_is_served_and_not_kept() -> None:
    kept = GrammarCache(10_000)
    outcome: Future[Any] = Future()
    kept.put(GrammarSpec.regex("a"), outcome)
    kept.record_size(GrammarSpec.regex("a"), outcome, 20_000)
    assert (len(kept), kept.total_bytes) == (0, 0)
    kept.record_size(GrammarSpec.regex("a"), outcome, 20_000)
    assert kept.total_bytes == 0
