"""kill -9 of the engine process under load: streams end with the text of an undisturbed run, and are billed once."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.worker_kills import BOUND, Answer, Run, fate, run
from tests.support.program import Program, running
from tests.support.tiny_models import make_checkpoint

CYCLES = 8
TOKENS = 150


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("worker-kills")
    model = make_checkpoint(folder / "model", "llama", max_position_embeddings=512)
    environment = {"TURNPIKE_ENGINE_PROCESS": "true", "TURNPIKE_KV_CACHE_BYTES": "8MiB", "TURNPIKE_THREADS": "1"}
    with running(folder / "data", "--model", f"tiny={model}", environment=environment) as program:
        yield program


@pytest.fixture(scope="module")
def outcome(program: Program) -> tuple[dict[int, Answer], Run]:
    return asyncio.run(run(program, "tiny", CYCLES, TOKENS))


def test_streams_end_with_the_text_of_an_undisturbed_run(outcome: tuple[dict[int, Answer], Run]) -> None:
    undisturbed, done = outcome
    assert len(done.killed_s) == CYCLES
    fates = [fate(stream, undisturbed) for stream in done.met]
    assert len(fates) >= CYCLES, "the kills met few streams"
    assert fates.count("same answer") >= BOUND * len(fates), fates
    assert "another answer" not in [fate(stream, undisturbed) for stream in done.streams]


def test_they_are_billed_once_for_what_their_clients_received(
    program: Program, outcome: tuple[dict[int, Answer], Run]
) -> None:
    undisturbed, done = outcome
    received = {stream.id: stream.answer for stream in done.streams if stream.answer is not None}
    key = program.command("admin-key", "create", "--role", "admin", "books").splitlines()[-1]
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"{program.url}/admin/v1", headers=headers, timeout=30) as admin:
        billed = _requests(admin, len(received) + len(undisturbed))
        for request_id, answer in received.items():
            [row] = billed[request_id]
            assert (row["prompt_tokens"], row["completion_tokens"]) == (answer.prompt_tokens, answer.completion_tokens)
            assert row["cached_tokens"] < row["prompt_tokens"]
        assert admin.get("/reconciliation").raise_for_status().json()["drift"] is False


def test_nothing_is_left_of_them(program: Program, outcome: tuple[dict[int, Answer], Run]) -> None:
    program.wait_idle()
    assert program.metric("turnpike_admission_open_holds") == 0


def _requests(admin: httpx.Client, count: int) -> dict[str, list[dict]]:
    """All requests in the store, by id, once there are `count`."""
    deadline = time.monotonic() + 60
    while True:
        rows: list[dict] = []
        page: dict[str, object] = {"limit": 100}
        while True:
            listed = admin.get("/requests", params=page).raise_for_status().json()
            rows += listed["data"]
            if listed["next_cursor"] is None:
                break
            page["cursor"] = listed["next_cursor"]
        by_id: dict[str, list[dict]] = {}
        for row in rows:
            by_id.setdefault(row["request_id"], []).append(row)
        if len(by_id) >= count:
            return by_id
        assert time.monotonic() < deadline, f"{len(by_id)} of {count} have arrived"
        time.sleep(0.2)
