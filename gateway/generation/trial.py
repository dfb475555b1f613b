"""A cascade: the small model answers first, and nobody sees it before it is known whether it was sure of what it said.

A client that goes away, and all else that ends a request, is as for any answer: what the trial consumed is known to its
admission."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from starlette.types import Receive

from engine.errors import EngineError
from engine.request import TextDelta
from gateway.admission import QuotaExceeded
from gateway.generation.admit import Admission, HoldLost
from gateway.generation.deltas import reading
from gateway.generation.engine_client import EngineClient
from gateway.generation.placing import Asking, Place, Placing
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.route_stage import refusal_of
from gateway.generation.serve import Answer, submit
from gateway.http.errors import APIError
from gateway.routing.cascade import MAX_TRIAL_TOKENS, is_good_enough
from gateway.routing.reason import RouteReason
from gateway.routing.router import Refusal, Route

_REASONS = {
    Refusal.OVERLOADED: RouteReason.SATURATED,
    Refusal.BUDGET: RouteReason.BUDGET,
    Refusal.CONTEXT: RouteReason.CONTEXT,
}
"""Why the small model's answer stands though it was not sure of it: what kept the large one away."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A whole answer that has not been sent: by prompt, in the order in which it came. `is_good`: it may be."""

    by_prompt: Sequence[Sequence[TextDelta]]
    is_good: bool

    def streams(self) -> list[AsyncGenerator[TextDelta]]:
        """The same again, for `deliver`."""
        return [_replayed(deltas) for deltas in self.by_prompt]


async def try_out(answer: Answer, engine: EngineClient, receive: Receive, percent: int) -> Trial | None:
    """Have an answer written to its end. None: the engine failed on it.

    Raises:
        ClientGone: the client hung up.
    """
    by_prompt: list[list[TextDelta]] = [[] for _ in answer.prompts]
    by_choice: dict[int, list[TextDelta]] = defaultdict(list)
    choices_each = answer.request.params.n
    on_trial = [_on_trial(prompt) for prompt in answer.prompts]
    try:
        streams = await submit(answer, engine, on_trial)
        async with reading(streams, choices_each, receive) as deltas:
            while batch := await deltas.next_batch():
                for choice, delta in batch:
                    by_prompt[choice // choices_each].append(delta)
                    by_choice[choice].append(delta)
                    if delta.usage is not None:
                        answer.admission.aborted(choice, delta.usage)
    except EngineError:
        return None
    shortened = any(mine.max_tokens < whole.max_tokens for mine, whole in zip(on_trial, answer.prompts, strict=True))
    return Trial(by_prompt, is_good_enough(by_choice.values(), percent, shortened=shortened))


async def escalated(
    placing: Placing, asking: Asking, admission: Admission, place: Place, trial: Trial | None, until: AsyncExitStack
) -> tuple[Place, Trial | None]:
    """Hand a request over to the large model: its place, and no trial. Where it cannot take the request, the answer of
    the trial is better than none: the small model's place, and the trial. What is reserved is so until `until` closes.

    Raises:
        APIError, QuotaExceeded: it cannot, and there is no such answer.
    """
    assert place.route.trial is not None
    try:
        async with AsyncExitStack() as attempt:
            large = await placing.place(place.route.trial.otherwise, asking, attempt)
            await admission.hand_over(large.opening, large.quotas, large.prompts)
            await until.enter_async_context(attempt.pop_all())
    except (APIError, QuotaExceeded) as error:
        refusal = refusal_of(error)
        if isinstance(error, QuotaExceeded) and error.scope.measure.counts_tokens:
            refusal = Refusal.BUDGET  # those of the trial count too, so the large model takes more than the small one
        if refusal is None or trial is None or isinstance(error, HoldLost):
            raise
        asking.measurement.serves(place.route.served)
        small = _for_reason(place, _REASONS[refusal])
        admission.reopen(small.opening)
        return small, trial
    return large, None


def _for_reason(place: Place, reason: RouteReason) -> Place:
    route: Route = replace(place.route, reason=reason)
    return replace(place, route=route, opening=replace(place.opening, route_reason=reason.value))


def _on_trial(prompt: PreparedPrompt) -> PreparedPrompt:
    """With the log-probabilities of its tokens, and no longer than a client can be kept waiting."""
    params = prompt.params
    logprobs = 0 if params.logprobs is None else params.logprobs
    max_tokens = min(prompt.max_tokens, max(MAX_TRIAL_TOKENS, params.min_tokens))
    return replace(prompt, params=replace(params, logprobs=logprobs, max_tokens=max_tokens))


async def _replayed(deltas: Sequence[TextDelta]) -> AsyncGenerator[TextDelta]:
    for delta in deltas:
        yield delta
