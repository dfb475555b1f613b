"""A gateway over two `turnpike worker` processes, of which one is killed in the middle of a stream."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.worker_kills import Stream, ask, body
from tests.support.program import TURNPIKE, Program, running
from tests.support.servers import free_port
from tests.support.tiny_models import make_checkpoint

SETTINGS = {"TURNPIKE_KV_CACHE_BYTES": "8MiB", "TURNPIKE_THREADS": "1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("workers") / "model", "llama", max_position_embeddings=1024)


@pytest.fixture(scope="module")
def workers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """By port."""
    folder = tmp_path_factory.mktemp("worker-data")
    processes: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for _ in range(2):
            port = free_port()
            command = [TURNPIKE, "worker", "--listen", f"127.0.0.1:{port}", "--model", f"tiny={model}"]
            log = (folder / f"{port}.log").open("wb")
            with log:
                processes[port] = subprocess.Popen(
                    [*command, "--data-dir", str(folder / str(port))],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **SETTINGS},
                )
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def program(
    model: Path, workers: dict[int, subprocess.Popen[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    replicas = json.dumps({"tiny": [f"tcp://127.0.0.1:{port}" for port in workers]})
    environment = {**SETTINGS, "TURNPIKE_REPLICAS": replicas}
    with running(tmp_path_factory.mktemp("gateway"), "--model", f"tiny={model}", environment=environment) as program:
        yield program


def answers(program: Program, kinds: range, *, killed: subprocess.Popen[bytes] | None = None) -> list[Stream]:
    """Streams of several kinds at once; a process is killed when some tokens have come."""

    async def run() -> list[Stream]:
        async with httpx.AsyncClient(base_url=program.url, timeout=60) as client:
            tasks = [asyncio.create_task(ask(client, program.key, kind, body("tiny", kind, 800))) for kind in kinds]
            if killed is not None:
                # The metric is a tenth of a second old: short answers may have ended before it shows them.
                while program.metric("turnpike_sequences_running") < 2 and not any(task.done() for task in tasks):
                    await asyncio.sleep(0.01)
                killed.kill()
            return await asyncio.gather(*tasks)

    return asyncio.run(run())


def test_a_lost_worker_ends_no_stream(program: Program, workers: dict[int, subprocess.Popen[bytes]]) -> None:
    kinds = range(4)
    undisturbed = answers(program, kinds)
    lost, last = workers.values()
    killed = answers(program, kinds, killed=lost)
    assert [stream.answer for stream in killed] == [stream.answer for stream in undisturbed]
    deadline = time.monotonic() + 30
    while program.metric("turnpike_engine_restarts_total") < 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert httpx.get(f"{program.url}/readyz").status_code == 200
    program.wait_idle()
    assert program.metric("turnpike_admission_open_holds") == 0

    last.send_signal(signal.SIGTERM)
    assert last.wait(timeout=30) == 0
    deadline = time.monotonic() + 30
    while httpx.get(f"{program.url}/readyz").status_code != 503:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    refused = httpx.post(
        f"{program.url}/v1/chat/completions",
        json=body("tiny", 0, 5),
        headers={"authorization": f"Bearer {program.key}"},
    )
    assert refused.status_code == 503
    assert "retry-after" in refused.headers


def test_a_worker_without_tls_listens_on_loopback_alone(model: Path, tmp_path: Path) -> None:
    command = [TURNPIKE, "worker", "--listen", "0.0.0.0:0", "--model", f"tiny={model}", "--data-dir", str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "worker_tls" in refused.stderr
