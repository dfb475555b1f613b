"""Streams that are open at once through one gateway process: `python -m benchmarks.open_streams`.

The whole program in a process of its own, over loopback, with its engine on a fake replica (`benchmarks.fake_replica`)
that gives each request its first token at once and the others when all are open. Clients connect at a steady rate.

Printed: the time to the first token, the memory that the gateway has grown by for each open stream (pages of its own),
and how many streams were lost: not answered, not ended, or without all of their tokens. Bounds: none lost, 100 KiB a
stream. Each process needs a descriptor for each stream.
"""

import argparse
import asyncio
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import orjson
import uvloop

from benchmarks import weightless
from benchmarks.intervals import quantile
from engine.catalog.catalog import fetch
from gateway.config.settings import Settings
from tests.support.program import Program, running

STREAMS = 10_000
RATE = 250.0
TOKENS = 4
ASKED_KIB = 100.0
SETTLE_S = 3.0
MOST_SECONDS = 240.0
WARM = 50
_MARK = b" time"


@dataclass(slots=True)
class Outcome:
    """All streams of a run."""

    first_ms: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Of each stream that has ended as it should."""
    failures: list[str] = field(default_factory=list)


class _Stream(asyncio.Protocol):
    """One stream, from its connection to its end."""

    def __init__(self, request: bytes, outcome: Outcome) -> None:
        self._request = request
        self._outcome = outcome
        self._sent_s = 0.0
        self._tokens = 0
        self._tail = b""
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._sent_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        before = len(self._tail)
        data = self._tail + data
        self._tokens += data.count(_MARK) - self._tail.count(_MARK)
        self._tail = data[-16:]
        if self._tokens and not self.first.done():
            self._outcome.first_ms.append((time.perf_counter() - self._sent_s) * 1e3)
            self.first.set_result(None)
        if b"data: [DONE]" in data:
            self._outcome.tokens.append(self._tokens)
            self._end()
        elif not before and not data.startswith(b"HTTP/1.1 200 "):
            self._outcome.failures.append(repr(data[:200]))
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._outcome.failures.append(f"the connection was lost: {exc}")
            self._end()

    def _end(self) -> None:
        for future in (self.first, self.done):
            if not future.done():
                future.set_result(None)
        self._transport.close()


def own_kib(pid: int) -> float:
    """Memory of a process that is its own."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return float(line.split()[1])
    raise AssertionError("the kernel does not say")


def request_of(program: Program, tokens: int) -> bytes:
    fields = {"model": weightless.MODEL, "prompt": "Once upon a", "max_tokens": tokens, "stream": True}
    body = orjson.dumps(fields)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {program.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _open(program: Program, count: int, rate: float, outcome: Outcome, tokens: int) -> list[_Stream]:
    """`count` streams, `rate` a second, each with its first token."""
    loop, port = asyncio.get_running_loop(), urlsplit(program.url).port
    request, began_s, streams = request_of(program, tokens), loop.time(), []
    for number in range(count):
        await asyncio.sleep(max(0.0, began_s + number / rate - loop.time()))
        _, stream = await loop.create_connection(lambda: _Stream(request, outcome), "127.0.0.1", port)
        streams.append(stream)
    async with asyncio.timeout(MOST_SECONDS):
        await asyncio.gather(*(stream.first for stream in streams))
    return streams


async def measure(program: Program, replica: subprocess.Popen[bytes], count: int, rate: float) -> tuple[Outcome, float]:
    """The outcome of `count` streams, and KiB of the gateway for each while they are open."""
    warm = Outcome()
    await _open(program, WARM, rate, warm, 1)
    await asyncio.sleep(SETTLE_S)
    before_kib, outcome = own_kib(program.process.pid), Outcome()
    streams = await _open(program, count, rate, outcome, TOKENS)
    await asyncio.sleep(SETTLE_S)
    grown_kib = (own_kib(program.process.pid) - before_kib) / count
    replica.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(MOST_SECONDS):
        await asyncio.gather(*(stream.done for stream in streams))
    return outcome, grown_kib


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Program, subprocess.Popen[bytes]]]:
    """A gateway and its fake replica."""
    checkpoint, socket = fetch("smollm2", Settings().models_dir), folder / "replica.sock"
    replica = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.fake_replica", str(socket), str(checkpoint)],
        env=os.environ | {weightless.STEP_MS: "0"},
    )
    try:
        environment = {
            "TURNPIKE_REPLICAS": orjson.dumps({weightless.MODEL: [f"unix:{socket}"]}).decode(),
            "TURNPIKE_LOG_LEVEL": "warning",
        }
        model = f"{weightless.MODEL}={checkpoint}"
        with running(folder / "data", "--model", model, environment=environment) as program:
            limits = ("--concurrent", "1000000", "--requests-per-minute", "1000000000")
            program.command("limit", "set", "--tenant", "acme", *limits)
            time.sleep(6.0)  # until the server knows
            yield program, replica
    finally:
        replica.kill()
        replica.wait()


def lost(outcome: Outcome, count: int) -> int:
    """Streams that did not end with all of their tokens."""
    return count - outcome.tokens.count(TOKENS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--rate", type=float, default=RATE, help="streams that begin in a second")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"{options.streams} streams through one gateway process, {options.rate:.0f} more a second", flush=True)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        program, replica = stack.enter_context(serving(Path(name)))
        outcome, grown_kib = uvloop.run(measure(program, replica, options.streams, options.rate))
    p50, p99 = (quantile(outcome.first_ms, share).value for share in (0.5, 0.99))
    print(f"  first token: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    print(f"  the gateway holds {grown_kib:.1f} KiB for each ({ASKED_KIB:.0f} asked)")
    print(f"  lost: {lost(outcome, options.streams)} (none asked) {' '.join(sorted(set(outcome.failures))[:3])}")


if __name__ == "__main__":
    main()
