"""The first token of a conversation's tenth turn, remembered and cold: `python -m benchmarks.sessions`.

A real `turnpike serve` with SmolLM2-135M over loopback HTTP. Each round is a conversation of its own: nine turns on a
session, a few hundred words each, and a tenth, whose prompt has some 2,000 tokens. The same prompt, every message of
it, is sent by another tenant, whose prefix cache has none of it: the cost of the tenth turn without the cache. The two
take turns in going first. Times are from the request's sending to the event with the first text.

Bound: the tenth turn's median at most 0.3 of the cold one's.
"""

import argparse
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from benchmarks.intervals import bootstrap_quantile_ratio, quantile
from benchmarks.limits import measured_limits, print_limits
from engine.catalog.catalog import fetch
from gateway.config.settings import Settings
from tests.support.program import Program, running

BOUND = 0.3
TURNS = 10
WORDS_PER_MESSAGE = 150
ANSWER_TOKENS = 48
TOPICS = ("the river", "a market", "the harbour", "an old bridge", "the library", "a garden", "the mill", "the school")
WORDS = (
    "stands",
    "near",
    "many",
    "people",
    "who",
    "work",
    "there",
    "in",
    "spring",
    "and",
    "walk",
    "home",
    "by",
    "night",
)


@dataclass(frozen=True, slots=True)
class Answered:
    """One streamed answer, as its client saw it."""

    first_token_s: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Measured:
    warm: list[Answered] = field(default_factory=list)
    cold: list[Answered] = field(default_factory=list)


def message(rng: random.Random, turn: int) -> dict[str, str]:
    words = " ".join(rng.choice(WORDS) for _ in range(WORDS_PER_MESSAGE))
    return {"role": "user", "content": f"Part {turn}, about {rng.choice(TOPICS)}: {words}. What do you make of it?"}


def ask(client: httpx.Client, key: str, messages: list[Any], **fields: Any) -> Answered:
    body = {
        "model": "smollm2",
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_s, first_s, usage = time.perf_counter(), 0.0, {}
    headers = {"authorization": f"Bearer {key}"}
    with client.stream("POST", "/v1/chat/completions", json=body | fields, headers=headers) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = orjson.loads(line[6:])
            usage = chunk["usage"] or usage
            if not first_s and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                first_s = time.perf_counter()
    return Answered(first_s - sent_s, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


def converse(client: httpx.Client, program: Program, cold_key: str, number: int, measured: Measured) -> None:
    """One conversation, up to its tenth turn."""
    rng = random.Random(number)
    session = f"round-{number}"
    for turn in range(1, TURNS):
        ask(client, program.key, [message(rng, turn)], session_id=session)
    headers = {"authorization": f"Bearer {program.key}"}
    before = client.get(f"/v1/sessions/{session}", headers=headers).raise_for_status().json()["messages"]
    last = message(rng, TURNS)

    def warm() -> None:
        measured.warm.append(ask(client, program.key, [last], session_id=session))

    def cold() -> None:
        measured.cold.append(ask(client, cold_key, [*before, last]))

    for measure in (warm, cold) if number % 2 else (cold, warm):
        measure()
    assert measured.warm[-1].prompt_tokens == measured.cold[-1].prompt_tokens, "not the same prompt"


def report(measured: Measured) -> None:
    warm, cold = ([each.first_token_s * 1e3 for each in some] for some in (measured.warm, measured.cold))
    prompts = [each.prompt_tokens for each in measured.warm]
    print(f"\n{len(warm)} conversations; the prompt of the tenth turn has {min(prompts)} to {max(prompts)} tokens")
    for name, answers in (("tenth turn", measured.warm), ("the same, cold", measured.cold)):
        cached = sum(each.cached_tokens for each in answers) / sum(prompts)
        median = quantile([each.first_token_s * 1e3 for each in answers], 0.5)
        print(f"{name:15s} first token, p50 of {median:.0f} ms, {cached:.3f} of the prompt in the prefix cache")
    print(f"ratio of medians: {bootstrap_quantile_ratio(warm, cold, 0.5):.3f}, bound {BOUND}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print_limits(measured_limits())
    measured = Measured()
    with tempfile.TemporaryDirectory() as folder:
        model = f"smollm2={fetch('smollm2', Settings().models_dir)}"
        with (
            running(Path(folder), "--model", model) as program,
            httpx.Client(base_url=program.url, timeout=120) as http,
        ):
            program.command("tenant", "create", "cold", "--tier", "premium")
            cold_key = program.command("key", "create", "--tenant", "cold")
            converse(http, program, cold_key, 0, Measured())
            for number in range(1, options.rounds + 1):
                converse(http, program, cold_key, number, measured)
    report(measured)


if __name__ == "__main__":
    main()
