"""Property: whatever order its changes come in, a batch takes only edges of the states, and its row says when. Results
recover from any cut."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.batches.errors import BatchConflict, BatchTaken, TooManyBatches
from gateway.batches.records import EDGES, OPEN, WINDOW, Batch, Status, new_batch_id
from gateway.batches.results import Result, Results
from gateway.batches.store import BatchStore
from gateway.tenancy import open_database
from tests.support.batch_app import BatchGateway

NOW = datetime(2026, 11, 27, tzinfo=UTC)
ENTERED = st.sampled_from([status for status in Status if status is not Status.CANCELLING])


def a_batch(tenant_id: str = "tenant-1") -> Batch:
    return Batch(
        id=new_batch_id(),
        tenant_id=tenant_id,
        key_id="pubid1",
        endpoint="/v1/responses",
        input_file_id="file-1",
        status=Status.VALIDATING,
        created_at=NOW,
        expires_at=NOW + WINDOW,
    )


@settings(max_examples=25, deadline=None)
@given(changes=st.lists(st.one_of(ENTERED, st.just("cancel")), max_size=8), stale=st.booleans())
def test_only_edges_are_taken(changes: list[Status | str], stale: bool) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_take(BatchStoreOf(Path(folder)), changes, stale))


class BatchStoreOf:
    """Makes the database before the event loop of a test."""

    def __init__(self, folder: Path) -> None:
        self.url = BatchGateway(folder).url


async def _take(made: BatchStoreOf, changes: list[Status | str], stale: bool) -> None:
    database = open_database(made.url)
    try:
        store, first = BatchStore(database), a_batch()
        await store.create(first, 1)
        with pytest.raises(TooManyBatches):
            await store.create(a_batch(), 1)
        current, entered = await store.find(first.id), [Status.VALIDATING]
        for number, change in enumerate(changes):
            at = NOW + timedelta(seconds=number + 1)
            if change == "cancel":
                allowed = Status.CANCELLING in EDGES[current.status]
                already = current.status in (Status.CANCELLING, Status.CANCELLED)
                if allowed or already:
                    current = await store.cancel(first.id, "tenant-1", at)
                else:
                    with pytest.raises(BatchConflict):
                        await store.cancel(first.id, "tenant-1", at)
                if allowed:
                    entered.append(Status.CANCELLING)
                continue
            assert isinstance(change, Status)
            if change not in EDGES[current.status]:
                with pytest.raises(AssertionError):
                    await store.enter(current, change, at)
                continue
            before, current = current, await store.enter(current, change, at)
            entered.append(change)
            if stale:  # a process that lost its lease knows a former state
                with pytest.raises(BatchConflict):
                    await store.enter(before, change, at)
        found = await store.find(first.id)
        assert found.status is entered[-1]
        assert set(found.times) == set(entered) - {Status.VALIDATING}
        assert (list(found.times.values()) and len(set(found.times.values())) == len(found.times)) or not found.times
        claimed = await store.claim("one", NOW, 10)
        assert (claimed is not None) == (found.status in OPEN)
        assert await store.claim("two", NOW + timedelta(seconds=9), 10) is None
        if claimed is not None:
            assert await store.renew(first.id, "two", NOW, 10) is None
            assert await store.claim("two", NOW + timedelta(seconds=11), 10) is not None
            assert await store.renew(first.id, "one", NOW, 10) is None
    finally:
        await database.dispose()


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(0, 2000), marked=st.integers(0, 5), garbage=st.sampled_from([b"", b"{", b'{"line"', b"\0\0\n"]))
def test_results_recover_from_any_cut(cut: int, marked: int, garbage: bytes) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_recover(Path(folder), cut, marked, garbage))


async def _recover(folder: Path, cut: int, marked: int, garbage: bytes) -> None:
    results = Results(folder, "batch_1", "journal-1")
    with pytest.raises(BatchTaken):
        Results(folder, "batch_1", "journal-1")
    ends = []
    path = folder / "batch_1" / "results.jsonl"
    for line in range(1, 6):
        await results.add(Result(line, line == 3, {"custom_id": str(line)}, event=None if line == 3 else "{}"))
        ends.append(path.stat().st_size)
        if line <= marked:
            results.mark_billed(line)
    await results.aclose()
    content = path.read_bytes()[:cut]
    path.write_bytes(content + (garbage if cut < len(path.read_bytes()) else b""))
    again = Results(folder, "batch_1", "journal-1")
    try:
        assert again.done == {line for line, end in enumerate(ends, 1) if end <= len(content)}
        assert set(again.unbilled) <= again.done - {3}
        assert again.completed + again.failed == len(again.done)
        await again.add(Result(9, False, {"custom_id": "9"}))
    finally:
        await again.aclose()
    last = Results(folder, "batch_1", "journal-1")
    assert last.done == again.done | {9}
    await last.remove()
    assert not (folder / "batch_1").exists()
