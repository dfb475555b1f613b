"""Long texts are worked on in turn for tenants, a bounded number at once, and not for clients that are gone."""

import asyncio
from concurrent.futures import Executor, Future

import pytest

from gateway.generation.text_pool import TextLane, TextPool
from gateway.http.bounds import MAX_INLINE_CHARS
from gateway.http.errors import ClientGone


class ManualExecutor(Executor):
    """Nothing runs until the test says so."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Future, object]] = []

    def submit(self, work, /):
        future: Future = Future()
        self.submitted.append((future, work))
        return future

    async def finish(self, position: int = 0) -> object:
        """Run a piece of those that run, the first submitted one unless it is said which."""
        future, work = self.submitted.pop(position)
        try:
            future.set_result(result := work())
        except Exception as error:
            future.set_exception(error)
            result = error
        for _ in range(5):
            await asyncio.sleep(0)
        return result


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def pieces(pool: TextPool, tenant: str, count: int) -> list[asyncio.Task]:
    return [asyncio.create_task(pool.run(tenant, lambda n=n: f"{tenant}{n}")) for n in range(count)]


async def test_tenants_take_turns():
    executor = ManualExecutor()
    pool = TextPool(executor, threads=1, per_tenant=1)
    tasks = pieces(pool, "a", 4)
    await settled()
    tasks += pieces(pool, "b", 2) + pieces(pool, "c", 1)
    await settled()
    assert pool.counts() == {"running": 1, "waiting": 6}
    assert [await executor.finish() for _ in range(7)] == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]
    assert await asyncio.gather(*tasks) == ["a0", "a1", "a2", "a3", "b0", "b1", "c0"]
    assert pool.counts() == {"running": 0, "waiting": 0}


async def test_one_tenant_leaves_a_thread_to_others():
    executor = ManualExecutor()
    pool = TextPool(executor, threads=2, per_tenant=1)
    tasks = pieces(pool, "a", 5)
    await settled()
    assert len(executor.submitted) == 1
    tasks += pieces(pool, "b", 1)
    await settled()
    assert await executor.finish(1) == "b0"
    assert len(executor.submitted) == 1
    assert [await executor.finish() for _ in range(5)] == [f"a{n}" for n in range(5)]
    await asyncio.gather(*tasks)


async def test_work_of_a_cancelled_caller_that_waits_never_begins():
    executor = ManualExecutor()
    pool = TextPool(executor, threads=1, per_tenant=1)
    first, second, third = pieces(pool, "a", 3)
    await settled()
    second.cancel()
    await settled()
    assert pool.counts() == {"running": 1, "waiting": 1}
    assert [await executor.finish(), await executor.finish()] == ["a0", "a2"]
    assert (await first, await third, second.cancelled()) == ("a0", "a2", True)


async def test_work_of_a_cancelled_caller_that_runs_counts_until_it_has_ended():
    executor = ManualExecutor()
    pool = TextPool(executor, threads=2, per_tenant=1)
    first, second = pieces(pool, "a", 2)
    await settled()
    first.cancel()
    await settled()
    assert pool.counts() == {"running": 1, "waiting": 1}
    await executor.finish()
    await executor.finish()
    assert await second == "a1"
    assert pool.counts() == {"running": 0, "waiting": 0}


async def test_what_fails_fails_for_its_caller_alone():
    executor = ManualExecutor()
    pool = TextPool(executor, threads=1, per_tenant=1)
    failing = asyncio.create_task(pool.run("a", lambda: 1 / 0))
    fine = asyncio.create_task(pool.run("a", lambda: 1))
    await settled()
    await executor.finish()
    await executor.finish()
    with pytest.raises(ZeroDivisionError):
        await failing
    assert await fine == 1


async def test_a_closed_pool_says_so():
    pool = TextPool()
    assert await pool.run("a", lambda: 1) == 1
    pool.close()
    with pytest.raises(RuntimeError):
        await pool.run("a", lambda: 1)


async def never():
    await asyncio.Event().wait()


async def test_short_text_runs_at_once_and_long_text_in_the_pool():
    executor = ManualExecutor()
    lane = TextLane(TextPool(executor, threads=1, per_tenant=1), "a", never)
    assert await lane.run(MAX_INLINE_CHARS, lambda: "short") == "short"
    assert executor.submitted == []
    long = asyncio.create_task(lane.run(MAX_INLINE_CHARS + 1, lambda: "long"))
    await settled()
    await executor.finish()
    assert await long == "long"


async def test_a_client_that_hangs_up_takes_its_work_along():
    executor = ManualExecutor()
    pool = TextPool(executor, threads=1, per_tenant=1)
    [before] = pieces(pool, "a", 1)
    gone = asyncio.Event()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    lane = TextLane(pool, "b", receive)
    waiting = asyncio.create_task(lane.run(MAX_INLINE_CHARS + 1, lambda: "never"))
    await settled()
    assert pool.counts() == {"running": 1, "waiting": 1}
    gone.set()
    with pytest.raises(ClientGone):
        await waiting
    assert pool.counts() == {"running": 1, "waiting": 0}
    await executor.finish()
    assert await before == "a0"
    assert executor.submitted == []
