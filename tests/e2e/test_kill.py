"""kill -9 of the gateway, the sink and the broker under load: the clients' own record is what is billed."""

import asyncio

import pytest

from tests.e2e.kill.books import Books
from tests.e2e.kill.cycles import Run
from tests.support.kafka_server import running_kafka
from tests.support.servers import ServerMissing

CYCLES = 25
SEED = 1


@pytest.fixture(scope="module")
def run(clickhouse_server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Books]:
    """All cycles, and what came of them."""
    try:
        with running_kafka() as kafka:  # of its own, as it is killed
            run = Run(tmp_path_factory.mktemp("kill"), kafka, clickhouse_server.new_database(), SEED)
            return run, asyncio.run(run.cycles(CYCLES))
    except ServerMissing as error:
        pytest.skip(str(error))


def test_what_clients_received_is_what_is_billed(run: tuple[Run, Books]) -> None:
    _, books = run
    assert books.findings == []


def test_everybody_was_killed_in_the_middle_of_everything(run: tuple[Run, Books]) -> None:
    """So that the other test says something."""
    killed, books = run
    assert set(killed.deaths) == {"gateway", "gateway, starting", "sink", "broker"}
    assert min(books.ended, books.left, books.cut, books.unanswered.total()) > 0
    assert books.lost_tokens
