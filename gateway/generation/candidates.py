"""From a route to a model that takes the request: its tokens counted, its limits held, its usage record opened."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import datetime

from gateway.admission import QuotaExceeded
from gateway.admission.book import limits_for
from gateway.billing.price_book import PriceBook
from gateway.billing.prices import Price
from gateway.config.settings import Settings
from gateway.generation.admit import Admission, admitted
from gateway.generation.context import Candidate, RequestContext, usage_context_of
from gateway.generation.measurement import Measurement
from gateway.generation.route_stage import refusal_of
from gateway.generation.run import Run
from gateway.generation.service_classes import TierClass, TierClasses
from gateway.generation.services import Services
from gateway.generation.shed import confirm, reserve
from gateway.http.errors import APIError
from gateway.routing.router import FallbackReason, Route

NEAR_BUDGET_TOKENS = 1024
"""A budget counts as nearly spent when it cannot pay for this many output tokens, or for as many as the client asks for
where that is less, at the large model's price."""


class Candidates:
    """Prepares requests for the models of their routes, and admits each to the first that takes it."""

    def __init__(self, services: Services, settings: Settings) -> None:
        self._services = services
        self._classes = TierClasses(settings)

    @asynccontextmanager
    async def admitted(self, context: RequestContext, route: Route, measurement: Measurement) -> AsyncIterator[Run]:
        """Admit the request to the route's model or, where that refuses, to the one that the route has instead.

        Raises:
            APIError, QuotaExceeded: none takes it; the first one's refusal, unless its window was too short.
            Exception: as `admit.admitted`.
        """
        async with AsyncExitStack() as admissions:
            candidate = None
            try:
                candidate = await self.prepare(context, route, admissions)
                minimum_tokens = NEAR_BUDGET_TOKENS if FallbackReason.BUDGET in route.fallbacks else 0
                admission = await self._hold(context, candidate, admissions, minimum_tokens)
            except (APIError, QuotaExceeded) as error:
                candidate, admission = await self._fall_back(error, context, route, candidate, measurement, admissions)
            yield Run(context, candidate, admission, measurement)

    async def prepare(self, context: RequestContext, route: Route, until: AsyncExitStack) -> Candidate:
        """The request as the route's model would run it, before any limit is checked. Its place in the model's queue is
        reserved until it is submitted, and no longer than until `until` closes.

        Raises:
            APIError, ChatTemplateError: the model is too busy, or cannot serve this. Nothing is reserved.
            ClientGone: the client disconnected.
        """
        services, serving, principal = self._services, context.client.serving, context.client.principal
        model = services.engine.models[route.served]
        may_fall_back = self._may_fall_back(route, serving)
        own = self._classes.of_tier(principal.tier)
        routed = route.adapter
        names = (model.name,) if routed is None else (model.name, routed.adapter.name)
        limits = limits_for(principal, names, model.windows[serving.name], own.limits)
        jitter = context.retry_jitter
        with ExitStack() as held:
            reservation = held.enter_context(reserve(services.engine, model.name, serving, jitter))
            prompts = await context.prepare(model, limits.context_tokens, may_fall_back)
            confirm(reservation, services.engine, model.name, serving, prompts, jitter, context.prompts_at_a_time)
            price = _price(services.prices, route, serving.name, context.received_at)
            usage_context = usage_context_of(context, route, model, price)
            until.enter_context(held.pop_all())
        adapter = None if routed is None else services.adapters.source(routed.version)
        return Candidate(route, model, usage_context, limits.quotas, prompts, reservation, adapter)

    async def _fall_back(
        self,
        error: APIError | QuotaExceeded,
        context: RequestContext,
        route: Route,
        candidate: Candidate | None,
        measurement: Measurement,
        admissions: AsyncExitStack,
    ) -> tuple[Candidate, Admission]:
        """The route's model has refused. Where that was for its limits there is a candidate, and it is reserved."""
        refusal = refusal_of(error)
        other = None if refusal is None else route.fallbacks.get(refusal)
        if other is not None:
            measurement.model = other.served
            try:
                async with AsyncExitStack() as attempt:
                    elsewhere = await self.prepare(context, other, attempt)
                    admission = await self._hold(context, elsewhere, attempt)
                    if candidate is not None:
                        candidate.reservation.release()
                    await admissions.enter_async_context(attempt.pop_all())
                    return elsewhere, admission
            except (APIError, QuotaExceeded):
                if refusal is FallbackReason.CONTEXT:
                    raise
                measurement.model = route.served
        if candidate is not None and FallbackReason.BUDGET in route.fallbacks:
            # The minimum was more than the request needs.
            return candidate, await self._hold(context, candidate, admissions)
        raise error

    async def _hold(
        self, context: RequestContext, candidate: Candidate, until: AsyncExitStack, minimum_tokens: int = 0
    ) -> Admission:
        """As `admit.admitted`, until `until` closes."""
        admission = admitted(self._services, candidate, context.choices_each, context.on_metered, minimum_tokens)
        return await until.enter_async_context(admission)

    def _may_fall_back(self, route: Route, serving: TierClass) -> bool:
        """Whether a model with a longer context window takes what does not fit the window of this one."""
        other = route.fallbacks.get(FallbackReason.CONTEXT)
        models = self._services.engine.models
        return other is not None and (
            models[other.served].windows[serving.name] > models[route.served].windows[serving.name]
        )


def _price(prices: PriceBook, route: Route, tier: str, at: datetime) -> Price:
    """Raises: NoPrice."""
    if route.adapter is None:
        return prices.price_of(route.served, tier, at)
    adapter = route.adapter.adapter
    return prices.price_of_adapter(adapter.id, route.served, adapter.price_multiplier, tier, at)
