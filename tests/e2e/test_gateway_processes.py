"""`gateway_processes`: two gateway processes behind one port, over one engine process, each of which is killed."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import orjson
import pytest

from benchmarks.worker_kills import Stream, ask, body
from gateway.process.journals import journal_path_of
from tests.support.gateway_processes import LIMIT, Group, Stores, children, is_alive, running_group, wait
from tests.support.servers import new_postgres_database
from tests.support.tiny_models import make_checkpoint
from tests.support.usage_requests import journalled

COUNT = 2
LOST_S = 0.6
"""Before the end of a killed process: what it had sent until then is billed. Two intervals of the journal, and the time
that a busy machine may take for a commit."""
CLIENTS = 12


@pytest.fixture(scope="module")
def group(postgres, redis_server, clickhouse_server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("gateway-processes")
    model = make_checkpoint(folder / "model", "llama", max_position_embeddings=1024)
    stores = Stores(new_postgres_database(postgres.url), redis_server.url, clickhouse_server.new_database())
    environment = {"TURNPIKE_KV_CACHE_BYTES": "8MiB", "TURNPIKE_THREADS": "1", "TURNPIKE_SHUTDOWN_DEADLINE_S": "15"}
    environment["TURNPIKE_GATEWAY_SILENCE_S"] = "8"
    with running_group(
        folder / "data", stores, "--model", f"tiny={model}", count=COUNT, environment=environment
    ) as group:
        yield group


@dataclass(slots=True)
class Received:
    """One stream as its client has it: the moment of each token, and the usage if the stream has ended."""

    id: str = ""
    arrivals_s: list[float] = field(default_factory=list)
    usage: dict | None = None
    over_s: float = 0.0


async def _stream(client: httpx.AsyncClient, key: str, tokens: int, received: Received) -> Received:
    request = {
        "model": "tiny",
        "prompt": "Once upon a time",
        "max_tokens": tokens,
        "ignore_eos": True,
        "logprobs": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {key}", "connection": "close"}
    with suppress(httpx.TransportError, orjson.JSONDecodeError):  # the latter of an event that was cut
        async with client.stream("POST", "/v1/completions", json=request, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = orjson.loads(line[6:])
                received.id = chunk["id"]
                received.usage = chunk.get("usage") or received.usage
                for choice in chunk["choices"]:
                    received.arrivals_s += [time.monotonic()] * len((choice["logprobs"] or {}).get("tokens", ()))
    received.over_s = time.monotonic()
    return received


async def _until_all_have_tokens(streams: list[Received], tasks: list[asyncio.Task[Received]]) -> None:
    async with asyncio.timeout(60):
        while not all(len(each.arrivals_s) >= 5 for each in streams):
            assert not any(task.done() and task.exception() for task in tasks)
            await asyncio.sleep(0.01)


def _statuses(group: Group, key: str, count: int) -> list[int]:
    """Of short requests, each on a connection of its own."""
    statuses = []
    for _ in range(count):
        answer = httpx.post(
            f"{group.url}/v1/completions",
            json={"model": "tiny", "prompt": "Hello", "max_tokens": 1},
            headers={"authorization": f"Bearer {key}"},
            timeout=30,
        )
        statuses.append(answer.status_code)
    return statuses


def _answered(group: Group) -> dict[str, float]:
    """Requests by process, from one scrape."""
    name = 'gen_ai_server_request_duration_seconds_count{process="'
    counts: dict[str, float] = {}
    for series, value in group.metrics().items():
        if series.startswith(name):
            process = series.removeprefix(name)[0]
            counts[process] = counts.get(process, 0.0) + value
    return counts


def test_requests_are_spread_and_one_scrape_has_them_all(group: Group) -> None:
    before = _answered(group)
    assert set(_statuses(group, group.key, 24)) == {200}
    after = _answered(group)
    spread = {process: after[process] - before.get(process, 0.0) for process in after}
    assert set(spread) == {"0", "1"}
    assert min(spread.values()) > 0
    assert sum(spread.values()) == 24
    engine = [series for series in group.metrics() if series.startswith("turnpike_sequences_running")]
    assert engine == ['turnpike_sequences_running{gen_ai_request_model="tiny"}'], "the engine is there once"


def test_limits_hold_over_all(group: Group) -> None:
    statuses = _statuses(group, group.limited, 2 * LIMIT)
    assert statuses.count(200) == LIMIT
    assert statuses.count(429) == LIMIT


async def _amid_streams(group: Group, pid: int, number: signal.Signals, later: int = 0) -> list[Received]:
    """Send a signal to a process once all streams of `CLIENTS` clients have begun, and read them to their ends, with
    those of `later` further clients."""
    async with httpx.AsyncClient(base_url=group.url, timeout=60) as client:
        streams = [Received() for _ in range(CLIENTS)]
        tasks = [asyncio.create_task(_stream(client, group.key, 700, each)) for each in streams]
        await _until_all_have_tokens(streams, tasks)
        os.kill(pid, number)
        tasks += [asyncio.create_task(_stream(client, group.key, 20, Received())) for _ in range(later)]
        return await asyncio.gather(*tasks)


def test_a_killed_gateway_process_is_started_again_and_bills_what_it_sent(group: Group) -> None:
    first = group.gateways()[0]
    starts = group.total("turnpike_gateway_process_starts_total")
    received = asyncio.run(_amid_streams(group, first, signal.SIGKILL, later=4))
    group.until_complete(COUNT)
    assert group.total("turnpike_gateway_process_starts_total") == starts + 1
    assert not is_alive(first)
    journals = [journal_path_of(group.data_dir / "usage" / "journal.db", index) for index in range(COUNT)]
    wait(lambda: group.total("turnpike_usage_backlog_events") == 0, 30)
    events = {event.request_id: event for path in journals for event in journalled(path)}
    assert len(events) == sum(len(journalled(path)) for path in journals), "a request is billed twice"

    ended = [each for each in received if each.usage is not None]
    cut = [each for each in received if each.usage is None and each.id]
    assert ended, "the other process has answered"
    assert cut, "the kill met no stream"
    for each in ended:
        assert each.usage is not None
        event = events[each.id]
        assert len(each.arrivals_s) == each.usage["completion_tokens"] == event.completion_tokens
        assert event.prompt_tokens == each.usage["prompt_tokens"]
    for each in cut:
        billed = events[each.id].completion_tokens if each.id in events else 0
        certain = sum(at < each.over_s - LOST_S for at in each.arrivals_s)
        assert certain <= billed <= len(each.arrivals_s), f"{billed} billed, {len(each.arrivals_s)} received"


def test_a_gateway_process_that_hangs_is_killed_and_bills_what_it_sent(group: Group) -> None:
    """Stopped, with streams that it had begun: no request is lost that the other process takes."""
    hung = group.gateways()[0]
    starts = group.total("turnpike_gateway_process_starts_total")
    received = asyncio.run(_amid_streams(group, hung, signal.SIGSTOP))
    group.until_complete(COUNT)
    assert not is_alive(hung)
    assert group.total("turnpike_gateway_process_starts_total") == starts + 1
    assert f'"pid":{hung},' in group.log, group.log
    wait(lambda: group.total("turnpike_usage_backlog_events") == 0, 30)
    journals = [journal_path_of(group.data_dir / "usage" / "journal.db", index) for index in range(COUNT)]
    events = {event.request_id: event for path in journals for event in journalled(path)}
    cut = [each for each in received if each.usage is None and each.id]
    assert cut, "the stopped process had no stream"
    for each in cut:
        billed = events[each.id].completion_tokens if each.id in events else 0
        last_s = each.arrivals_s[-1]
        certain = sum(at < last_s - LOST_S for at in each.arrivals_s)
        assert certain <= billed <= len(each.arrivals_s), f"{billed} billed, {len(each.arrivals_s)} received"
    for each in received:
        if each.usage is not None:
            assert events[each.id].completion_tokens == len(each.arrivals_s)


def test_streams_of_all_processes_outlive_the_engine(group: Group) -> None:
    async def answers(*, killed: int | None = None) -> list[Stream]:
        # A connection each, so that both processes have some.
        streams: list[Stream] = []
        async with httpx.AsyncClient(base_url=group.url, timeout=60) as client:
            tasks = [
                asyncio.create_task(ask(client, group.key, job, body("tiny", job % 2, 500), streams.append))
                for job in range(CLIENTS)
            ]
            if killed is not None:
                async with asyncio.timeout(60):
                    while len(streams) < CLIENTS or not all(len(each.events_s) >= 5 for each in streams):
                        assert not any(task.done() for task in tasks)
                        await asyncio.sleep(0.01)
                os.kill(killed, signal.SIGKILL)
            return await asyncio.gather(*tasks)

    undisturbed = asyncio.run(answers())
    disturbed = asyncio.run(answers(killed=group.engine()))
    assert [each.answer for each in disturbed] == [each.answer for each in undisturbed]
    assert group.total("turnpike_engine_replayed_requests_total") > 0, "the kill met no stream"
    group.until_complete(COUNT)


def test_all_end_with_the_supervisor(group: Group) -> None:
    processes = [*group.gateways().values(), group.engine()]
    assert len(processes) == COUNT + 1
    group.process.kill()
    group.process.wait()
    wait(lambda: not any(is_alive(each) for each in processes), 10)
    group.start()  # over the sockets that are left
    group.until_complete(COUNT)


def test_sigterm_drains_all(group: Group) -> None:
    """The last test: the group ends."""
    processes = children(group.process.pid)

    async def run() -> list[Received]:
        async with httpx.AsyncClient(base_url=group.url, timeout=60) as client:
            streams = [Received() for _ in range(CLIENTS)]
            tasks = [asyncio.create_task(_stream(client, group.key, 150, each)) for each in streams]
            await _until_all_have_tokens(streams, tasks)
            group.process.terminate()
            return await asyncio.gather(*tasks)

    received = asyncio.run(run())
    assert group.process.wait(timeout=40) == 0
    assert not any(is_alive(each) for each in processes)
    assert [len(each.arrivals_s) for each in received] == [150] * CLIENTS
    assert all(each.usage is not None for each in received)
    assert [each.name for each in group.data_dir.glob("*.sock")] == []
