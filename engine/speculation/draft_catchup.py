"""Which requests to draft for, where the draft model has to compute their tokens first (draft-model prefill)."""

from collections.abc import Callable, Sequence

from engine.speculation.policy import Candidate

ANSWER_TOKENS_LEFT = 64
"""Expected tokens left in an answer, in addition to as many as it has already: most answers are short, a few long."""
MAX_COST_RATIO = 2.0
"""Maximum cost of catching up with a request, relative to what drafts save in its answer."""


def worth_drafting_for(
    candidates: Sequence[Candidate], saved_ns: float, catch_up_ns: Callable[[Candidate], float]
) -> list[int]:
    """The indices of the candidates to draft for, where each token of an answer takes `saved_ns` less with drafts.

    The total saving pays for catching up with all of them. A single request may cost more than it saves, up to
    `MAX_COST_RATIO`: without drafts it would end after the others, in steps of its own. Where the total would be a
    loss, the requests with the smallest net gain are left out.
    """
    worth: list[tuple[float, int]] = []
    for index, candidate in enumerate(candidates):
        gain_ns = saved_ns * min(candidate.left_tokens, ANSWER_TOKENS_LEFT + candidate.answer_tokens)
        cost_ns = catch_up_ns(candidate)
        if cost_ns <= MAX_COST_RATIO * gain_ns:
            worth.append((gain_ns - cost_ns, index))
    worth.sort(key=lambda net_and_index: (-net_and_index[0], net_and_index[1]))
    total_ns, kept = 0.0, list[int]()
    for net_ns, index in worth:
        total_ns += net_ns
        if total_ns < 0.0:
            break
        kept.append(index)
    return sorted(kept)
