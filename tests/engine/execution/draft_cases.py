"""Proposers, requests and checks of the tests of drafts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import pytest

from engine.models.host_model import HostModel
from engine.request import Request, SamplingParams, TokenLogprob, Usage
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import DraftWant, Proposer
from tests.engine.execution.harness import GREEDY, Generated, Harness, load_tiny, prompt
from tests.support.tiny_tokenizer import VOCAB_SIZE

SEEDED = SamplingParams(temperature=0.9, top_p=0.9, top_k=100, ignore_eos=True)

EVERYTHING = SamplingParams(
    temperature=1.0,
    min_p=0.01,
    min_tokens=6,
    frequency_penalty=0.4,
    presence_penalty=0.3,
    repetition_penalty=1.2,
    logit_bias={5: 4.0, 7: -100.0},
    logprobs=2,
    prompt_logprobs=3,
    stop_token_ids=(5,),
)

TOGGLES: dict[str, dict[str, object]] = {
    "plain": {},
    "chunked": {"step_tokens": 24, "chunk_tokens": 5, "max_running": 9},
    "tiny pool": {"num_blocks": 10, "max_running": 14},
    "preempted": {},
}


@dataclass
class Oracle:
    """Knows what every request will be given. Wrong on purpose at every `wrong_every`-th place."""

    answers: dict[str, list[int]]
    wrong_every: int = 10**9
    name: str = "oracle"
    free: bool = True

    def lag(self, request: Request) -> int:
        return 0

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        return [self._of(*want) for want in wants]

    def _of(self, request: Request, depth: int) -> list[int]:
        known = request.output_tokens
        drafts = self.answers.get(request.id, [])[known : known + depth]
        return [
            token if (known + index) % self.wrong_every else (token + 1) % VOCAB_SIZE
            for index, token in enumerate(drafts)
        ]


@dataclass
class Adversary:
    """Any tokens, as many as are wanted."""

    rng: Random = field(default_factory=lambda: Random(0))
    name: str = "adversary"
    free: bool = True

    def lag(self, request: Request) -> int:
        return 0

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        return [[self.rng.randrange(VOCAB_SIZE) for _ in range(want.depth)] for want in wants]


@dataclass
class Coin:
    """Has its proposer speak for some requests, and of what that says hands on a part of any length."""

    proposer: Proposer
    rng: Random = field(default_factory=lambda: Random(1))
    name: str = "coin"
    free: bool = True

    def lag(self, request: Request) -> int:
        return self.proposer.lag(request)

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        proposed = self.proposer.propose(wants)
        return [drafts[: self.rng.choice((0, 0, 1, 3, 8))] for drafts in proposed]


def mixed(harness: Harness) -> None:
    """Greedy, seeded and laden requests of all lengths, some with a common prefix, and two forks."""
    for index, length in enumerate((1, 16, 17, 70)):
        parent = harness.add(prompt(length), SEEDED if index % 2 else GREEDY, max_tokens=20, seed=index)
        harness.add(prompt(length, seed=index % 3), EVERYTHING, max_tokens=16, seed=10 + index)
        if index > 1:
            harness.add(prompt(length), SEEDED, max_tokens=6, seed=20 + index, fork_of=parent)
    for index in range(5):
        harness.add(prompt(14, seed=index), GREEDY, max_tokens=30)


@cache
def model_of(folder: Path) -> HostModel:
    return load_tiny(folder)


@cache
def without(folder: Path) -> dict[str, Generated]:
    harness = Harness(model_of(folder))
    mixed(harness)
    return dict(harness.run())


def usage_of(generated: Generated) -> Usage:
    usage = generated.deltas[-1].usage
    assert usage is not None
    return usage


def logprobs_of(generated: Generated) -> list[TokenLogprob]:
    return [entry for delta in generated.deltas for entry in delta.logprobs]


def proposer_of(kind: str, expected: dict[str, Generated]) -> Proposer:
    answers = {name: [*generated.tokens, *stops(generated)] for name, generated in expected.items()}
    match kind:
        case "oracle":
            return Oracle(answers)
        case "nearly an oracle":
            return Oracle(answers, wrong_every=3)
        case "toggled oracle":
            return Coin(Oracle(answers))
        case "adversary":
            return Adversary()
    assert kind == "ngram"
    return NgramProposer(64)


def stops(generated: Generated) -> list[int]:
    """The token that ended it and is not shown."""
    token = generated.deltas[-1].stop_token
    return [] if token is None else [token]


def assert_same(given: dict[str, Generated], expected: dict[str, Generated]) -> None:
    for name, generated in expected.items():
        assert given[name].tokens == generated.tokens, name
        last, other = given[name].deltas[-1], generated.deltas[-1]
        assert (last.finish_reason, last.stop_token) == (other.finish_reason, other.stop_token)
        assert usage_of(given[name]).completion_tokens == usage_of(generated).completion_tokens
        entries, others = logprobs_of(given[name]), logprobs_of(generated)
        assert [entry.token_id for entry in entries] == [entry.token_id for entry in others]
        assert [entry.logprob for entry in entries] == pytest.approx([entry.logprob for entry in others], abs=1e-4)
        assert [[each.token_id for each in entry.top] for entry in entries] == [
            [each.token_id for each in entry.top] for entry in others
        ]
