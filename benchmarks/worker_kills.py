"""Streams whose engine process is killed with SIGKILL: `python -m benchmarks.worker_kills [--cycles 200]`.

A `turnpike serve` with the engine in a process of its own, over loopback HTTP. Requests of several kinds (greedy,
seeded with penalties, held to a JSON schema, with log-probabilities, several choices) are first answered undisturbed,
then asked again and again by `CONCURRENCY` clients, while the engine process is killed in each cycle at a random
moment after it became ready. A stream that was open at a kill should end with the very text and usage of the
undisturbed answer.

Printed: what became of the streams that a kill met, the gap that their clients saw, and whether what was billed is
what clients received. Bound: 99 % of them end with the same answer.
"""

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from benchmarks.intervals import quantile
from engine.catalog.catalog import fetch
from gateway.config.settings import Settings
from tests.support.program import Program, running

BOUND = 0.99
CONCURRENCY = 8
MOST_SECONDS = 120.0
"""Time for some answers, or for a start of the engine's process."""
WORKER = "engine.workers.process"
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "items": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "items"],
}
KINDS: Sequence[dict[str, Any]] = (
    {"temperature": 0},
    {"seed": 1, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"seed": 2, "response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": _SCHEMA}}},
    {"seed": 3, "logprobs": True, "top_logprobs": 2},
    {"seed": 4, "n": 3},
    {"seed": 5, "stop": ["zebra crossing", "!!"]},
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of an answer that a replay must not change."""

    texts: tuple[str, ...]
    reasons: tuple[str, ...]
    logprobs: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class Stream:
    """One request. `status`: 0 where there was no answer. `events_s`: monotonic times of the events."""

    job: int
    sent_s: float
    status: int = 0
    id: str = ""
    error: str | None = None
    answer: Answer | None = None
    events_s: list[float] = field(default_factory=list)

    def gap_s(self, killed_s: Sequence[float]) -> float | None:
        """The time from the last event before a kill to the next one; None: no kill met it."""
        gaps = []
        for kill_s in killed_s:
            before = [at for at in self.events_s if at <= kill_s]
            after = [at for at in self.events_s if at > kill_s]
            if before and after:
                gaps.append(after[0] - before[-1])
        return max(gaps, default=None)


@dataclass(slots=True)
class Run:
    """Everything that was sent in a run, and the times of its kills."""

    streams: list[Stream]
    killed_s: list[float]

    @property
    def met(self) -> list[Stream]:
        """Streams that were open at a kill, after their first event."""
        return [each for each in self.streams if any(_open_at(each, kill_s) for kill_s in self.killed_s)]


def _open_at(stream: Stream, kill_s: float) -> bool:
    return bool(stream.events_s) and stream.events_s[0] < kill_s < stream.events_s[-1]


def body(model: str, kind: int, max_tokens: int) -> dict[str, Any]:
    """A request of one kind, streamed."""
    question = f"Write about the number {kind} and a king who counted his {kind + 3} horses."
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **KINDS[kind],
    }


async def ask(
    client: httpx.AsyncClient,
    key: str,
    job: int,
    request: dict[str, Any],
    on_sent: Callable[[Stream], None] = lambda stream: None,
) -> Stream:
    """Send a request and read its answer to the end. `on_sent` has the stream before that.

    Raises:
        httpx.HTTPError: the connection has failed.
    """
    stream = Stream(job, time.monotonic())
    on_sent(stream)
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    logprobs: dict[int, list[float]] = {}
    usage: dict[str, int] = {}
    headers = {"authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/chat/completions", json=request, headers=headers) as response:
        stream.status = response.status_code
        if stream.status != 200:
            stream.error = orjson.loads(await response.aread())["error"]["code"]
            return stream
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            stream.events_s.append(time.monotonic())
            chunk = orjson.loads(line[6:])
            if "error" in chunk:
                stream.error = chunk["error"]["code"]
                return stream
            stream.id = chunk["id"]
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                index = choice["index"]
                texts[index] = texts.get(index, "") + (choice["delta"].get("content") or "")
                reasons[index] = choice["finish_reason"] or reasons.get(index, "")
                for each in (choice.get("logprobs") or {}).get("content") or ():
                    logprobs.setdefault(index, []).append(round(each["logprob"], 3))
    stream.answer = Answer(
        tuple(text for _, text in sorted(texts.items())),
        tuple(reason for _, reason in sorted(reasons.items())),
        tuple(value for _, values in sorted(logprobs.items()) for value in values),
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    return stream


def worker_pid(parent: int) -> int | None:
    """The engine process of a gateway; None while there is none."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command, status = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
            except OSError:
                continue  # it has ended
            if WORKER.encode() in command and int(status.rpartition(")")[2].split()[1]) == parent:
                return int(folder.name)
    return None


async def kill_in_turns(
    program: Program, client: httpx.AsyncClient, cycles: int, streams: Sequence[Stream], rng: random.Random
) -> list[float]:
    """Kill the engine process `cycles` times, each time after some streams have ended; returns when, in monotonic
    seconds."""
    killed_s = []
    for _ in range(cycles):
        await _until_ready(client)
        ended, more = _answered(streams), rng.randint(2, 2 * CONCURRENCY)
        async with asyncio.timeout(MOST_SECONDS):
            while _answered(streams) < ended + more:
                await asyncio.sleep(0.01)
        await asyncio.sleep(rng.uniform(0.0, 0.3))
        pid = worker_pid(program.process.pid)
        assert pid is not None, "a gateway that is ready has no engine process"
        killed_s.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.2)
    await _until_ready(client)
    return killed_s


def _answered(streams: Sequence[Stream]) -> int:
    return sum(stream.status == 200 for stream in streams)


async def _until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(MOST_SECONDS):
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)


async def run(
    program: Program, model: str, cycles: int, max_tokens: int, concurrency: int = CONCURRENCY
) -> tuple[dict[int, Answer], Run]:
    """The undisturbed answers by kind of request, and a run with kills."""
    limits = httpx.Limits(max_connections=2 * concurrency + 2)
    async with httpx.AsyncClient(base_url=program.url, timeout=300, limits=limits) as client:
        undisturbed: dict[int, Answer] = {}
        for kind in range(len(KINDS)):
            stream = await ask(client, program.key, kind, body(model, kind, max_tokens))
            assert stream.answer is not None, stream
            undisturbed[kind] = stream.answer
        streams: list[Stream] = []
        stopping = asyncio.Event()

        async def load(number: int) -> None:
            kind = number
            while not stopping.is_set():
                kind = (kind + 1) % len(KINDS)
                streams.append(await ask(client, program.key, kind, body(model, kind, max_tokens)))
                if streams[-1].status == 503:
                    await asyncio.sleep(0.2)

        loads = [asyncio.create_task(load(number)) for number in range(concurrency)]
        killed_s = await kill_in_turns(program, client, cycles, streams, random.Random(1))
        stopping.set()
        await asyncio.gather(*loads)
    return undisturbed, Run(streams, killed_s)


def fate(stream: Stream, undisturbed: dict[int, Answer]) -> str:
    """The end of a stream, in a word or two."""
    if stream.answer is None:
        return stream.error or "cut"
    return "same answer" if stream.answer == undisturbed[stream.job] else "another answer"


def report(undisturbed: dict[int, Answer], run: Run) -> float:
    """Print the figures; returns the share of streams met by a kill that end with the same answer."""
    fates = Counter(fate(stream, undisturbed) for stream in run.met)
    share = fates["same answer"] / max(len(run.met), 1)
    print(f"\n{len(run.killed_s)} kills, {len(run.streams)} requests, {len(run.met)} streams open at a kill")
    for name, count in fates.most_common():
        print(f"  {count:5d} {name}")
    elsewhere = Counter(fate(stream, undisturbed) for stream in run.streams if stream not in run.met)
    print(f"others: {dict(elsewhere)}")
    gaps = [gap for stream in run.met if (gap := stream.gap_s(run.killed_s)) is not None]
    print(f"gap at a kill: p50 {quantile(gaps, 0.5):.2f} s, p99 {quantile(gaps, 0.99):.2f} s")
    print(f"same answer: {share:.4f} of the streams open at a kill, bound {BOUND}")
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=120, help="maximum tokens of an answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = f"smollm2={fetch('smollm2', Settings().models_dir)}"
        environment = {"TURNPIKE_ENGINE_PROCESS": "true"}
        with running(Path(folder), "--model", model, environment=environment) as program:
            undisturbed, done = asyncio.run(run(program, "smollm2", options.cycles, options.tokens))
            report(undisturbed, done)


if __name__ == "__main__":
    main()
