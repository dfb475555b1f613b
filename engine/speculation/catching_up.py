"""Whom to draft for, where a proposer has to catch up with a request before it can."""

from collections.abc import Callable, Sequence

from engine.speculation.policy import Candidate

ANSWER_TOKENS_LEFT = 64
"""A request is expected to go on for this many tokens, and for as many as its answer has: most short, a few long."""
MOST_COST = 2.0
"""What a request has to be caught up with for may cost so many times what drafts save in its answer."""


def worth_drafting_for(
    candidates: Sequence[Candidate], saved_ns: float, catch_up_ns: Callable[[Candidate], float]
) -> list[int]:
    """The indices of those to draft for, where each token of an answer takes `saved_ns` less with drafts.

    What they all save pays for what has to be caught up with for all of them. Some may cost more than they bring: a
    request without drafts ends after the others, in steps that it has to itself. But none costs much more, and where
    all together would bring a loss, those that bring the least are left out.
    """
    worth: list[tuple[float, int]] = []
    for index, each in enumerate(candidates):
        gain_ns = saved_ns * min(each.left_tokens, ANSWER_TOKENS_LEFT + each.answer_tokens)
        cost_ns = catch_up_ns(each)
        if cost_ns <= MOST_COST * gain_ns:
            worth.append((gain_ns - cost_ns, index))
    worth.sort(key=lambda each: (-each[0], each[1]))
    total_ns, kept = 0.0, list[int]()
    for net_ns, index in worth:
        total_ns += net_ns
        if total_ns < 0.0:
            break
        kept.append(index)
    return sorted(kept)
