"""A server that fails: callers get one of two errors in time, and no row is stored twice or in part."""

import asyncio
import logging
import random
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from gateway.analytics import Analytics, AnalyticsAway, AnalyticsError, migrate, open_analytics
from gateway.analytics.clickhouse import ClickHouse, ServerAddress
from gateway.analytics.rollups import rebuild
from gateway.analytics.sums import Grain
from gateway.analytics.usage import series
from tests.support.clickhouse_server import ClickHouseServer, running_clickhouse
from tests.support.fault_proxy import SLOW_S, Fault, fault_proxy
from tests.support.usage_samples import MARCH, MARCH_MS, Event, event, store

BATCH_EVENTS = 200
KILLS = 5
ROOT = Path(__file__).parents[3]


@pytest.fixture
def own_clickhouse() -> Iterator[ClickHouseServer]:
    with running_clickhouse() as server:
        yield server


@pytest.mark.parametrize("fault", [each for each in Fault if each is not Fault.NONE])
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not yet connected"])
async def test_each_fault_is_away_and_passes(
    clickhouse_server: ClickHouseServer, caplog: pytest.LogCaptureFixture, fault: Fault, connected: bool
) -> None:
    url = clickhouse_server.new_database()
    patient = open_analytics(url)
    await migrate(patient)
    await patient.aclose()
    async with fault_proxy(clickhouse_server.port) as proxy:
        analytics = impatient(clickhouse_server, url.rpartition("/")[2], proxy.port)
        if connected:
            await analytics.query("SELECT 1")
        await proxy.set(fault)
        for call in (
            lambda: analytics.command("CREATE TABLE t (n UInt8) ENGINE = Memory"),
            lambda: analytics.query("SELECT 1"),
            lambda: store(analytics, [event(1)]),
        ):
            with pytest.raises(AnalyticsAway) as error:
                await call()
            assert_no_secret(error.value, caplog)
        await proxy.set(Fault.NONE)
        assert await analytics.query("SELECT 1") == [(1,)]
        await analytics.aclose()


@pytest.mark.parametrize("how", ["wrong password", "wrong user"])
async def test_who_is_not_let_in_is_told_so_without_the_password(
    clickhouse_server: ClickHouseServer, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    right = clickhouse_server.url()
    wrong = right.replace("turnpike:", "turnpike:not-") if how == "wrong password" else right.replace("turnpike", "eve")
    analytics = open_analytics(wrong)
    with pytest.raises(AnalyticsAway, match="user") as error:
        await analytics.query("SELECT 1")
    assert_no_secret(error.value, caplog)
    assert ClickHouseServer.password not in repr(vars(analytics))
    await analytics.aclose()


async def test_timeouts_after_success_store_nothing_twice(clickhouse_server: ClickHouseServer) -> None:
    """Each answer is lost until the third attempt: the rows have long been there."""
    url = clickhouse_server.new_database()
    patient = open_analytics(url)
    await migrate(patient)
    await patient.aclose()
    async with fault_proxy(clickhouse_server.port) as proxy:
        analytics = impatient(clickhouse_server, url.rpartition("/")[2], proxy.port)
        for number in range(1, 6):
            await proxy.set(Fault.SLOW)
            for _ in range(2):
                with pytest.raises(AnalyticsAway):
                    await store(analytics, [event(number)], f"batch-{number}")
            await proxy.set(Fault.NONE)
            await until_stored(analytics, [event(number)], f"batch-{number}")
        assert await analytics.query("SELECT count() FROM usage_events FINAL") == [(5,)]
        assert [each.sums.events for each in await series(analytics, Grain.DAY, MARCH)] == [5]
        await analytics.aclose()


@pytest.mark.parametrize("table", ["usage_events", *(grain.table for grain in Grain)])
async def test_a_batch_outlives_a_kill_between_its_token_and_its_rows(
    own_clickhouse: ClickHouseServer, table: str
) -> None:
    """Events are there when the repeated batch is acknowledged, and what a sum has missed is added by a rebuild."""
    analytics = open_analytics(own_clickhouse.url())
    await migrate(analytics)
    await analytics.command("SYSTEM STOP MERGES")
    await store(analytics, [event(1)], "first")
    batch = [event(2), event(3)]
    await store(analytics, batch, "second")
    own_clickhouse.kill_before_storing(await newest_part(analytics, table))
    own_clickhouse.start()

    await until_stored(analytics, batch, "second")
    assert await analytics.query("SELECT count() FROM usage_events FINAL") == [(3,)]
    await rebuild(analytics, MARCH)
    for grain in Grain:
        assert [each.sums.events for each in await series(analytics, grain, MARCH)] == [3]
    await analytics.aclose()


async def test_a_correction_outlives_a_kill_between_its_token_and_its_rows(own_clickhouse: ClickHouseServer) -> None:
    analytics = open_analytics(own_clickhouse.url())
    await migrate(analytics)
    await analytics.command("SYSTEM STOP MERGES")
    for token in ("first", "second"):
        await store(analytics, [event(1)], token)
    assert await rebuild(analytics, MARCH) == len(Grain)
    own_clickhouse.kill_before_storing(await newest_part(analytics, Grain.HOUR.table))
    own_clickhouse.start()
    await reconnect(analytics)

    await rebuild(analytics, MARCH)
    for grain in Grain:
        assert [each.sums.events for each in await series(analytics, grain, MARCH)] == [1]
    await analytics.aclose()


async def test_a_batch_is_on_the_disk_when_it_is_acknowledged(own_clickhouse: ClickHouseServer) -> None:
    analytics = open_analytics(own_clickhouse.url())
    await migrate(analytics)
    synced = "SELECT sumIf(value, event = 'FileSync'), sumIf(value, event = 'DirectorySync') FROM system.events"
    [(files, folders)] = await analytics.query(synced)
    await store(analytics, [event(1)], "token")
    [(files_after, folders_after)] = await analytics.query(synced)
    assert files_after > files
    assert folders_after > folders
    await analytics.aclose()


async def test_kill_after_kill_loses_nothing_and_doubles_nothing(own_clickhouse: ClickHouseServer) -> None:
    """A sink stores batch after batch, each until it is acknowledged, while the server is killed under it."""
    analytics = open_analytics(own_clickhouse.url())
    await migrate(analytics)
    stored = 0
    done = asyncio.Event()

    async def sink() -> None:
        nonlocal stored
        while not done.is_set():
            first = stored * BATCH_EVENTS + 1
            batch = [event(n, MARCH_MS + n * 1000) for n in range(first, first + BATCH_EVENTS)]
            await until_stored(analytics, batch, f"events-0-{first}")
            stored += 1

    storing = asyncio.create_task(sink())
    chance = random.Random(17)
    for _ in range(KILLS):
        before = stored
        while stored < before + 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(chance.random() * 0.05)
        await asyncio.to_thread(own_clickhouse.kill)
        await asyncio.to_thread(own_clickhouse.start)
    done.set()
    await storing

    expected = stored * BATCH_EVENTS
    assert await analytics.query("SELECT count() FROM usage_events FINAL") == [(expected,)]
    await rebuild(analytics, MARCH)  # a kill may have taken a batch from a sum
    for grain in Grain:
        assert sum(each.sums.events for each in await series(analytics, grain, MARCH)) == expected
    await analytics.aclose()


async def test_a_folder_survives_the_death_of_its_owner(embedded_url: str) -> None:
    program = f"""
import asyncio, os, signal
from gateway.analytics import migrate, open_analytics
from tests.support.usage_samples import event, store

async def main():
    analytics = open_analytics({embedded_url!r})
    await migrate(analytics)
    await store(analytics, [event(1), event(2)], "token")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=ROOT)
    assert await process.wait() == -signal.SIGKILL
    analytics = open_analytics(embedded_url)
    await migrate(analytics)
    await store(analytics, [event(1), event(2)], "token")
    assert await analytics.query("SELECT count() FROM usage_events FINAL") == [(2,)]
    assert [each.sums.events for each in await series(analytics, Grain.DAY, MARCH)] == [2]
    await analytics.aclose()


async def until_stored(analytics: Analytics, batch: Sequence[Event], token: str) -> None:
    """As a sink does: the same batch until it is acknowledged."""
    while True:
        try:
            return await store(analytics, batch, token)
        except AnalyticsAway:
            await asyncio.sleep(0.02)


async def reconnect(analytics: Analytics) -> None:
    """The first call after a restart finds a connection that is gone."""
    with suppress(AnalyticsAway):
        await analytics.query("SELECT 1")


async def newest_part(analytics: Analytics, table: str) -> Path:
    """The folder of a table's last insert, without merges."""
    [(path,)] = await analytics.query(
        "SELECT argMax(path, min_block_number) FROM system.parts WHERE table = {table:String}",
        {"table": table},
    )
    return Path(path)


def impatient(server: ClickHouseServer, database: str, port: int) -> ClickHouse:
    """Too impatient for `Fault.SLOW`."""
    return ClickHouse(ServerAddress("http", "127.0.0.1", port, server.user, server.password, database), SLOW_S / 4)


def assert_no_secret(error: AnalyticsError, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in what is raised nor in what is logged, with their causes and contexts."""
    caplog.set_level(logging.DEBUG)
    told = "".join(traceback.format_exception(error)) + caplog.text
    assert ClickHouseServer.password not in told
    assert quote(ClickHouseServer.password, safe="") not in told
