"""Replaces a model whose server gives no answer by the other model of its route."""

from contextlib import AsyncExitStack
from dataclasses import replace

from gateway.admission import QuotaExceeded
from gateway.generation.admit import HoldLost
from gateway.generation.candidates import Candidates
from gateway.generation.run import Run
from gateway.generation.shed import ModelUnavailable
from gateway.http.errors import APIError
from gateway.routing.router import FallbackReason


async def substituted(run: Run, error: ModelUnavailable, candidates: Candidates, until: AsyncExitStack) -> Run:
    """The run on the model that the route has for an overloaded one. Its place in the queue is reserved no longer than
    until `until` closes.

    Raises:
        ModelUnavailable: `error`, if the route has no other model, that refuses, too, or something was sent.
        HoldLost: the limits took what the request had held.
    """
    route = run.candidate.route
    other = route.fallbacks.get(FallbackReason.OVERLOADED)
    if other is None or run.usage.has_begun:
        raise error
    run.measurement.model = other.served
    try:
        async with AsyncExitStack() as attempt:
            candidate = await candidates.prepare(run.context, other, attempt)
            await run.admission.switch_model(candidate.usage_context, candidate.quotas, candidate.prompts)
            await until.enter_async_context(attempt.pop_all())
    except HoldLost:
        raise
    except (APIError, QuotaExceeded):
        run.measurement.model = route.served
        raise error from None
    return replace(run, candidate=candidate)
