"""The load, the same for every server, and what came of it.

Each request has a connection of its own: llama.cpp's server closes one after a streamed answer, others do not.
"""

import asyncio
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import cycle
from string import ascii_lowercase

from benchmarks.traffic import percentile
from gateway.tools.bench.client import Client, Target, opened
from gateway.tools.bench.clock import Clock
from gateway.tools.bench.lengths import LogNormal
from gateway.tools.bench.outcome import Outcome
from gateway.tools.bench.prompts import Prompt, synthetic
from gateway.tools.bench.recorder import Recorder

MODEL = "model"
"""The name of the weights at every server."""
REQUESTS = {1: 8, 4: 10, 8: 10, 16: 18, 32: 32}
"""In a pass, by concurrency."""
_WAKING_TOKENS = 64
_WAKING_ANSWER = 8
PREFIX_CHATS = 24
PREFIX_TOKENS = 512
_TIMEOUT_S = 600.0
_PROMPT = LogNormal(128, 0.8, 16, 512)
_ANSWER = LogNormal(64, 0.8, 8, 256)
_PREFIX_PROMPT = LogNormal(48, 0.8, 16, 128)
_PREFIX_ANSWER = LogNormal(32, 0.8, 8, 64)

Text = Callable[[int, random.Random], str]
"""Makes a text of a number of tokens."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one load on one server. `failed`: requests without a whole answer. Times in milliseconds."""

    output_tokens_s: float
    total_tokens_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    requests: int
    failed: int
    short_tokens: int
    """Tokens that were asked for and did not come in answers that ended well."""


def letters(tokens: int, rng: random.Random) -> str:
    """For a tokenizer with a token a byte."""
    return "".join(rng.choices(ascii_lowercase, k=tokens))


def words(tokens: int, rng: random.Random) -> str:
    """English text with approximately one token a word."""
    return next(synthetic(LogNormal(tokens, 0, tokens, tokens), _ANSWER, rng)).text


def chats(count: int, text: Text, seed: str) -> list[Prompt]:
    rng = random.Random(seed)
    return [Prompt(text(_PROMPT.draw(rng), rng), None, _ANSWER.draw(rng)) for _ in range(count)]


def waking(text: Text, seed: str) -> list[Prompt]:
    """Warm-up of a server that was stopped: it restores pages and threads before the measurement."""
    return [Prompt(text(_WAKING_TOKENS, random.Random(seed)), None, _WAKING_ANSWER)]


def prefixed_chats(count: int, text: Text, seed: str, *, shared: bool) -> list[Prompt]:
    """Each with a system prompt of `PREFIX_TOKENS`, its own or one for all."""
    rng = random.Random(seed)
    one = text(PREFIX_TOKENS, rng)
    return [_prefixed(one if shared else text(PREFIX_TOKENS, rng), text, rng) for _ in range(count)]


def _prefixed(prefix: str, text: Text, rng: random.Random) -> Prompt:
    messages = (
        {"role": "system", "content": prefix},
        {"role": "user", "content": text(_PREFIX_PROMPT.draw(rng), rng)},
    )
    return Prompt("", messages, _PREFIX_ANSWER.draw(rng))


def measure(
    url: str, key: str | None, prompts: Sequence[Prompt], concurrency: int, models: Sequence[str] = (MODEL,)
) -> Figures:
    """All prompts once, `concurrency` at a time; the models take turns."""
    targets = [
        Target(url=url, model=model, endpoint="chat", key=key, ignore_eos=True, timeout_s=_TIMEOUT_S)
        for model in models
    ]
    return asyncio.run(_measure(targets, prompts, concurrency))


async def _measure(targets: Sequence[Target], prompts: Sequence[Prompt], concurrency: int) -> Figures:
    clock, record = Clock(), Recorder()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(opened(target, clock, keep_connections=False)) for target in targets]
        left = zip(cycle(clients), prompts, strict=False)
        began_s = clock.now_s()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(_place(left, clock, record))
        seconds = clock.now_s() - began_s
    return figures(record.outcomes, sum(prompt.max_tokens for prompt in prompts), seconds)


async def _place(left: Iterator[tuple[Client, Prompt]], clock: Clock, record: Recorder) -> None:
    for client, prompt in left:
        await client.ask(prompt, clock.now_s(), record)


def figures(outcomes: Sequence[Outcome], asked_tokens: int, seconds: float) -> Figures:
    """
    Raises:
        ValueError: no request has an answer.
    """
    done = [each for each in outcomes if each.finished]
    if not done:
        raise ValueError(f"none of {len(outcomes)} requests was answered: {outcomes[0].ending if outcomes else '-'}")
    output = sum(each.output_tokens for each in done)
    inputs = sum(each.prompt_tokens or 0 for each in done)
    ttft_ms = [each.ttft_s * 1e3 for each in done if each.ttft_s is not None]
    tpot_ms = [each.tpot_s * 1e3 for each in done if each.tpot_s is not None]
    return Figures(
        output_tokens_s=output / seconds,
        total_tokens_s=(output + inputs) / seconds,
        ttft_p50_ms=statistics.median(ttft_ms),
        ttft_p95_ms=percentile(ttft_ms, 0.95),
        tpot_p50_ms=statistics.median(tpot_ms) if tpot_ms else 0.0,
        requests=len(outcomes),
        failed=len(outcomes) - len(done),
        short_tokens=asked_tokens - output if len(done) == len(outcomes) else 0,
    )
