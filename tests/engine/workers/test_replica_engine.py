"""Workers behind one client: the best gets a request, and another continues it where that is lost."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineUnavailable
from engine.request import STANDARD, PromptInput, SamplingParams, TextDelta
from engine.runtime.engine_call import EngineCall
from engine.workers.replica_engine import ReplicaEngine
from engine.workers.replicas import Replica
from engine.workers.tls import TLSFiles, client_context
from tests.support.certificates import make_authority
from tests.support.waiting import all_of, until, wait_for

CONFIG = EngineConfig(dtype="float32", kv_cache_bytes=4 << 20, threads=1, salt_key=b"salt")
PROMPT = [1, 5, 9, 20, 33, 7, 7, 4]
LONG = SamplingParams(seed=4, max_tokens=300, ignore_eos=True, n=2)
PROGRAM = """
import asyncio, sys
from pathlib import Path
from engine.config import EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.workers.listener import WorkerListener
from engine.workers.tls import TLSFiles, server_context

async def main(engine):
    listener = WorkerListener(engine)
    files = [Path(each) for each in sys.argv[3:]]
    context = server_context(TLSFiles(*files)) if files else None
    await listener.listen("127.0.0.1", int(sys.argv[2]), context)
    print(listener.port, flush=True)
    loop = asyncio.get_running_loop()
    seconds = await loop.run_in_executor(None, sys.stdin.readline)  # until it is told to drain
    await listener.drain(float(seconds or 0.0))
    await listener.close()

scheduler = SchedulerConfig(max_running=4)
config = EngineConfig(dtype="float32", kv_cache_bytes=4 << 20, threads=1, scheduler=scheduler)
with Engine.load({"m": Path(sys.argv[1])}, config) as engine:
    asyncio.run(main(engine))
"""


@dataclass
class Worker:
    """A worker in a process of its own."""

    folder: Path
    files: tuple[Path, ...] = ()
    port: int = 0
    process: subprocess.Popen[str] = field(init=False)

    def start(self) -> None:
        command = [sys.executable, "-c", PROGRAM, str(self.folder), str(self.port), *map(str, self.files)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def drain(self, seconds: float = 5.0) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()


@contextmanager
def running(*workers: Worker) -> Iterator[None]:
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        for worker in workers:
            worker.kill()


@pytest.fixture(scope="module")
def folder(tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders["llama"]


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[Engine]:
    with Engine.load({"m": folder}, CONFIG) as engine:
        yield engine


@pytest.fixture
def two(folder: Path) -> Iterator[list[Worker]]:
    workers = [Worker(folder), Worker(folder)]
    with running(*workers):
        yield workers


@pytest.fixture
def there(folder: Path, two: list[Worker]) -> Iterator[ReplicaEngine]:
    with engine_of(folder, two) as engine:
        until(lambda: all(replica.takes("m") for replica in engine.set.replicas))
        yield engine
        until(lambda: not len(engine.set))
        engine.set.check()


def engine_of(folder: Path, workers: list[Worker], context: ssl.SSLContext | None = None) -> ReplicaEngine:
    addresses = {"m": [worker.address for worker in workers]}
    return ReplicaEngine({"m": folder}, addresses, CONFIG, context, ready_seconds=20.0)


def essence(deltas: list[TextDelta]) -> list[object]:
    seen: list[object] = []
    for index in sorted({delta.index for delta in deltas}):
        own = [delta for delta in deltas if delta.index == index]
        assert own[-1].usage is not None
        usage = (own[-1].usage.prompt_tokens, own[-1].usage.completion_tokens)
        seen.append(("".join(delta.text for delta in own), own[-1].finish_reason, usage))
    return seen


async def answer(engine: Engine | ReplicaEngine, prompt: PromptInput) -> list[object]:
    async with engine.submit("m", EngineCall([prompt])) as stream:
        return essence(await all_of(stream))


def holder(engine: ReplicaEngine) -> Replica:
    """The replica that computes the one call."""
    [replica] = [each for each in engine.set.replicas if len(each.requests)]
    return replica


def connected(engine: ReplicaEngine, port: int) -> bool:
    [replica] = [each for each in engine.set.replicas if each.name.endswith(f":{port}")]
    return replica.requests.connected


def worker_of(replica: Replica, workers: list[Worker]) -> Worker:
    [worker] = [each for each in workers if each.address == replica.name]
    return worker


async def test_answers_are_those_of_an_engine_in_this_process(here: Engine, there: ReplicaEngine) -> None:
    prompt = PromptInput(PROMPT, LONG)
    assert await answer(there, prompt) == await answer(here, prompt)
    assert there.ready
    assert set(there.stats()) == {"m"}


async def test_another_worker_continues_the_streams_of_a_lost_one(
    here: Engine, there: ReplicaEngine, two: list[Worker]
) -> None:
    prompt = PromptInput(PROMPT, LONG)
    async with there.submit("m", EngineCall([prompt])) as stream:
        deltas = list(await stream.next_batch())
        lost = holder(there)
        worker_of(lost, two).kill()
        deltas += await all_of(stream)
    assert essence(deltas) == await answer(here, prompt)
    await wait_for(lambda: not lost.requests.connected)
    assert there.ready, "the other one is there"


async def test_streams_wait_for_a_worker_where_all_are_lost(
    here: Engine, there: ReplicaEngine, two: list[Worker]
) -> None:
    prompt = PromptInput(PROMPT, LONG)
    async with there.submit("m", EngineCall([prompt])) as stream:
        deltas = list(await stream.next_batch())
        last = worker_of(holder(there), two)
        for worker in sorted(two, key=lambda worker: worker is last):
            worker.kill()
            await wait_for(lambda port=worker.port: not connected(there, port))
        await wait_for(lambda: not there.ready)
        with pytest.raises(EngineUnavailable):
            await answer(there, prompt)
        await asyncio.to_thread(two[1].start)
        deltas += await all_of(stream)
    assert essence(deltas) == await answer(here, prompt)


async def test_a_worker_that_drains_gets_no_new_requests_and_ends_those_that_it_has(
    here: Engine, there: ReplicaEngine, two: list[Worker]
) -> None:
    prompt = PromptInput(PROMPT, LONG)
    async with there.submit("m", EngineCall([prompt])) as stream:
        deltas = list(await stream.next_batch())
        drained = holder(there)
        worker_of(drained, two).drain()
        await wait_for(lambda: drained.draining)
        assert await answer(there, prompt) == await answer(here, prompt)
        deltas += await all_of(stream)
    assert essence(deltas) == await answer(here, prompt)
    await wait_for(lambda: not drained.requests.connected)


async def test_workers_of_a_file_come_and_go_and_no_stream_notices(
    here: Engine, folder: Path, two: list[Worker], tmp_path: Path
) -> None:
    prompt, path = PromptInput(PROMPT, LONG), tmp_path / "fleet.json"
    state_fleet(path, two[0])
    with ReplicaEngine({"m": folder}, {"m": [f"file://{path}"]}, CONFIG, None, ready_seconds=20.0) as engine:
        async with engine.submit("m", EngineCall([prompt])) as stream:
            deltas = list(await stream.next_batch())
            removed = holder(engine)
            state_fleet(path, two[1])
            await wait_for(lambda: [each.name for each in engine.set.replicas if each.takes("m")] == [two[1].address])
            assert not removed.listed
            assert await answer(engine, prompt) == await answer(here, prompt), "the new one computes it"
            deltas += await all_of(stream)
        assert essence(deltas) == await answer(here, prompt)
        await wait_for(lambda: [each.name for each in engine.set.replicas] == [two[1].address])
        assert engine.health.replays_total == 0, "a removed worker completes its requests"

        two[0].kill()
        two[0].port = 0
        await asyncio.to_thread(two[0].start)  # under another address
        state_fleet(path, two[0])
        await wait_for(lambda: [each.name for each in engine.set.replicas if each.takes("m")] == [two[0].address])
        path.unlink()
        assert await answer(engine, prompt) == await answer(here, prompt)
        assert engine.ready, "the last list stays"


async def test_a_name_leads_to_its_workers(here: Engine, folder: Path, two: list[Worker]) -> None:
    names = [f"tcp+dns://localhost:{worker.port}" for worker in two]
    prompt = PromptInput(PROMPT, LONG)
    with ReplicaEngine({"m": folder}, {"m": names}, CONFIG, None, ready_seconds=20.0) as engine:
        await wait_for(lambda: {each.name for each in engine.set.replicas} == {worker.address for worker in two})
        assert await answer(engine, prompt) == await answer(here, prompt)


def state_fleet(path: Path, *workers: Worker) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"workers": [{"address": worker.address} for worker in workers]}))
    new.replace(path)


async def test_streams_of_a_drained_worker_are_handed_on_at_its_deadline(
    here: Engine, there: ReplicaEngine, two: list[Worker]
) -> None:
    prompt = PromptInput(PROMPT, LONG)
    async with there.submit("m", EngineCall([prompt])) as stream:
        deltas = list(await stream.next_batch())
        drained = holder(there)
        worker_of(drained, two).drain(0.0)
        await wait_for(lambda: not drained.requests.connected)
        deltas += await all_of(stream)
    assert essence(deltas) == await answer(here, prompt)
    assert there.health.replays_total > 0


async def test_workers_say_which_prefix_blocks_they_hold(there: ReplicaEngine, two: list[Worker]) -> None:
    prompt = PromptInput(list(range(3, 90)), SamplingParams(max_tokens=2))
    held = [replica.prefixes["m"].held for replica in there.set.replicas]
    await wait_for(lambda: all(each.is_complete for each in held))
    async with there.submit("m", EngineCall([prompt])) as stream:
        await all_of(stream)
    await wait_for(lambda: sum(len(each.hashes) for each in held) == 87 // 16)
    assert sorted(len(each.hashes) for each in held) == [0, 87 // 16], "the other one has computed nothing"
    two[0].kill()
    await wait_for(lambda: not connected(there, two[0].port))
    await asyncio.to_thread(two[0].start)
    [again] = [each for each in there.set.replicas if each.name == two[0].address]
    await wait_for(lambda: "m" in again.prefixes and again.prefixes["m"].held.is_complete)
    assert not again.prefixes["m"].held.hashes


async def test_requests_at_once_are_spread_over_the_workers(there: ReplicaEngine) -> None:
    async def one(number: int) -> None:
        async with there.submit(
            "m", EngineCall([PromptInput([number + 3] * 40, SamplingParams(max_tokens=200))])
        ) as stream:
            await wait_for(lambda: len(there.set) == 24)
            seen.append([len(replica.requests) for replica in there.set.replicas])
            await everyone.wait()
            await stream.next_batch()

    seen: list[list[int]] = []
    everyone = asyncio.Barrier(24)
    await asyncio.gather(*(one(number) for number in range(24)))
    assert min(seen[0]) >= 4, seen[0]


async def test_reservations_leave_nothing_behind(there: ReplicaEngine) -> None:
    prompts = [PromptInput([number + 3] * 70, SamplingParams(max_tokens=3)) for number in range(6)]

    async def one(prompt: PromptInput) -> None:
        with there.reserve("m", STANDARD) as reservation:
            async with there.submit("m", EngineCall([prompt], reservation=reservation)) as stream:
                await all_of(stream)

    await asyncio.gather(*map(one, prompts))
    assert there.reservations() == {"m": 0}
    await wait_for(lambda: there.queue_depth("m") == 0)


def test_a_model_without_a_worker_is_named(folder: Path) -> None:
    with pytest.raises(EngineUnavailable, match="no worker of m"):
        ReplicaEngine({"m": folder}, {"m": ["tcp://127.0.0.1:9"]}, CONFIG, None, ready_seconds=0.5)


def test_without_tls_a_worker_on_another_machine_is_not_used(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"workers": [{"address": "tcp://192.0.2.1:9"}]}))
    with pytest.raises(EngineUnavailable):
        ReplicaEngine({"m": folder}, {"m": [f"file://{path}"]}, CONFIG, None, ready_seconds=0.2)
    assert "there is no TLS" in caplog.text


async def test_both_sides_need_a_certificate_of_the_authority(here: Engine, folder: Path, tmp_path: Path) -> None:
    ours, strangers = make_authority(tmp_path / "ours"), make_authority(tmp_path / "strangers")
    worker = Worker(folder, (ours.certificate, ours.key, ours.authority))
    prompt = PromptInput(PROMPT, LONG)
    with running(worker):
        with engine_of(folder, [worker], client_context(ours)) as engine:
            assert await answer(engine, prompt) == await answer(here, prompt)
        with pytest.raises(EngineUnavailable):  # the certificate names an address, and not this name
            by_name = [f"tcp+dns://localhost:{worker.port}"]
            ReplicaEngine({"m": folder}, {"m": by_name}, CONFIG, client_context(ours), ready_seconds=1.0)
        fleet = tmp_path / "fleet.json"
        for named in ("127.0.0.1", None):
            fleet.write_text(json.dumps({"workers": [{"address": worker.address, "server_name": named}]}))
            with ReplicaEngine({"m": folder}, {"m": [f"file://{fleet}"]}, CONFIG, client_context(ours)) as engine:
                assert await answer(engine, prompt) == await answer(here, prompt)
        stranger = TLSFiles(strangers.certificate, strangers.key, ours.authority)
        for context in (client_context(stranger), client_context(strangers), None):
            with pytest.raises(EngineUnavailable):
                ReplicaEngine({"m": folder}, {"m": [worker.address]}, CONFIG, context, ready_seconds=1.0)
