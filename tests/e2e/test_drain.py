"""SIGTERM under load, a few times over: what clients saw is what is billed, and nothing is left behind."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.drain.books import Books
from tests.e2e.drain.cycles import Run
from tests.support.servers import ServerMissing, running_redis
from tests.support.tiny_models import make_checkpoint

CYCLES = 3
SEED = 1


@pytest.fixture(scope="module")
def books(clickhouse_server, tmp_path_factory: pytest.TempPathFactory) -> Books:
    """All cycles, and what came of them."""
    folder: Path = tmp_path_factory.mktemp("drain")
    try:
        with running_redis() as redis:
            checkpoint = make_checkpoint(folder / "tiny", "qwen3")
            run = Run(folder, checkpoint, redis.url, clickhouse_server.new_database(), SEED)
            return asyncio.run(run.cycles(CYCLES))
    except ServerMissing as error:
        pytest.skip(str(error))


def test_what_clients_saw_is_billed_and_nothing_is_left(books: Books) -> None:
    assert books.findings == []


def test_there_were_answers_and_refusals(books: Books) -> None:
    """So that the other test says something."""
    assert books.outcomes["ended"] > 0
    assert books.outcomes["503, asked late"] > 0
