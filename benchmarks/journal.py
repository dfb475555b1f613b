"""Cost of the journal to streams: `python -m benchmarks.journal [--model fake]`.

One process serves the same engine twice over loopback HTTP: with the journal, and with a stand-in that writes nothing.
Another process asks, at each concurrency the same requests of both in turns (ABBA...), started together, with a short
prompt and answers of different lengths. Each pair of neighbours gives ratios, of tokens a second and of the server's
processor time, which others on the machine disturb less, and differences of medians: until the first token, between
tokens, and from the last token to the end of the stream, which waits for its commit. The figures are medians over
pairs, with intervals from resampling them. The engine is SmolLM2-135M; `fake` is one that computes nothing, so that
nothing else hides what the journal takes, and the whole loop is one Python thread that never rests.

Bounds: throughput with the journal at least 0.97 of that without; the first token and those after it at most 1 ms
later; the end at most 60 ms.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from benchmarks.disk import fsync_ms
from benchmarks.http_client import Client, Outcome, Question, completion
from benchmarks.intervals import bootstrap_median
from engine import Engine, EngineConfig
from engine.catalog.catalog import fetch
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.generation.engine_client import EngineClient
from gateway.metering.event import UsageEvent
from gateway.metering.journal.usage_context import Progress, UsageContext
from gateway.process.listener import bind
from gateway.process.server import Server as TurnpikeServer
from gateway.telemetry.logs import configure_logging
from gateway.tenancy.records import Principal
from tests.support.fake_engine import FakeEngine
from tests.support.fake_model import FakeModel
from tests.support.services import services_with

MODEL = "smollm2"
PROMPT = "The journal of a ship tells what it carried, from where, and what"
CONCURRENCIES = {"smollm2": (16, 32), "fake": (16, 32, 64)}
ANSWERS = {"smollm2": (16, 64), "fake": (200, 1000)}
"""Tokens, from and to."""
EACH = 2
"""Requests of each client in a run."""
BOUND_RATIO = 0.97
BOUND_MS = 1.0
BOUND_END_MS = 60.0


class SilentJournal:
    """As `Journal` to those who serve a request, and keeps nothing."""

    trouble = None
    last_sequence = backlog_events = 0

    def begin(self, usage_context: UsageContext) -> None: ...

    def advance(self, request_id: str, progress: Progress) -> None: ...

    async def finish(self, event: UsageEvent, otherwise: UsageEvent) -> None: ...

    def finish_later(self, event: UsageEvent) -> None: ...

    async def aclose(self) -> None: ...


class AnyKey:
    async def authenticate(self, presented: str) -> Principal:
        return Principal("tenant-1", "acme", "standard", "pubid1")

    def why_ended(self, public_id: str) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One run's throughput, the server's processor time, and medians over its requests in milliseconds."""

    tokens_per_s: float
    cpu_us_per_token: float
    first_ms: float
    between_ms: float
    end_ms: float


# The server


def serve(kind: str, folder: Path, ready: Connection) -> None:
    """Until killed. Tells the port with the journal, then the one without."""
    configure_logging("warning", "json", ())
    engine = _engine(kind)
    silent = services_with(folder, engine, AnyKey(), journal=SilentJournal())
    journalling = services_with(folder, engine, AnyKey())
    settings = Settings(data_dir=folder)
    listeners = [bind("127.0.0.1", 0) for _ in range(2)]

    async def main() -> None:
        servers = [
            TurnpikeServer(
                create_app(settings, services), services.drain, delay_s=0, deadline_s=1, on_ready=lambda: None
            )
            for services in (journalling, silent)
        ]
        running = [
            asyncio.create_task(server.serve(sockets=[listener]))
            for server, listener in zip(servers, listeners, strict=True)
        ]
        while not all(server.started for server in servers):
            await asyncio.sleep(0.01)
        ready.send([listener.getsockname()[1] for listener in listeners])
        await asyncio.wait(running)

    uvloop.run(main())


def _engine(kind: str) -> EngineClient:
    if kind == "fake":
        engine = FakeEngine()
        engine.models = {MODEL: FakeModel(MODEL, 4096)}  # type: ignore[assignment]
        engine.reply = "x" * 4000
        return engine
    config = EngineConfig(kv_cache_bytes=512 << 20, max_model_len=2048, prefix_cache=False)
    return Engine.load({MODEL: fetch("smollm2", Settings().models_dir)}, config)


# The clients


@dataclass(frozen=True, slots=True)
class Server:
    """`ports`: with the journal, and without."""

    pid: int
    ports: Sequence[int]

    def cpu_s(self) -> float:
        """Processor time so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run(server: Server, client: Client, concurrency: int, answers: tuple[int, int], seed: int) -> Run:
    """All requests of one run, `concurrency` at a time."""
    rng = random.Random(seed)
    questions = [Question("", "any", completion(PROMPT, rng.randint(*answers))) for _ in range(concurrency * EACH)]
    outcomes: list[Outcome] = []

    async def one_after_another() -> None:
        while questions:
            outcomes.append(await client.ask(questions.pop(), time.perf_counter()))

    began_s, cpu_s = time.perf_counter(), server.cpu_s()
    await asyncio.gather(*(one_after_another() for _ in range(concurrency)))
    seconds, cpu_s = time.perf_counter() - began_s, server.cpu_s() - cpu_s
    tokens = sum(each.tokens for each in outcomes)
    assert all(each.finished and each.events_s for each in outcomes), "an answer did not come"
    return Run(
        tokens / seconds,
        cpu_s / tokens * 1e6,
        statistics.median((each.first_token_s - each.sent_s) * 1e3 for each in outcomes),
        statistics.median(
            (each.events_s[-1] - each.first_token_s) / (each.tokens - 1) * 1e3 for each in outcomes if each.tokens > 1
        ),
        statistics.median((each.ended_s - each.events_s[-1]) * 1e3 for each in outcomes),
    )


async def compare(server: Server, concurrency: int, answers: tuple[int, int], pairs: int) -> list[list[Run]]:
    """Pairs of runs: with the journal, and without."""
    clients = [Client("127.0.0.1", port) for port in server.ports]
    for client in clients:
        await run(server, client, concurrency, answers, seed=-1)
    measured = []
    for pair in range(pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        runs = {which: await run(server, clients[which], concurrency, answers, pair) for which in order}
        measured.append([runs[0], runs[1]])
    for client in clients:
        client.close()
    return measured


def report(concurrency: int, pairs: Sequence[Sequence[Run]]) -> None:
    ratio = bootstrap_median([on.tokens_per_s / off.tokens_per_s for on, off in pairs])
    without = statistics.median(off.tokens_per_s for _, off in pairs)
    print(f"  {concurrency:3} at a time: tok/s with the journal over without {ratio:.3f}   ({without:.0f} without)")
    cpu = bootstrap_median([on.cpu_us_per_token / off.cpu_us_per_token for on, off in pairs])
    without = statistics.median(off.cpu_us_per_token for _, off in pairs)
    print(f"       the server's processor time for a token {cpu:.3f}   ({without:.0f} us without)")
    for name, what in (("the first token", "first_ms"), ("a token", "between_ms"), ("the end", "end_ms")):
        later = bootstrap_median([getattr(on, what) - getattr(off, what) for on, off in pairs])
        without = statistics.median(getattr(off, what) for _, off in pairs)
        print(f"       {name:>16} later by {later:.2f} ms   ({without:.2f} ms without)", flush=True)


def measure(kind: str, pairs: int) -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        print(f"{kind}; 4 KiB and an fsync take {statistics.median(fsync_ms(Path(folder))):.2f} ms (median)")
        ours, theirs = context.Pipe()
        server = context.Process(target=serve, args=(kind, Path(folder), theirs))
        server.start()
        try:
            theirs.close()
            where = Server(server.pid or 0, ours.recv())
            for concurrency in CONCURRENCIES[kind]:
                report(concurrency, uvloop.run(compare(where, concurrency, ANSWERS[kind], pairs)))
        finally:
            server.kill()
            server.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=tuple(CONCURRENCIES), action="append", help="default: all of them")
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    print(f"bounds: throughput at least {BOUND_RATIO}, tokens {BOUND_MS} ms, the end {BOUND_END_MS:.0f} ms later")
    for kind in options.model or CONCURRENCIES:
        measure(kind, options.pairs)


if __name__ == "__main__":
    main()
