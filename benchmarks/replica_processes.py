"""Two workers and a gateway as processes, and sessions that are played to them: see `benchmarks.replica_routing`."""

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, get_args

import httpx
import orjson

from benchmarks.intervals import quantile
from engine.catalog.catalog import fetch
from engine.workers.replica_choice import RoutingName
from gateway.config.settings import Settings
from tests.support.program import TURNPIKE, Program, running
from tests.support.servers import free_port

MODEL = "smollm2"
SESSIONS, TURNS = 8, 4
SYSTEM_WORDS, MESSAGE_WORDS, ANSWER_TOKENS = 160, 30, 24
START_EVERY_S, THINK_S = 0.7, 0.6
WORDS = ("river", "stone", "light", "paper", "garden", "window", "music", "winter", "letter", "forest", "bridge")
_STOP_SECONDS = 30.0


@dataclass(slots=True)
class Answers:
    """The requests of one run. Times in seconds; tokens summed."""

    ttft_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    refused: int = 0
    """Requests that got 429, because their predicted wait was too long."""


def play_real() -> None:
    """Print one table: each way of routing on the same workers. Each run has a gateway with a pepper of its own, and so
    caches of its own on the workers."""
    model = f"{MODEL}={fetch(MODEL, Settings().models_dir)}"
    print(f"real: SmolLM2 135 M on two workers, one gateway, {SESSIONS} sessions of {TURNS} turns")
    print(f"  {'TTFT':18} {'p50 / p99':>16} {'hit share':>10} {'refused':>8}")
    with tempfile.TemporaryDirectory() as root, _workers(Path(root), model) as addresses:
        for routing in get_args(RoutingName):
            environment = {
                "TURNPIKE_REPLICAS": orjson.dumps({MODEL: addresses}).decode(),
                "TURNPIKE_REPLICA_ROUTING": routing,
            }
            with running(Path(root) / routing, "--model", model, environment=environment) as program:
                answers = asyncio.run(_play(program))
            assert len(answers.ttft_s) + answers.refused == SESSIONS * TURNS, "requests have no end"
            times = [1000 * quantile(answers.ttft_s, share).value for share in (0.5, 0.99)]
            hit_share = answers.cached_tokens / answers.prompt_tokens
            print(
                f"  {routing:18} {f'{times[0]:.0f} / {times[1]:.0f} ms':>16} {hit_share:>10.3f} {answers.refused:>8}",
                flush=True,
            )


@contextmanager
def _workers(root: Path, model: str) -> Iterator[Sequence[str]]:
    """Two workers, to their ends. Their addresses; gateways wait until they are ready."""
    addresses, processes = [f"127.0.0.1:{free_port()}" for _ in range(2)], []
    try:
        for number, address in enumerate(addresses):
            command = [str(TURNPIKE), "worker", "--listen", address, "--model", model]
            with (root / f"worker{number}.log").open("wb") as log:
                command += ["--data-dir", str(root / f"worker{number}")]
                processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        yield [f"tcp://{address}" for address in addresses]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _play(program: Program) -> Answers:
    answers, random = Answers(), Random(5)
    async with httpx.AsyncClient(base_url=program.url, timeout=120) as client:
        system = _words(random, SYSTEM_WORDS)
        sessions = []
        for number in range(SESSIONS):
            own = _words(random, SYSTEM_WORDS) if number % 2 else system
            sessions.append(_converse(client, program.key, own, Random(number), number * START_EVERY_S, answers))
        await asyncio.gather(*sessions)
    return answers


async def _converse(
    client: httpx.AsyncClient, key: str, system: str, random: Random, delay_s: float, answers: Answers
) -> None:
    messages = [{"role": "system", "content": system}]
    for turn in range(TURNS):
        await asyncio.sleep(THINK_S * random.uniform(0.5, 1.5) if turn else delay_s)
        messages.append({"role": "user", "content": _words(random, MESSAGE_WORDS)})
        messages.append({"role": "assistant", "content": await _ask(client, key, messages, answers)})


async def _ask(client: httpx.AsyncClient, key: str, messages: list[dict[str, str]], answers: Answers) -> str:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_s, text, first_s = time.monotonic(), "", None
    headers = {"Authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        if response.status_code == 429:
            answers.refused += 1
            return ""
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = orjson.loads(line.removeprefix("data: "))
            for choice in event["choices"]:
                part = choice["delta"].get("content") or ""
                if part and first_s is None:
                    first_s = time.monotonic()
                text += part
            if usage := event.get("usage"):
                answers.prompt_tokens += usage["prompt_tokens"]
                answers.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
    answers.ttft_s.append((first_s or time.monotonic()) - sent_s)
    return text


def _words(random: Random, count: int) -> str:
    return " ".join(random.choice(WORDS) + random.choice(("", "s", "ed")) for _ in range(count))
