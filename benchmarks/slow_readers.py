"""A thousand clients that never read, and a hundred that do: `python -m benchmarks.slow_readers`.

The whole program in a process of its own, over loopback, with a model that weighs nothing and takes `STEP_MS` for a
step: what is left is the path of the tokens, from the scheduler to the sockets. All ask for long streams. The readers
run throughout; their time from one piece of text to the next is taken before the others come, while the engine stands
still for all of them, and after they have gone. Bound: the p99 with them at most 1.1 of that before and after.

Also measured: their cost while they fill their buffers (no bound: until a buffer is full they count as readers), and
the memory that each of them holds. The server has the cores but one, this program that one. Each process needs a
descriptor for each connection; the soft limit is raised to the hard one.
"""

import argparse
import asyncio
import resource
import socket
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import orjson
import uvloop

from benchmarks import weightless
from benchmarks.cores import Cores
from benchmarks.intervals import quantile
from tests.support.program import Program, running

READERS = 100
UNREAD = 1_000
STEP_MS = 25.0
PHASE_S = 10.0
SETTLE_S = 90.0
"""At most, until the engine stands still for all that do not read."""
ANSWER_TOKENS = 7_500
BOUND = 1.1
CONNECTIONS_AT_A_TIME = 50


@dataclass(slots=True)
class Phase:
    """Times between pieces of text, in ms, of all readers, and how many tokens came."""

    name: str
    gaps_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


class Reader(asyncio.Protocol):
    """Notes when text comes, in the phase of the moment."""

    def __init__(self, request: bytes, readers: "Readers") -> None:
        self._request = request
        self._readers = readers
        self._last_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        tokens = data.count(b'"text":')
        if not tokens:
            return
        now_s, phase = time.perf_counter(), self._readers.phase
        if self._last_s > self._readers.since_s:
            phase.gaps_ms.append((now_s - self._last_s) * 1e3)
        phase.tokens += tokens
        self._last_s = now_s


class Readers:
    """All of them, and the phase that they are in."""

    def __init__(self) -> None:
        self.phase = Phase("")
        self.since_s = 0.0

    async def measure(self, name: str, seconds: float) -> Phase:
        self.phase, self.since_s = Phase(name), time.perf_counter()
        await asyncio.sleep(seconds)
        measured, self.phase = self.phase, Phase("")
        measured.seconds = time.perf_counter() - self.since_s
        return measured


def request_of(program: Program) -> bytes:
    fields = {
        "model": weightless.MODEL,
        "prompt": "Once upon a",
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    body = orjson.dumps(fields)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {program.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def connect_unread(port: int, request: bytes, count: int) -> list[socket.socket]:
    """Clients that ask and do not read, with the least that the kernel keeps for them."""
    loop, clients = asyncio.get_running_loop(), []
    for _ in range(count):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, request)
        clients.append(client)
        if len(clients) % CONNECTIONS_AT_A_TIME == 0:
            await asyncio.sleep(0.05)
    return clients


async def metric(program: Program, name: str) -> float:
    return await asyncio.to_thread(program.metric, name)


def resident_mib(program: Program) -> float:
    """The server's memory that is its own."""
    for line in Path(f"/proc/{program.process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not say")


async def measure(program: Program, readers: int, unread: int, seconds: float) -> list[Phase]:
    loop, request = asyncio.get_running_loop(), request_of(program)
    port = urlsplit(program.url).port
    assert port is not None
    mine = Readers()
    transports = [
        (await loop.create_connection(lambda: Reader(request, mine), "127.0.0.1", port))[0] for _ in range(readers)
    ]
    await asyncio.sleep(2.0)
    phases = [await mine.measure("before", seconds)]
    before_mib = resident_mib(program)
    clients = await connect_unread(port, request, unread)
    filling = await mine.measure("while they fill", seconds)
    deadline = time.perf_counter() + SETTLE_S
    while await metric(program, "turnpike_sequences_paused") < unread:
        if time.perf_counter() > deadline:
            raise SystemExit("the engine does not stand still for those that do not read")
        await asyncio.sleep(0.5)
    grown_kib = (resident_mib(program) - before_mib) * 1024 / unread
    phases.append(await mine.measure("beside them", seconds))
    paused = await metric(program, "turnpike_sequences_paused")
    for client in clients:
        client.close()
    while await metric(program, "turnpike_sequences_paused"):
        await asyncio.sleep(0.2)
    phases.append(await mine.measure("after", seconds))
    for transport in transports:
        transport.abort()
    print(f"  {paused:.0f} stood still; the server holds {grown_kib:.0f} KiB for each")
    return [*phases, filling]


def report(phases: list[Phase]) -> None:
    for phase in phases:
        p50, p99 = (quantile(phase.gaps_ms, share) for share in (0.5, 0.99))
        rate = phase.tokens / phase.seconds
        print(f"  {phase.name:>16}: {rate:6.0f} tok/s to readers, between pieces p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    before, beside, after, _ = phases
    alone = quantile(before.gaps_ms + after.gaps_ms, 0.99).value
    print(f"  p99 beside them over that without: {quantile(beside.gaps_ms, 0.99).value / alone:.3f} ({BOUND} asked)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readers", type=int, default=READERS)
    parser.add_argument("--unread", type=int, default=UNREAD)
    parser.add_argument("--seconds", type=float, default=PHASE_S)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"{options.unread} that do not read beside {options.readers} that do; descriptors: {hard}", flush=True)
    cores, (serve, environment) = Cores(), weightless.command(STEP_MS)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = f"{weightless.MODEL}={folder}"
        with cores.of_servers():
            server = running(Path(folder), "--model", model, program=serve, environment=environment)
            program = stack.enter_context(server)
        report(uvloop.run(measure(program, options.readers, options.unread, options.seconds)))


if __name__ == "__main__":
    main()
