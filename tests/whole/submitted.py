"""The answers that an undisturbed engine gives: the simulated device draws each token from those before it and the
request's seed, so they are known once a call is submitted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.request import SamplingParams
from engine.runtime.submission import Submission
from engine.simulation.fake_executor import prefix_digest, prefix_root
from tests.whole.models import BYTES, text


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one choice, up to a stop string or its maximum length."""

    tokens: tuple[int, ...]
    text: str


@dataclass(slots=True)
class Submitted:
    """By the id of a request at the gateway: its calls of the engine, with the submission of each of their prompts."""

    calls: dict[str, list[Sequence[Submission]]] = field(default_factory=dict)

    def watch(self, engine: Any) -> None:
        """Record what this engine's callers submit."""
        submissions: Callable[..., list[Submission]] = engine._submitter.submissions

        def recorded(*arguments: Any) -> list[Submission]:
            made = submissions(*arguments)
            request_id = made[0].request_ids[0].partition("#")[0].rpartition("-")[0]
            self.calls.setdefault(request_id, []).append(made)
            return made

        engine._submitter.submissions = recorded


def request_ids(calls: Sequence[Sequence[Submission]]) -> list[str]:
    """Of all choices."""
    return [each for call in calls for submission in call for each in submission.request_ids]


def answers(call: Sequence[Submission]) -> list[Answer]:
    """Of each choice of a call."""
    return [_answer(submission, seed) for submission in call for seed in submission.seeds]


def _answer(submission: Submission, seed: int) -> Answer:
    digest = prefix_root(submission.salt, "" if submission.adapter is None else submission.adapter.digest)
    for token in submission.token_ids:
        digest = prefix_digest(digest, token)
    detokenizer = _detokenizer(submission.params)
    tokens: list[int] = []
    shown: list[str] = []
    while len(tokens) < submission.max_tokens and detokenizer.stopped is None:
        token = prefix_digest(digest, seed) % BYTES
        digest = prefix_digest(digest, token)
        tokens.append(token)
        shown.append(detokenizer.push((token,)))
    if detokenizer.stopped is None:
        shown.append(detokenizer.flush())
    return Answer(tuple(tokens), "".join(shown))


def _detokenizer(params: SamplingParams) -> Any:
    return text().detokenizer(
        params.stop,
        skip_special_tokens=params.skip_special_tokens,
        keep_markers=params.conversational,
        include_stop=params.include_stop,
    )
