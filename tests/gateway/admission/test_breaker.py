"""The breaker goes by the silence of the store, in virtual time: stalls, bursts, slow and broken stores."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.admission import StoreAway, breaker
from gateway.admission.breaker import CircuitBreaker
from gateway.admission.deadlines import CEILING_S, FLOOR_S
from tests.support.virtual_time import in_virtual_time, virtual_loop


class Store:
    """Answers each call after `latency_s`, or never, or with an error."""

    def __init__(self, latency_s: float | None = 0.001) -> None:
        self.latency_s = latency_s
        self.error: Exception | None = None
        self.probe_error: Exception | None = None
        self.calls = 0
        self.probes = 0
        self.abandoned = 0

    async def call(self) -> str:
        self.calls += 1
        if self.error is not None:
            raise self.error
        try:
            await (asyncio.Event().wait() if self.latency_s is None else asyncio.sleep(self.latency_s))
            for _ in range(2):
                await asyncio.sleep(0)  # the socket is read, then the answer
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        return "answer"

    async def probe(self) -> None:
        self.probes += 1
        if self.probe_error is not None:
            raise self.probe_error
        await self.call()


async def fails(call: Awaitable[object]) -> None:
    with pytest.raises(StoreAway):
        await call


def with_breaker(act: Callable[[CircuitBreaker, Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = Store()
        gate = CircuitBreaker(store.probe)
        await act(gate, store)
        await gate.aclose()

    in_virtual_time(run())


def test_a_stalling_process_finds_no_call_late() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        loop = virtual_loop()

        async def stall() -> None:
            while True:
                await asyncio.sleep(0.0004)
                loop.stall(3 * CEILING_S)

        stalling = asyncio.create_task(stall())
        answers = await asyncio.gather(*(gate.call(f"{n % 3}", store.call) for n in range(200)))
        stalling.cancel()
        assert set(answers) == {"answer"}
        assert (store.calls, gate.failures_total, gate.opened_total) == (200, 0, 0)

    with_breaker(act)


def test_waiting_for_one_another_is_no_failure() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        store.latency_s = FLOOR_S / 2
        await asyncio.gather(*(gate.call("a", store.call) for _ in range(1_000)))
        assert virtual_loop().time() > breaker.AWAY_S
        assert (store.calls, gate.failures_total, gate.opened_total) == (1_000, 0, 0)

    with_breaker(act)


def test_a_late_call_is_asked_again_and_answered() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        await gate.call("a", store.call)
        store.latency_s = None
        late = asyncio.create_task(gate.call("a", store.call))
        await asyncio.sleep(1.5 * FLOOR_S)
        store.latency_s = 0.001
        assert await late == "answer"
        assert (store.abandoned, gate.opened_total) == (2, 0)

    with_breaker(act)


def test_silence_opens_it_and_an_answer_closes_it() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        loop = virtual_loop()
        await gate.call("a", store.call)
        store.latency_s = None
        started = loop.time()
        await asyncio.gather(*(fails(gate.call(f"{n}", store.call)) for n in range(100)))
        assert loop.time() - started == pytest.approx(breaker.SILENT_S, abs=0.02)
        assert (gate.is_open, gate.is_away, gate.opened_total) == (True, False, 1)
        calls = store.calls
        await fails(gate.call("a", store.call))
        assert store.calls == calls, "nothing is asked while it is open"
        waited_s = await gate.wait_until_decided(60)
        assert gate.is_away
        assert breaker.SILENT_S + waited_s == pytest.approx(breaker.AWAY_S, abs=breaker.PROBE_S + CEILING_S)
        store.latency_s = 0.001
        await asyncio.sleep(breaker.PROBE_S + CEILING_S)
        assert not gate.is_open
        assert await gate.call("a", store.call) == "answer"

    with_breaker(act)


@pytest.mark.parametrize("latency_s", [0.06, 0.2])
def test_it_gets_used_to_a_store_that_is_slow_and_steady(latency_s: float) -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        store.latency_s = latency_s
        for _ in range(20):
            assert await gate.call("a", store.call) == "answer"
        assert (gate.failures_total, gate.opened_total) == (0, 0)

    with_breaker(act)


def test_a_store_beyond_the_ceiling_is_no_help() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        store.latency_s = CEILING_S + 0.05
        await fails(gate.call("a", store.call))
        assert gate.is_open
        await asyncio.sleep(2 * breaker.AWAY_S)
        assert gate.is_away

    with_breaker(act)


def test_a_few_failures_among_answers_do_not_open_it() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        broken = Store()
        broken.error = StoreAway("reset")
        failing = asyncio.create_task(fails(gate.call("unlucky", broken.call)))
        while not failing.done():
            await gate.call("lucky", store.call)
            await asyncio.sleep(0.01)
        assert gate.opened_total == 0
        assert broken.calls == pytest.approx(breaker.PATIENCE_S / breaker.RETRY_S, abs=1)

    with_breaker(act)


def test_errors_are_repeated_until_the_store_is_back() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        store.error = StoreAway("refused")
        call = asyncio.create_task(gate.call("a", store.call))
        await asyncio.sleep(breaker.SILENT_S - 1.5 * breaker.RETRY_S)
        store.error = None
        assert await call == "answer"
        assert gate.opened_total == 0

    with_breaker(act)


def test_an_error_of_ours_is_not_repeated() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        store.error = ValueError("a bug")
        with pytest.raises(ValueError, match="a bug"):
            await gate.call("a", store.call)
        assert (store.calls, gate.failures_total) == (1, 0)

    with_breaker(act)


def test_a_store_that_answers_probes_alone_does_not_flap() -> None:
    """Ten calls a second against a store whose probes succeed: the probes' distance grows to a second and stays."""

    async def act(gate: CircuitBreaker, store: Store) -> None:
        broken = Store()
        broken.error = StoreAway("broken")
        ends_at = virtual_loop().time() + 60
        while virtual_loop().time() < ends_at:
            await fails(gate.call("a", broken.call))
            await asyncio.sleep(0.1)
        assert gate.opened_total <= 60 / (breaker.PROBE_S + breaker.SILENT_S) + 5

    with_breaker(act)


def test_a_store_that_takes_no_writes_stays_away() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        full = StoreAway("out of memory")
        store.error = store.probe_error = full
        await fails(gate.call("a", store.call))
        await asyncio.sleep(60)
        assert (gate.is_away, gate.opened_total) == (True, 1)

    with_breaker(act)


def test_a_caller_who_gives_up_frees_the_slot() -> None:
    async def act(gate: CircuitBreaker, store: Store) -> None:
        await gate.call("a", store.call)
        store.latency_s = None
        calls = [asyncio.create_task(gate.call("a", store.call)) for _ in range(30)]
        await asyncio.sleep(0.001)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        store.latency_s = 0.001
        assert await asyncio.gather(*(gate.call("a", store.call) for _ in range(30))) == ["answer"] * 30
        assert gate.opened_total == 0

    with_breaker(act)
