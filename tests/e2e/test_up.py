"""`turnpike up`: workers follow the load, outlive it, and are killed in turns with the gateway and Ray's head."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.fleet_kills import STREAM_PROCESSES, fate, findings, fleet, run
from engine.config import EngineConfig
from engine.request import PromptInput, SamplingParams
from engine.runtime.engine_call import EngineCall
from engine.workers.replica_engine import ReplicaEngine
from gateway.cluster.cluster_file import ClusterFile, Scaling, WorkerGroup
from gateway.cluster.driver_process import DriverProcess
from gateway.cluster.fleet_file import FleetWorker, read_fleet
from gateway.cluster.up import Cluster
from tests.support.tiny_models import make_checkpoint
from tests.support.waiting import all_of, until

LOCAL_DRIVER = [sys.executable, "-m", "tests.support.local_driver"]
CONFIG = EngineConfig(dtype="float32", kv_cache_bytes=4 << 20, threads=1, salt_key=b"salt")
LEASE_S = 10.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("up") / "model", "llama", max_position_embeddings=1024)


@contextmanager
def up(cluster: ClusterFile) -> Iterator[Cluster]:
    """The loop of `turnpike up` on a thread. Its end ends no worker."""
    running = Cluster(cluster, DriverProcess(LOCAL_DRIVER, cluster.work_dir / "driver.log"))
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(0.1):
            running.round()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield running
    finally:
        ended.set()
        thread.join()
        running.close()


def serving(cluster: ClusterFile) -> list[FleetWorker]:
    return [each for each in read_fleet(cluster.fleet_file) if each.state == "ready"]


def exists(pid: int | None) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def burst(engine: ReplicaEngine, calls: int, tokens: int) -> None:
    async def one(number: int) -> None:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=number)
        async with engine.submit("m", EngineCall([PromptInput([number + 3] * 8, params)])) as stream:
            assert (await all_of(stream))[-1].usage is not None

    await asyncio.gather(*map(one, range(calls)))


def test_workers_follow_the_load_and_outlive_what_started_them(model: Path, tmp_path: Path) -> None:
    cluster = ClusterFile(
        fleet_file=tmp_path / "fleet.json",
        work_dir=tmp_path / "work",
        lease_s=LEASE_S,
        drain_s=5,
        models={"m": model},
        workers={"m": WorkerGroup(max=2, settings={"kv_cache_bytes": "8MiB", "threads": 1, "max_running": 4})},
        scaling=Scaling(target_requests=4, look_back_s=0.5, up_delay_s=2, down_delay_s=3),
    )
    with up(cluster):
        until(lambda: len(serving(cluster)) == 1)
        with ReplicaEngine({"m": model}, {"m": [f"file://{cluster.fleet_file}"]}, CONFIG, None) as engine:
            while len(serving(cluster)) < 2:
                asyncio.run(burst(engine, 16, 300))
            until(lambda: len(serving(cluster)) == 1)
    [left] = serving(cluster)

    with ReplicaEngine({"m": model}, {"m": [f"file://{cluster.fleet_file}"]}, CONFIG, None) as engine:
        time.sleep(LEASE_S + 2)
        assert exists(left.pid), "a gateway uses it"
        asyncio.run(burst(engine, 2, 5))
        with up(cluster) as running:
            time.sleep(2)
            assert serving(cluster) == [left], "it is adopted"
            running.supervision.end()
            until(lambda: running.supervision.is_empty)
            assert not exists(left.pid)


def test_a_worker_without_a_client_ends_with_its_lease(model: Path, tmp_path: Path) -> None:
    cluster = ClusterFile(
        fleet_file=tmp_path / "fleet.json",
        work_dir=tmp_path / "work",
        lease_s=LEASE_S,
        models={"m": model},
        workers={"m": WorkerGroup(settings={"kv_cache_bytes": "8MiB", "threads": 1})},
    )
    with up(cluster):
        until(lambda: len(serving(cluster)) == 1)
        [left] = serving(cluster)
    assert exists(left.pid)
    until(lambda: not exists(left.pid))


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'turnpike[ray]'")
def test_kills_of_workers_the_gateway_and_rays_head(model: Path, tmp_path: Path) -> None:
    with fleet(tmp_path, "tiny", model) as running:
        outcome = asyncio.run(run(running, 3, 600, clients=2))
        assert findings(running, outcome) == []
    assert [kill.name for kill in outcome.kills] == ["worker", "gateway", "gcs_server"]
    fates = [fate(stream, outcome.undisturbed) for stream in outcome.streams]
    assert "another answer" not in fates
    assert outcome.met(["worker"]), "the kill met no stream"
    assert outcome.share(STREAM_PROCESSES) == 1.0
    assert not list(tmp_path.glob("work/*/process.json")) or read_fleet(tmp_path / "fleet.json") == []
