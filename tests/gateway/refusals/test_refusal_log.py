"""Each recorded refusal is stored once, even if the store's responses are lost; one that is not stored is counted."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from gateway.analytics import AnalyticsRefused, migrate, open_analytics
from gateway.analytics.refusals import RefusalDimension, count_refusals, latest_refusals
from gateway.analytics.sums import TimeRange
from gateway.refusals import refusal_log as module
from gateway.refusals.metrics import RefusalCollector
from gateway.refusals.refusal_log import MAX_LABELLED_TENANTS, RefusalLog
from gateway.telemetry.outcomes import RequestOutcome
from tests.support.refusal_samples import TODAY_MS, a_refusal
from tests.support.refusal_table import AWAY, RefusalTable

LIMITED = a_refusal()


@pytest.fixture
def table() -> RefusalTable:
    return RefusalTable()


@pytest.fixture
def log(table: RefusalTable) -> RefusalLog:
    return RefusalLog(table, "journal-1")


async def test_a_flush_stores_what_was_recorded_and_nothing_twice(log: RefusalLog, table: RefusalTable) -> None:
    for _ in range(3):
        log.record(LIMITED)
    assert (log.unstored_requests, table.requests) == (3, 0)
    await log.flush()
    await log.flush()
    assert (log.unstored_requests, table.requests, table.inserts) == (0, 3, [1])
    log.record(LIMITED)
    await log.flush()
    assert (table.requests, len(table.rows)) == (4, 2)


@pytest.mark.parametrize("loses_answers", [False, True])
async def test_a_flush_is_repeated_until_it_is_acknowledged(
    log: RefusalLog, table: RefusalTable, loses_answers: bool
) -> None:
    """Rows that were stored with a lost answer are stored again under the same ids."""
    table.failures, table.loses_answers = [AWAY, AWAY], loses_answers
    log.record(LIMITED)
    await log.flush()
    log.record(a_refusal(code="overloaded"))
    await log.flush()
    assert log.unstored_requests == 2
    await log.flush()
    assert (log.unstored_requests, log.dropped_total) == (0, 0)
    assert table.by_code() == {("t1", "rate_limit_exceeded"): 1, ("t1", "overloaded"): 1}


async def test_while_the_store_is_away_the_oldest_rows_are_dropped_and_counted(
    log: RefusalLog, table: RefusalTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BUFFERED_ROWS", 3)
    table.failures = [AWAY] * 5
    for code in "abcde":
        log.record(a_refusal(code=code))
        log.record(a_refusal(code=code))
        await log.flush()
    assert (log.unstored_requests, log.dropped_total) == (6, 4)
    await log.flush()
    assert table.by_code() == {("t1", code): 2 for code in "cde"}
    assert log.unstored_requests == 0


async def test_rows_that_the_store_rejects_do_not_keep_others_waiting(log: RefusalLog, table: RefusalTable) -> None:
    table.failures = [AnalyticsRefused("no such table")]
    log.record(LIMITED)
    await log.flush()
    log.record(a_refusal(code="overloaded"))
    await log.flush()
    assert (log.dropped_total, log.unstored_requests) == (1, 0)
    assert table.by_code() == {("t1", "overloaded"): 1}


async def test_many_rows_are_stored_in_several_inserts(
    log: RefusalLog, table: RefusalTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INSERT_ROWS", 4)
    for number in range(10):
        log.record(a_refusal(model=f"model-{number}"))
    table.failures = [AWAY]
    await log.flush()
    await log.flush()
    assert table.inserts == [4, 4, 4, 2]
    assert table.requests == 10


async def test_refusals_are_flushed_by_time_and_at_the_end(table: RefusalTable) -> None:
    log = RefusalLog(table, "a", flush_s=0.01)
    log.start()
    log.record(LIMITED)
    async with asyncio.timeout(5):
        while not table.rows:
            await asyncio.sleep(0.01)
    log.record(a_refusal(code="overloaded"))
    await log.aclose(deadline_s=1)
    assert table.requests == 2


async def test_the_end_does_not_wait_for_a_silent_store(monkeypatch: pytest.MonkeyPatch, log: RefusalLog) -> None:
    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RefusalTable, "insert", silent)
    log.record(LIMITED)
    async with asyncio.timeout(5):
        await log.aclose(deadline_s=0.05)
    assert log.unstored_requests == 1


async def test_a_cancelled_flush_is_repeated(
    log: RefusalLog, table: RefusalTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, asked = RefusalTable.insert, asyncio.Event()

    async def late(*arguments: object) -> None:
        await insert(*arguments)  # type: ignore[arg-type]
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(RefusalTable, "insert", late)
    log.record(LIMITED)
    flush = asyncio.create_task(log.flush())
    await asked.wait()
    flush.cancel()
    await asyncio.wait([flush])
    monkeypatch.setattr(RefusalTable, "insert", insert)
    await log.flush()
    assert (table.requests, log.unstored_requests) == (1, 0)


async def test_the_metric_has_a_bounded_number_of_tenants(log: RefusalLog) -> None:
    registry = CollectorRegistry()
    registry.register(RefusalCollector(log))

    def shown(tenant: str, code: str = "rate_limit_exceeded") -> float | None:
        return registry.get_sample_value("turnpike_refused_requests_total", {"tenant": tenant, "code": code})

    for number in range(MAX_LABELLED_TENANTS + 5):
        log.record(a_refusal(tenant_id=f"t{number}", tenant_name=f"name{number}"))
    log.record(a_refusal(tenant_id="t0", tenant_name="name0"))
    log.record(a_refusal(tenant_id="", tenant_name="", code="invalid_api_key"))
    log.record(a_refusal(outcome=RequestOutcome.FAILED, code="service_unavailable"))
    assert shown("name0") == 2
    assert shown(f"name{MAX_LABELLED_TENANTS - 1}") == 1
    assert shown(f"name{MAX_LABELLED_TENANTS}") is None
    assert shown("(other)") == 5
    assert shown("(unknown)", "invalid_api_key") == 1
    assert len(log.refused_total) == MAX_LABELLED_TENANTS + 2, "a failure is no refusal"
    assert registry.get_sample_value("turnpike_refusals_unstored") == MAX_LABELLED_TENANTS + 8
    assert registry.get_sample_value("turnpike_refusals_dropped_total") == 0


async def test_a_flood_is_few_rows_in_the_store(tmp_path) -> None:
    """Of 20,000 refusals for invented models, ClickHouse has one tenant's rows, and the count of all."""
    analytics = open_analytics(f"chdb://{tmp_path / 'analytics'}")
    await migrate(analytics)
    log = RefusalLog(analytics, "journal-1")
    for number in range(20_000):
        log.record(a_refusal(model=f"model-{number}", code="model_not_found"))
    await log.flush()
    window = TimeRange(TODAY_MS, TODAY_MS + 60_000)
    [count] = await count_refusals(analytics, window, by=[RefusalDimension.CODE])
    assert count.requests == 20_000
    assert len((await latest_refusals(analytics, window, limit=1000)).refusals) == 101
    await analytics.aclose()
