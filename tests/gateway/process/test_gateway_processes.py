"""Settings of several gateway processes, and how their supervisor starts them."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.config.safety import refuse_unshared
from gateway.config.settings import Settings, load_settings
from gateway.errors import OperatorError
from gateway.metering.journal.journal import Journal
from gateway.process import gateway_processes
from gateway.process.gateway_processes import GatewayProcesses, run_processes
from gateway.process.journals import journal_path_of, refuse_left_journals
from gateway.process.listener import bind
from gateway.process.process_start import ProcessStart, receive_start
from tests.support.gateway_processes import is_alive
from tests.support.usage_requests import a_usage_context

pytestmark = pytest.mark.usefixtures("no_settings")

SHARED = {
    "gateway_processes": 2,
    "redis_url": "redis://127.0.0.1/0",
    "database_url": "postgresql://u@127.0.0.1/d",
    "analytics_url": "http://u@127.0.0.1:8123/d",
}


def test_shared_stores_are_taken() -> None:
    refuse_unshared(load_settings(**SHARED), demo=False)
    refuse_unshared(load_settings(), demo=True)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"redis_url": None}, "redis_url"),
        ({"database_url": None}, "database_url"),
        ({"analytics_url": None}, "analytics_url"),
        ({"engine_process": False}, "engine_process"),
        ({"grpc_listen": "127.0.0.1:0"}, "grpc_listen"),
    ],
)
def test_a_store_of_one_process_is_refused_by_name(changes: dict, complaint: str) -> None:
    with pytest.raises(OperatorError, match=f"^gateway_processes is 2, and {complaint}: "):
        refuse_unshared(load_settings(**SHARED | changes), demo=False)


def test_a_demo_is_refused() -> None:
    with pytest.raises(OperatorError, match="--demo"):
        refuse_unshared(load_settings(**SHARED), demo=True)


def test_each_process_has_a_journal() -> None:
    paths = [journal_path_of(Path("/var/usage/journal.db"), index) for index in range(3)]
    assert [str(path) for path in paths] == [f"/var/usage/journal{each}.db" for each in ("", "-1", "-2")]


async def test_usage_of_former_processes_is_not_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for index in range(4):
        journal = Journal(journal_path_of(path, index), interval_ms=5)
        if index == 2:
            journal.begin(a_usage_context("r1"))
            await asyncio.sleep(0.05)
        await journal.aclose()
    (tmp_path / "journal-copy.db").touch()
    refuse_left_journals(path, 3)
    for count in (1, 2):
        with pytest.raises(OperatorError, match=r"journal-2\.db .* gateway_processes = 3"):
            refuse_left_journals(path, count)


def test_a_start_crosses_a_socket() -> None:
    here, there = socket.socketpair()
    start = a_start(load_settings(**SHARED))
    with here, there:
        here.sendall(start.encode())
        assert receive_start(there) == start
        here.close()
        with pytest.raises(EOFError):
            receive_start(there)


def a_start(settings: Settings) -> ProcessStart:
    return ProcessStart(settings, b"pepper", 0, settings.gateway_processes, 0, None, b"salt")


class _Later:
    """A signal that the test sends."""

    begin: Callable[[], None]

    def begins(self, begin: Callable[[], None]) -> None:
        self.begin = begin


class Never:
    """No signal comes."""

    def begins(self, begin: object) -> None: ...


@pytest.mark.parametrize(
    ("fate", "complaint"), [("failed", "the price is missing"), ("killed", "ended while it started")]
)
async def test_a_process_that_cannot_serve_from_the_beginning_ends_all(
    monkeypatch: pytest.MonkeyPatch, fate: str, complaint: str
) -> None:
    monkeypatch.setattr(gateway_processes, "MODULE", "tests.support.fated_process")
    monkeypatch.setenv("FATE", fate)
    with bind("127.0.0.1", 0, shared=True) as reserved, pytest.raises(OperatorError, match=complaint):
        async with asyncio.timeout(60):
            await GatewayProcesses(a_start(load_settings(**SHARED)), reserved).run(Never())


async def test_processes_are_started_again_and_end_with_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start takes a connection and ends, until the drain."""
    monkeypatch.setattr(gateway_processes, "MODULE", "tests.support.fated_process")
    monkeypatch.setattr(gateway_processes, "backoff_seconds", lambda failures: 0.01 * failures)
    monkeypatch.setenv("FATE", "serves once")

    signals = _Later()
    with bind("127.0.0.1", 0, shared=True) as reserved:
        running = asyncio.create_task(GatewayProcesses(a_start(load_settings(**SHARED)), reserved).run(signals))
        served: dict[str, int] = {}
        async with asyncio.timeout(120):
            while min(served.get("0", 0), served.get("1", 0)) < 2:
                try:
                    reader, writer = await asyncio.open_connection(*reserved.getsockname())
                    index, _, starts = (await reader.read()).decode().partition(" ")
                    writer.close()
                except OSError:
                    await asyncio.sleep(0.02)  # both are being started
                    continue
                if index:
                    served[index] = max(served.get(index, 0), int(starts))
            signals.begin()
            await running


async def _processes(address: tuple[str, int], until: Callable[[dict[int, tuple[int, int]]], bool]) -> dict:
    """Process id and starts by index, as they answer on connections of their own, once `until` is true of them."""
    found: dict[int, tuple[int, int]] = {}
    async with asyncio.timeout(60):
        while not until(found):
            try:
                async with asyncio.timeout(1):
                    reader, writer = await asyncio.open_connection(*address)
                    with closing(writer):
                        index, pid, starts = map(int, (await reader.readline()).split())
            except (OSError, ValueError, TimeoutError):  # it is being started, or hangs
                await asyncio.sleep(0.02)
                continue
            found[index] = (pid, starts)
    return found


@pytest.mark.parametrize("way", ["stopped", "loop"])
async def test_a_process_that_hangs_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """`stopped`: by SIGSTOP. `loop`: a callback does not return, while the process's threads run."""
    monkeypatch.setattr(gateway_processes, "MODULE", "tests.support.fated_process")
    monkeypatch.setattr(gateway_processes, "STACKS_SECONDS", 0.1)
    monkeypatch.setenv("FATE", "hangs")
    signals = _Later()
    with bind("127.0.0.1", 0, shared=True) as reserved:
        address = reserved.getsockname()[:2]
        processes = GatewayProcesses(a_start(load_settings(**SHARED, gateway_silence_s=4)), reserved)
        running = asyncio.create_task(processes.run(signals))
        before = await _processes(address, lambda found: len(found) == 2)
        if way == "stopped":
            hung = 0
            os.kill(before[hung][0], signal.SIGSTOP)
        else:
            reader, writer = await asyncio.open_connection(*address)
            hung = int((await reader.readline()).split()[0])
            writer.write(b"hang\n")
            await writer.drain()
        after = await _processes(address, lambda found: found.get(hung, (0, 0))[1] == 2 and len(found) == 2)
        assert after[1 - hung] == before[1 - hung], "the other process is left alone"
        assert not is_alive(before[hung][0])
        if way == "loop":
            writer.close()
        signals.begin()
        await running


def test_one_supervisor_serves_a_data_directory(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, **SHARED)
    with gateway_processes._lock(tmp_path), pytest.raises(OperatorError, match="another turnpike serve"):
        run_processes(settings, b"", ("127.0.0.1", 0), Never())


def test_a_shared_port_is_free_of_others() -> None:
    with bind("127.0.0.1", 0, shared=True) as first:
        host, port = first.getsockname()
        with bind(host, port, shared=True) as second:
            second.listen()
            with pytest.raises(OperatorError, match="cannot listen"):
                bind(host, port)
