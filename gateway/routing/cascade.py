"""Cascade: the small model answers first, and the large one only where the small one was not confident in its
tokens."""

from collections.abc import Iterable, Sequence
from math import exp

from engine.request import FinishReason, TextDelta

MAX_TRIAL_TOKENS = 512
"""Token limit of the small model's answer. The client sees nothing while that answer is judged, so longer ones are not
judged."""


def confidence(choice: Sequence[TextDelta]) -> float:
    """Geometric mean of the token probabilities of one choice, in [0, 1]: the reciprocal of its perplexity. The deltas
    must have log-probabilities. An answer without tokens has confidence 0."""
    logprobs = [entry.logprob for delta in choice for entry in delta.logprobs]
    return exp(sum(logprobs) / len(logprobs)) if logprobs else 0.0


def is_good_enough(choices: Iterable[Sequence[TextDelta]], percent: int, *, shortened: bool) -> bool:
    """Whether every choice is complete and the least confident one reaches `percent`. `shortened`: the trial's token
    limit is below the client's, so a choice that ended by length is incomplete."""
    return all(
        not (shortened and choice[-1].finish_reason is FinishReason.LENGTH) and 100 * confidence(choice) >= percent
        for choice in choices
    )
