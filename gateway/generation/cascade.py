"""A cascade: the small model answers first, and its answer is sent only where the model was sure of it.

What the trial consumed is recorded in the request's admission, however the request ends.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import TracebackType
from typing import Self

from engine.errors import EngineError
from engine.request import TextDelta
from gateway.admission import QuotaExceeded
from gateway.generation.admit import HoldLost
from gateway.generation.candidates import Candidates
from gateway.generation.deltas import reading
from gateway.generation.engine_client import EngineClient
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.route_stage import refusal_of
from gateway.generation.run import Run
from gateway.http.errors import APIError
from gateway.routing.cascade import MAX_TRIAL_TOKENS, is_good_enough
from gateway.routing.reason import RouteReason
from gateway.routing.router import FallbackReason, Route
from gateway.tenancy.key_watch import KeyWatch

_REASONS = {
    FallbackReason.OVERLOADED: RouteReason.SATURATED,
    FallbackReason.BUDGET: RouteReason.BUDGET,
    FallbackReason.CONTEXT: RouteReason.CONTEXT,
}
"""Why the small model's answer is sent though it was not sure of it: what prevented the large model."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A whole answer that has not been sent, in the batches in which it came."""

    batches: Sequence[Sequence[TextDelta]]
    is_good: bool
    """Whether it may be sent."""

    def replayed(self) -> "ReplayedStream":
        """The deltas again."""
        return ReplayedStream(self.batches)


class ReplayedStream:
    """An `OutputStream` of deltas that have been computed."""

    def __init__(self, batches: Sequence[Sequence[TextDelta]]) -> None:
        self._batches = deque(batches)
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def next_batch(self) -> Sequence[TextDelta]:
        await asyncio.sleep(0)  # a disconnect is noticed between batches
        if self._error is not None:
            raise self._error
        return self._batches.popleft() if self._batches else ()

    def fail(self, error: Exception) -> None:
        self._error = error


async def decide(
    run: Run, candidates: Candidates, engine: EngineClient, keys: KeyWatch, until: AsyncExitStack
) -> tuple[Run, Trial | None]:
    """The run that answers, and its answer where that is the trial's; None: it has yet to be computed.

    Raises:
        ClientGone, InvalidKey: the client disconnected, or its key has ended.
        APIError, QuotaExceeded: the large model refuses, and the small one has no answer.
    """
    on_trial = run.candidate.route.trial
    assert on_trial is not None
    trial = await _try(run, engine, keys, on_trial.percent)
    if trial is not None and trial.is_good:
        return run, trial
    return await _escalate(run, trial, candidates, on_trial.escalation, until)


async def _try(run: Run, engine: EngineClient, keys: KeyWatch, percent: int) -> Trial | None:
    """Compute an answer to its end. None: the model failed on it.

    Raises:
        APIError: the request is refused.
    """
    batches: list[Sequence[TextDelta]] = []
    by_choice: dict[int, list[TextDelta]] = defaultdict(list)
    prompts = [_on_trial(prompt) for prompt in run.prompts]
    try:
        stream, client = run.submit(engine, prompts), run.context.client
        async with reading(stream, client.receive) as deltas:
            with keys.watching(client.principal.key_id, deltas.fail):
                while batch := await deltas.next_batch():
                    batches.append(batch)
                    for delta in batch:
                        by_choice[delta.index].append(delta)
                        if delta.usage is not None:
                            run.admission.on_aborted(delta.index, delta.usage)
    except EngineError:
        return None
    except APIError as error:
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        return None
    shortened = any(mine.max_tokens < whole.max_tokens for mine, whole in zip(prompts, run.prompts, strict=True))
    return Trial(batches, is_good_enough(by_choice.values(), percent, shortened=shortened))


async def _escalate(
    run: Run, trial: Trial | None, candidates: Candidates, route: Route, until: AsyncExitStack
) -> tuple[Run, Trial | None]:
    """Switch to the large model. Where it refuses, the trial's answer is better than none. The large model's place in
    its queue is reserved no longer than until `until` closes."""
    try:
        async with AsyncExitStack() as attempt:
            run.measurement.model = route.served
            large = await candidates.prepare(run.context, route, attempt)
            await run.admission.switch_model(large.usage_context, large.quotas, large.prompts)
            await until.enter_async_context(attempt.pop_all())
    except (APIError, QuotaExceeded) as error:
        refusal = refusal_of(error)
        if isinstance(error, QuotaExceeded) and error.scope.measure.counts_tokens:
            # The trial's tokens count too, so the large model takes more than the small one.
            refusal = FallbackReason.BUDGET
        if refusal is None or trial is None or isinstance(error, HoldLost):
            raise
        run.measurement.model = run.candidate.route.served
        kept = _for_reason(run, _REASONS[refusal])
        run.admission.reopen(kept.candidate.usage_context)
        return kept, trial
    return replace(run, candidate=large), None


def _for_reason(run: Run, reason: RouteReason) -> Run:
    candidate = run.candidate
    route = replace(candidate.route, reason=reason)
    usage_context = replace(candidate.usage_context, route_reason=reason.value)
    return replace(run, candidate=replace(candidate, route=route, usage_context=usage_context))


def _on_trial(prompt: PreparedPrompt) -> PreparedPrompt:
    """With the log-probabilities of its tokens, and no longer than a client can be kept waiting."""
    params = prompt.params
    logprobs = 0 if params.logprobs is None else params.logprobs
    max_tokens = min(prompt.max_tokens, max(MAX_TRIAL_TOKENS, params.min_tokens))
    return replace(prompt, params=replace(params, logprobs=logprobs, max_tokens=max_tokens))
