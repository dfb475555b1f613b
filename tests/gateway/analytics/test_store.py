"""The contract of a store: the same statements have the same answers and the same errors, over HTTP and in this
process."""

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from gateway.analytics import (
    MAX_INSERT_ROWS,
    Analytics,
    AnalyticsAway,
    AnalyticsInUse,
    AnalyticsRefused,
    InvalidAnalyticsURL,
    open_analytics,
)

NOON = datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=UTC)
TABLE = """
CREATE TABLE things
(
    id UUID, text String, number Nullable(UInt64), money Int128, by_class Map(LowCardinality(String), UInt64),
    at DateTime64(3, 'UTC')
)
ENGINE = MergeTree ORDER BY id
"""
COLUMNS = ["id", "text", "number", "money", "by_class", "at"]
THING = (UUID(int=1), "it's\t\\ \n'; DROP TABLE things", None, -(2**100), {"premium": 7}, NOON)
OTHER = (UUID(int=2), "", 2**64 - 1, 2**100, {}, NOON)


@pytest.fixture
async def things(empty_analytics: Analytics) -> Analytics:
    await empty_analytics.command(TABLE)
    return empty_analytics


async def test_rows_come_back_as_they_went_in(things: Analytics) -> None:
    await things.insert("things", COLUMNS, [THING, OTHER])
    assert await things.query("SELECT * FROM things ORDER BY id") == [THING, OTHER]


async def test_parameters_are_bound(things: Analytics) -> None:
    await things.insert("things", COLUMNS, [THING, OTHER])

    async def count(condition: str, **parameters: str | int | UUID | list[UUID]) -> int:
        [(found,)] = await things.query(f"SELECT count() FROM things WHERE {condition}", parameters)
        return int(found)

    assert await count("text = {text:String}", text=THING[1]) == 1
    assert await count("id = {id:UUID}", id=OTHER[0]) == 1
    assert await count("id IN {ids:Array(UUID)}", ids=[THING[0], OTHER[0]]) == 2
    assert await count("money < {money:Int64}", money=0) == 1
    assert await count("at = fromUnixTimestamp64Milli({ms:Int64}, 'UTC')", ms=int(NOON.timestamp() * 1000)) == 2


async def test_a_command_answers_nothing_and_is_carried_out(things: Analytics) -> None:
    await things.insert("things", COLUMNS, [THING, OTHER])
    await things.command("ALTER TABLE things DELETE WHERE id = {id:UUID} SETTINGS mutations_sync = 1", {"id": THING[0]})
    assert await things.query("SELECT id FROM things") == [(OTHER[0],)]


@pytest.mark.parametrize("batch", [[], [THING] * (MAX_INSERT_ROWS + 1)], ids=["empty", "too many"])
async def test_a_batch_is_bounded(things: Analytics, batch: list[tuple[object, ...]]) -> None:
    with pytest.raises(ValueError, match="rows"):
        await things.insert("things", COLUMNS, batch)


async def test_a_batch_is_one_block(things: Analytics) -> None:
    long = [(UUID(int=number), "x" * 2000, number, 0, {}, NOON) for number in range(MAX_INSERT_ROWS)]
    await things.insert("things", COLUMNS, long)
    assert await things.query(
        "SELECT rows FROM system.parts WHERE table = 'things' AND database = currentDatabase()"
    ) == [(MAX_INSERT_ROWS,)]


async def test_without_a_token_equal_rows_are_stored_each_time(things: Analytics) -> None:
    await things.command("ALTER TABLE things MODIFY SETTING non_replicated_deduplication_window = 100")
    for _ in range(3):
        await things.insert("things", COLUMNS, [THING])
    assert await things.query("SELECT count() FROM things") == [(3,)]


async def test_what_is_wrong_is_refused_with_clickhouse_code(things: Analytics) -> None:
    for sql, code in [("SELECT 1 FRM 2 3", 62), ("SELECT * FROM not_there", 60), ("SELECT nix FROM things", 47)]:
        with pytest.raises(AnalyticsRefused) as error:
            await things.query(sql)
        assert error.value.code == code
        assert "\n" not in str(error.value)
    with pytest.raises(AnalyticsRefused) as error:
        await things.command("DROP TABLE not_there")
    assert error.value.code == 60
    with pytest.raises(AnalyticsRefused) as error:
        await things.query("SELECT {number:UInt8}", {"number": "many"})
    assert error.value.code == 457


@pytest.mark.parametrize("wrong", [("id", "no uuid"), ("number", -1), ("money", "ten"), ("at", "noon"), ("text", 5)])
async def test_a_batch_with_wrong_data_is_refused_whole(things: Analytics, wrong: tuple[str, object]) -> None:
    column, value = wrong
    bad = [value if name == column else good for name, good in zip(COLUMNS, OTHER, strict=True)]
    with pytest.raises(AnalyticsRefused):
        await things.insert("things", COLUMNS, [THING, bad])
    with pytest.raises(AnalyticsRefused):
        await things.insert("things", [*COLUMNS[:-1], "not_there"], [THING])
    assert await things.query("SELECT * FROM things") == []


async def test_many_tasks_may_ask_at_once(things: Analytics) -> None:
    async def one(number: int) -> None:
        await things.insert("things", COLUMNS, [(UUID(int=number), *OTHER[1:])])
        assert await things.query("SELECT id FROM things WHERE id = {id:UUID}", {"id": UUID(int=number)}) == [
            (UUID(int=number),)
        ]

    async with asyncio.TaskGroup() as all_of_them:
        for number in range(20):
            all_of_them.create_task(one(number))


async def test_what_was_stored_outlives_its_store(analytics_url: str) -> None:
    first = open_analytics(analytics_url)
    await first.command(TABLE)
    await first.insert("things", COLUMNS, [THING])
    await first.aclose()
    second = open_analytics(analytics_url)
    assert await second.query("SELECT * FROM things") == [THING]
    await second.aclose()


async def test_memory_is_forgotten() -> None:
    for _ in range(2):
        store = open_analytics("chdb://memory")
        await store.command(TABLE)
        await store.aclose()


async def test_the_engine_never_runs_on_the_event_loop(embedded_url: str) -> None:
    """While a statement runs, the loop keeps running: it can count the statement's threads, of which there is one."""
    store = open_analytics(embedded_url)
    asking = asyncio.create_task(store.query("SELECT sleep(0.3), getSetting('max_threads')"))
    ticks = 0
    while not asking.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert await asking == [(0, 1)]
    assert ticks > 1
    assert [each.name for each in threading.enumerate() if "turnpike-analytics" in each.name] == [
        "turnpike-analytics_0"
    ]
    await store.aclose()


async def test_a_cancelled_caller_leaves_the_store_usable(empty_analytics: Analytics) -> None:
    asking = asyncio.create_task(empty_analytics.query("SELECT sleep(0.2)"))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await empty_analytics.query("SELECT 1") == [(1,)]


async def test_a_folder_has_one_owner(embedded_url: str, tmp_path: Path) -> None:
    store = open_analytics(embedded_url)
    await store.query("SELECT 1")

    other_folder = open_analytics(f"chdb://{tmp_path / 'other'}")
    with pytest.raises(AnalyticsInUse, match="another embedded store"):
        await other_folder.query("SELECT 1")
    await other_folder.aclose()

    program = f"""
import asyncio
from gateway.analytics import AnalyticsInUse, open_analytics

async def main():
    store = open_analytics({embedded_url!r})
    try:
        await store.query("SELECT 1")
    except AnalyticsInUse as error:
        print(error)
    await store.aclose()

asyncio.run(main())
"""
    other = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True)
    assert "belongs to another process" in other.stdout, other.stderr
    assert str(tmp_path) in other.stdout

    assert await store.query("SELECT 1") == [(1,)]
    await store.aclose()


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = open_analytics(f"chdb://{tmp_path / 'file' / 'folder'}")
    with pytest.raises(AnalyticsAway, match="cannot make the folder"):
        await store.query("SELECT 1")
    await store.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite:///usage.db",
        "chdb://",
        "chdb://relative/folder",
        "chdb:///folder?progress=tty",
        "http://",
        "http://host:port/usage",
        "http://user:hunter2@host:99999/usage",
        "http://user:hunter2@host/usage/more",
        "http://user:hunter2@host/usage?compress=1",
        "tcp://user:hunter2@host:9000/usage",
    ],
)
async def test_a_url_that_names_no_store(url: str) -> None:
    with pytest.raises(InvalidAnalyticsURL) as error:
        open_analytics(url)
    assert "hunter2" not in str(error.value)
