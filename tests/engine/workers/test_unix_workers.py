"""One engine process and several clients of it, over a Unix socket."""

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.request import PromptInput, SamplingParams, TextDelta
from engine.runtime.engine_call import EngineCall
from engine.workers.messages import FromWorker, Ready, Start
from engine.workers.remote_link import Address, parse_address
from engine.workers.replica_engine import ReplicaEngine
from engine.workers.supervisor import Supervisor
from engine.workers.unix_address import UnixAddress
from tests.support.waiting import all_of, until

CONFIG = EngineConfig(dtype="float32", kv_cache_bytes=4 << 20, threads=1, salt_key=b"salt")
PROMPT = [1, 5, 9, 20, 33, 7, 7, 4]
LONGEST = 200


class Ignored:
    """The events of a supervisor that submits nothing."""

    def on_loading(self, model: str, done: int, total: int) -> None: ...

    def on_ready(self, ready: Ready) -> None: ...

    def on_message(self, message: FromWorker) -> None: ...

    def on_ended(self) -> None: ...

    def on_start_failed(self) -> None: ...

    def on_given_up(self, reason: str) -> None: ...


@pytest.fixture
def address(tmp_path: Path) -> UnixAddress:
    folder = tmp_path / ("a folder whose path is longer than a socket's may be " * 3)
    folder.mkdir()
    return UnixAddress(folder / "engine.sock")


@pytest.fixture
def worker(tiny_folders: dict[str, Path], address: UnixAddress) -> Iterator[Supervisor]:
    start = Start({"m": tiny_folders["llama"]}, CONFIG, 30, listen=address.path)
    supervisor = Supervisor(start, Ignored())
    supervisor.start()
    yield supervisor
    supervisor.close()


@pytest.fixture
def clients(
    tiny_folders: dict[str, Path], worker: Supervisor, address: UnixAddress
) -> Iterator[tuple[ReplicaEngine, ReplicaEngine]]:
    paths = {"m": tiny_folders["llama"]}
    with (
        ReplicaEngine(paths, {"m": [str(address)]}, CONFIG, None) as one,
        ReplicaEngine(paths, {"m": [str(address)]}, CONFIG, None) as other,
    ):
        yield one, other


async def answer(engine: ReplicaEngine, seed: int, tokens: int) -> str:
    params = SamplingParams(seed=seed, max_tokens=tokens, ignore_eos=True)
    async with engine.submit("m", EngineCall([PromptInput(PROMPT, params)])) as stream:
        deltas: list[TextDelta] = await all_of(stream)
    return "".join(delta.text for delta in deltas)


def test_clients_at_once_get_the_answers_of_one_alone(clients: tuple[ReplicaEngine, ReplicaEngine]) -> None:
    """More requests than run at once, so that those of both clients wait in one queue."""
    seeds = range(40)

    async def run() -> None:
        both = [asyncio.create_task(answer(engine, seed, 8)) for seed in seeds for engine in clients]
        answers = await asyncio.gather(*both)
        alone = [await answer(clients[0], seed, 8) for seed in seeds]
        assert answers == [text for text in alone for _ in clients]

    asyncio.run(run())
    assert clients[0].health.restarts_total == 0


def test_the_socket_is_for_its_user_and_is_replaced_by_the_next_process(
    clients: tuple[ReplicaEngine, ReplicaEngine], worker: Supervisor, address: UnixAddress
) -> None:
    assert stat.S_IMODE(address.path.stat().st_mode) == 0o600

    async def run() -> list[str]:
        tasks = [asyncio.create_task(answer(engine, 3, LONGEST)) for engine in clients]
        await asyncio.sleep(0.1)
        worker._process.kill()  # type: ignore[union-attr]
        return await asyncio.gather(*tasks)

    first, second = asyncio.run(run())
    assert first == second
    assert len(first) > 0
    until(lambda: all(engine.ready for engine in clients))
    assert all(engine.health.restarts_total == 1 for engine in clients)


@pytest.mark.parametrize("text", ["unix:/run/engine.sock", "unix:///run/engine.sock"])
def test_an_address_of_a_socket(text: str) -> None:
    assert parse_address(text) == UnixAddress(Path("/run/engine.sock"))
    assert str(parse_address(text)) == "unix:/run/engine.sock"
    assert parse_address(text).is_local


@pytest.mark.parametrize("text", ["unix:", "unix:engine.sock", "unix://host/engine.sock/", "unix:/run/"])
def test_no_address_of_a_socket(text: str) -> None:
    with pytest.raises(ValueError, match="unix:/path/of/file"):
        parse_address(text)


def test_loopback_is_local() -> None:
    assert parse_address("tcp://[::1]:1") == Address("::1", 1)
    local = [parse_address(f"tcp://{host}:1").is_local for host in ("127.0.0.2", "[::1]", "localhost")]
    assert local == [True, True, True]
    assert not parse_address("tcp://10.0.0.7:9010").is_local
