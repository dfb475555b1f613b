"""kill -9 of a worker, of the gateway, of Ray's head and of `turnpike up`, in turns under load:
`python -m benchmarks.fleet_kills [--cycles 200]`.

`turnpike up` keeps two workers on a Ray of this machine; a `turnpike serve` has its fleet file. Requests of several
kinds are first answered undisturbed, then asked again and again by `CONCURRENCY` clients while one process is killed in
each cycle. A stream that is open while a worker or the head is killed should end with the text and usage of the
undisturbed answer; one that is open while the gateway is killed is cut.

Printed: the fates of streams by kill, and the findings of the books. Bounds: no finding, and 99 % of the streams that
are open at kills of workers and of the head end with the same answer. The books: each answer that a client received
whole is billed once, with its usage; a cut stream is billed at most once, for no more than a whole answer; nothing else
is billed, no hold is left, and journal and store agree.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.worker_kills import KINDS, Answer, Stream, ask, body, fate
from engine.catalog.catalog import fetch
from gateway.config.settings import Settings
from tests.support.program import TURNPIKE, turnpike
from tests.support.servers import free_port

BOUND = 0.99
CONCURRENCY = 4
TURNS = ("worker", "gateway", "gcs_server", "up", "worker", "gateway", "raylet")
"""The processes that are killed, in turns: `gcs_server` and `raylet` are those of Ray's head, `up` is `turnpike up`."""
MOST_SECONDS = 180.0
_ENVIRONMENT = {"TURNPIKE_THREADS": "1"}


@dataclass(slots=True)
class Fleet:
    """The processes, and where they keep their files."""

    folder: Path
    model: str
    path: Path
    url: str
    key: str
    up: subprocess.Popen[bytes]
    gateway: subprocess.Popen[bytes]

    def workers(self) -> list[dict[str, Any]]:
        """Those that serve, as the fleet file has them."""
        try:
            stated = json.loads((self.folder / "fleet.json").read_text())
        except FileNotFoundError:
            return []
        return [each for each in stated["workers"] if each["state"] == "ready"]

    def head(self, name: str) -> int | None:
        """The process id of a part of Ray's head that `up` has started."""
        parents = {pid: (parent, command) for pid, parent, command in processes()}
        for pid, (_, command) in parents.items():
            at = pid
            while command == name and at in parents:
                at = parents[at][0]
                if at == self.up.pid:
                    return pid
        return None

    def start_gateway(self) -> None:
        """In place of the one that has ended."""
        self.gateway = _gateway(self.folder, self.model, self.path, self.url)

    def start_up(self) -> None:
        """In place of the `turnpike up` that has ended."""
        self.up = _up(self.folder)

    def metric(self, name: str) -> float:
        """The sum of a metric's values."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"


def processes() -> Iterator[tuple[int, int, str]]:
    """Process id, parent and command of all processes."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                head, _, rest = (folder / "stat").read_text().rpartition(")")
            except OSError:
                continue  # it has ended
            yield int(folder.name), int(rest.split()[1]), head.partition("(")[2]


def _up(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "up.log").open("ab") as log:
        return subprocess.Popen([TURNPIKE, "up", str(folder / "cluster.toml")], stdout=log, stderr=subprocess.STDOUT)


def _gateway(folder: Path, model: str, path: Path, url: str) -> subprocess.Popen[bytes]:
    replicas = json.dumps({model: [f"file://{folder / 'fleet.json'}"]})
    command = [TURNPIKE, "serve", "--port", url.rpartition(":")[2], "--data-dir", str(folder / "data")]
    with (folder / "gateway.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--model", f"{model}={path}"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRONMENT, "TURNPIKE_REPLICAS": replicas},
        )


@contextmanager
def fleet(folder: Path, model: str, path: Path, workers: int = 2, extra: str = "") -> Iterator[Fleet]:
    """A gateway over workers that `turnpike up` keeps. `extra`: more lines of the cluster's file."""
    data_dir = str(folder / "data")
    (folder / "cluster.toml").write_text(
        f'work_dir = "work"\ndrain_s = 5\nlease_s = 30\n[models]\n{model} = "{path}"\n'
        f"[workers.{model}]\ncpus = 0.5\nmin = {workers}\nmax = 2\n"
        f'settings = {{ kv_cache_bytes = "32MiB", threads = 1 }}\n{extra}'
    )
    turnpike("db", "upgrade", "--data-dir", data_dir)
    turnpike("tenant", "create", "acme", "--tier", "premium", "--data-dir", data_dir)
    key = turnpike("key", "create", "--tenant", "acme", "--data-dir", data_dir)
    turnpike("price", "set", model, "--input", "0.1", "--cached", "0.05", "--output", "0.4", "--data-dir", data_dir)
    url = f"http://127.0.0.1:{free_port()}"
    up = _up(folder)
    running: Fleet | None = None
    try:
        running = Fleet(folder, model, path, url, key, up, _gateway(folder, model, path, url))
        yield running
        running.gateway.terminate()
        assert running.gateway.wait(timeout=40) == 0, (folder / "gateway.log").read_text()
        running.up.terminate()
        assert running.up.wait(timeout=60) == 0, (folder / "up.log").read_text()
    finally:
        for process in (running.up, running.gateway) if running else (up,):
            if process.poll() is None:
                process.kill()
                process.wait()
        if running is not None:
            _end_workers(running)


def _end_workers(running: Fleet) -> None:
    """Those that a killed `up` has left; each is known by its record."""
    for record in (running.folder / "work").glob("*/process.json"):
        pid = json.loads(record.read_bytes())["pid"]
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if str(running.folder).encode() in command:
            os.kill(pid, signal.SIGKILL)


async def until_serving(client: httpx.AsyncClient, running: Fleet, workers: int = 1) -> None:
    """Wait until the gateway is ready and the fleet has some workers.

    Raises:
        TimeoutError: it takes too long.
    """
    async with asyncio.timeout(MOST_SECONDS):
        while True:
            assert running.up.poll() is None, (running.folder / "up.log").read_text()
            try:
                ready = (await client.get("/readyz")).status_code == 200
            except httpx.HTTPError:
                ready = False
            if ready and len(running.workers()) >= workers:
                return
            await asyncio.sleep(0.1)


@dataclass(slots=True)
class Kill:
    """A process that was killed, and when, in monotonic seconds."""

    name: str
    at_s: float


@dataclass(slots=True)
class Outcome:
    """Everything that was sent, and the kills."""

    undisturbed: dict[int, Answer]
    streams: list[Stream] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def met(self, names: Sequence[str]) -> list[Stream]:
        """Streams that were open, after their first event, at a kill of these, and at none of the gateway."""

        def is_open(stream: Stream, at_s: float) -> bool:
            return bool(stream.events_s) and stream.events_s[0] < at_s < stream.events_s[-1]

        ours = [kill.at_s for kill in self.kills if kill.name in names]
        cuts = [kill.at_s for kill in self.kills if kill.name == "gateway"]
        return [
            stream
            for stream in self.streams
            if any(is_open(stream, at_s) for at_s in ours)
            and not any(stream.sent_s < at_s and (stream.answer is None or at_s < stream.events_s[-1]) for at_s in cuts)
        ]

    def share(self, names: Sequence[str]) -> float:
        """Of the streams open at kills of these: those with the answer of the undisturbed run."""
        met = self.met(names)
        return sum(fate(stream, self.undisturbed) == "same answer" for stream in met) / max(len(met), 1)


STREAM_PROCESSES = ("worker", "gcs_server", "raylet", "up")
"""Kills that no stream should notice."""


async def _ask(client: httpx.AsyncClient, key: str, job: int, request: dict[str, Any]) -> Stream:
    """As `ask`; a connection that is cut leaves a stream without an answer, with the id that it had."""
    seen: list[Stream] = []
    try:
        return await ask(client, key, job, request, seen.append)
    except httpx.HTTPError:
        stream = seen[0]
        stream.error = "cut" if stream.status else "not connected"
        return stream


async def run(running: Fleet, cycles: int, max_tokens: int, clients: int = CONCURRENCY) -> Outcome:
    """Kill a process in each cycle, under load."""
    rng, stopping = random.Random(1), asyncio.Event()
    limits = httpx.Limits(max_connections=2 * clients + 2, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=running.url, timeout=300, limits=limits) as client:
        await until_serving(client, running, 2)
        outcome = Outcome({})
        for kind in range(len(KINDS)):
            stream = await ask(client, running.key, kind, body(running.model, kind, max_tokens))
            assert stream.answer is not None, stream
            outcome.undisturbed[kind] = stream.answer
            outcome.streams.append(stream)

        async def load(number: int) -> None:
            for kind in itertools.count(number):
                if stopping.is_set():
                    return
                kind %= len(KINDS)
                stream = await _ask(client, running.key, kind, body(running.model, kind, max_tokens))
                outcome.streams.append(stream)
                if stream.status != 200:
                    await asyncio.sleep(0.1)

        loads = [asyncio.create_task(load(number)) for number in range(clients)]
        for name in itertools.islice(itertools.cycle(TURNS), cycles):
            await _kill(client, running, name, rng, outcome)
        await until_serving(client, running, 2)
        stopping.set()
        await asyncio.gather(*loads)
    return outcome


async def _kill(client: httpx.AsyncClient, running: Fleet, name: str, rng: random.Random, outcome: Outcome) -> None:
    await until_serving(client, running, 2)
    async with asyncio.timeout(MOST_SECONDS):
        while name in ("gcs_server", "raylet") and running.head(name) is None:
            await asyncio.sleep(0.2)
    answered = len(outcome.streams) + rng.randint(2, 2 * CONCURRENCY)
    async with asyncio.timeout(MOST_SECONDS):
        while len(outcome.streams) < answered:
            await asyncio.sleep(0.01)
    await asyncio.sleep(rng.uniform(0.0, 0.3))
    if name == "worker":
        pid = int(rng.choice(running.workers())["pid"])
    else:
        own = {"gateway": running.gateway.pid, "up": running.up.pid}
        pid = own.get(name) or running.head(name) or 0
    assert pid > 1, f"there is no {name}"
    outcome.kills.append(Kill(name, time.monotonic()))
    os.kill(pid, signal.SIGKILL)
    if name == "gateway":
        running.gateway.wait()
        running.start_gateway()
    elif name == "up":
        running.up.wait()
        running.start_up()
    while name == "worker" and any(each["pid"] == pid for each in running.workers()):
        await asyncio.sleep(0.1)  # until `up` knows


def findings(running: Fleet, outcome: Outcome) -> list[str]:
    """Where the books differ from what clients received. Asks the gateway, which must be at rest."""
    whole = {stream.id: stream.answer for stream in outcome.streams if stream.answer is not None}
    cut = {stream.id: stream for stream in outcome.streams if stream.answer is None and stream.id}
    without_id = sum(stream.answer is None and not stream.id for stream in outcome.streams)
    wrong = []
    created = turnpike("admin-key", "create", "--role", "admin", "books", "--data-dir", str(running.data_dir))
    headers = {"authorization": f"Bearer {created.splitlines()[-1]}"}
    with httpx.Client(base_url=f"{running.url}/admin/v1", headers=headers) as admin:
        billed = _billed(admin, whole)
        for request_id, answer in whole.items():
            rows = [(row["prompt_tokens"], row["completion_tokens"]) for row in billed.get(request_id, [])]
            if rows != [(answer.prompt_tokens, answer.completion_tokens)]:
                wrong.append(
                    f"{request_id}: received {answer.prompt_tokens}, {answer.completion_tokens}; billed {rows}"
                )
        for request_id, stream in cut.items():
            rows, most = billed.get(request_id, []), outcome.undisturbed[stream.job].completion_tokens
            if len(rows) > 1 or any(row["completion_tokens"] > most for row in rows):
                wrong.append(f"{request_id}: a cut stream is billed as {rows}")
        unknown = billed.keys() - whole.keys() - cut.keys()
        if len(unknown) > without_id:
            wrong.append(f"{len(unknown)} requests are billed that no client knows; {without_id} had no answer")
        if admin.get("/reconciliation").raise_for_status().json()["drift"]:
            wrong.append("journal and store differ")
    if (holds := running.metric("turnpike_admission_open_holds")) != 0:
        wrong.append(f"{holds:g} holds are left")
    return wrong


def _billed(admin: httpx.Client, whole: Mapping[str, Answer]) -> dict[str, list[dict[str, Any]]]:
    """All requests in the store, by id, once it has those that were answered, or does not get them in a minute."""
    deadline = time.monotonic() + 60
    while True:
        by_id: dict[str, list[dict[str, Any]]] = {}
        page: dict[str, Any] = {"limit": 100}
        while True:
            listed = admin.get("/requests", params=page).raise_for_status().json()
            for row in listed["data"]:
                by_id.setdefault(row["request_id"], []).append(row)
            if listed["next_cursor"] is None:
                break
            page["cursor"] = listed["next_cursor"]
        if whole.keys() <= by_id.keys() or time.monotonic() > deadline:
            return by_id
        time.sleep(0.2)


def report(outcome: Outcome, wrong: Sequence[str]) -> bool:
    """Print the figures. Returns whether the bounds hold."""
    print(f"\n{len(outcome.kills)} kills, {dict(Counter(kill.name for kill in outcome.kills))}")
    print(
        f"{len(outcome.streams)} requests: {dict(Counter(fate(each, outcome.undisturbed) for each in outcome.streams))}"
    )
    for name in STREAM_PROCESSES:
        met = outcome.met([name])
        fates = Counter(fate(stream, outcome.undisturbed) for stream in met)
        print(f"open at a kill of {name}: {len(met)}, {dict(fates)}")
    share = outcome.share(STREAM_PROCESSES)
    print(f"same answer: {share:.4f} of them, bound {BOUND}")
    for each in wrong[:20]:
        print(f"WRONG: {each}")
    print(f"{len(wrong)} findings in the books")
    return share >= BOUND and not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=300, help="maximum tokens of an answer")
    parser.add_argument("--model", type=Path, help="a checkpoint; default: smollm2 of the catalogue")
    options = parser.parse_args()
    path = options.model or fetch("smollm2", Settings().models_dir)
    with tempfile.TemporaryDirectory() as folder, fleet(Path(folder), "chat", path.absolute()) as running:
        outcome = asyncio.run(run(running, options.cycles, options.tokens))
        within = report(outcome, findings(running, outcome))
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
