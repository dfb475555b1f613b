"""Whether an answer of the small model is good enough to be sent: by what the model itself thought of its tokens."""

from collections.abc import Iterable, Sequence
from math import exp

from engine.request import FinishReason, TextDelta

MAX_TRIAL_TOKENS = 512
"""Longer answers of the small model are not waited for: their client would see nothing all that time."""


def confidence(choice: Sequence[TextDelta]) -> float:
    """The geometric mean of the probabilities of a choice's tokens, in [0, 1]: 1 / perplexity. Deltas come with
    log-probabilities. An answer without tokens says nothing of itself: 0."""
    logprobs = [entry.logprob for delta in choice for entry in delta.logprobs]
    return exp(sum(logprobs) / len(logprobs)) if logprobs else 0.0


def is_good_enough(choices: Iterable[Sequence[TextDelta]], percent: int, *, shortened: bool) -> bool:
    """Whether every choice has come to its end and the least sure of them is sure enough. `shortened`: the client may
    have more than the trial could write, so that one which ended by its length has no end."""
    return all(
        not (shortened and choice[-1].finish_reason is FinishReason.LENGTH) and 100 * confidence(choice) >= percent
        for choice in choices
    )
