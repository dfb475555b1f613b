"""From a route to a model that takes the request: its tokens counted, its limits held, its usage opened."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from starlette.types import Receive

from engine.runtime.reservation import Reservation
from gateway.admission import Quota, QuotaExceeded
from gateway.admission.book import limits_for
from gateway.common.ids import new_event_id
from gateway.common.timestamps import unix_ms
from gateway.config.settings import Settings
from gateway.generation.admit import Admission, admitted
from gateway.generation.engine_client import ServedModel
from gateway.generation.measurement import Measurement
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.route_stage import refusal_of
from gateway.generation.service_classes import TierClass, TierClasses
from gateway.generation.services import Services
from gateway.generation.session_stage import SessionStage, SessionTurn
from gateway.generation.session_summary import Asker
from gateway.generation.shed import confirm, reserve
from gateway.http.errors import APIError
from gateway.metering.journal.opening import Opening
from gateway.routing.router import Refusal, Route
from gateway.tenancy.records import Principal

NEAR_BUDGET_TOKENS = 1024
"""A budget is near its end where it has less left than an answer of this length, or of all that the client asks for,
costs from the large model."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A request, whatever model answers it. `spread` parts it from others that are turned away together. `at_a_time` of
    its prompts are submitted together; None: all."""

    id: str
    request: GenerationRequest
    turn: SessionTurn | None
    caller: Principal
    serving: TierClass
    measurement: Measurement
    receive: Receive
    at_a_time: int | None = None
    asked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    spread: float = field(default_factory=random.random)


@dataclass(frozen=True, slots=True)
class Place:
    """A request as one model would run it, and what is billed then. `reservation` is its place in that one's queue."""

    route: Route
    model: ServedModel
    opening: Opening
    quotas: Sequence[Quota]
    prompts: Sequence[PreparedPrompt]
    reservation: Reservation


class Placing:
    """Finds each request a place."""

    def __init__(self, services: Services, settings: Settings, sessions: SessionStage) -> None:
        self._services = services
        self._sessions = sessions
        self._classes = TierClasses(settings)

    @asynccontextmanager
    async def admitted(self, route: Route, asking: Asking) -> AsyncIterator[tuple[Place, Admission]]:
        """Admit the request to the route's model or, where that refuses, to the one that the route has instead.

        Raises:
            APIError, QuotaExceeded: none can take it; what the first one said, unless that was only too short.
            Exception: as `admitted`.
        """
        async with AsyncExitStack() as admissions:
            place = None
            try:
                place = await self.place(route, asking, admissions)
                at_least = NEAR_BUDGET_TOKENS if Refusal.BUDGET in route.instead else 0
                admission = await self._admit(place, asking, admissions, at_least)
            except (APIError, QuotaExceeded) as error:
                place, admission = await self._instead(error, route, place, asking, admissions)
            yield place, admission

    async def _instead(
        self,
        error: APIError | QuotaExceeded,
        route: Route,
        place: Place | None,
        asking: Asking,
        admissions: AsyncExitStack,
    ) -> tuple[Place, Admission]:
        """The route's model has refused. Where only its limits had no room there is a place, and it is reserved."""
        refusal = refusal_of(error)
        other = None if refusal is None else route.instead.get(refusal)
        if other is not None:
            try:
                async with AsyncExitStack() as attempt:
                    elsewhere = await self.place(other, asking, attempt)
                    admission = await self._admit(elsewhere, asking, attempt)
                    if place is not None:
                        place.reservation.release()
                    await admissions.enter_async_context(attempt.pop_all())
                    return elsewhere, admission
            except (APIError, QuotaExceeded):
                if refusal is Refusal.CONTEXT:
                    raise
                asking.measurement.serves(route.served)
        if place is not None and Refusal.BUDGET in route.instead:
            # More was asked for than it needs.
            return place, await self._admit(place, asking, admissions)
        raise error

    async def place(self, route: Route, asking: Asking, until: AsyncExitStack) -> Place:
        """The request for the route's model, before any limit is asked. Its place in the model's queue is reserved
        until it is submitted, and no longer than until `until` closes.

        Raises:
            APIError, ChatTemplateError: the model is too busy, or cannot serve this. Nothing is reserved.
        """
        asking.measurement.serves(route.served)
        engine, serving, caller = self._services.engine, asking.serving, asking.caller
        model = engine.models[route.served]
        own = self._classes.of_tier(caller.tier)
        limits = limits_for(caller, model.name, model.windows[serving.name], own.limits)
        with ExitStack() as held:
            reservation = held.enter_context(reserve(engine, model.name, serving, asking.spread))
            prompts = await self._sessions.prepare(
                asking.request,
                asking.turn,
                model,
                limits.context_tokens,
                Asker(caller, serving, asking.receive),
                whole=self._has_roomier(route, serving),
            )
            confirm(reservation, engine, model.name, serving, prompts, asking.spread, asking.at_a_time)
            opening = self._opening(route, asking, model)
            until.enter_context(held.pop_all())
        return Place(route, model, opening, limits.quotas, prompts, reservation)

    def _has_roomier(self, route: Route, serving: TierClass) -> bool:
        """Whether a model with a longer window takes what this one's is too short for: then no turn is dropped here."""
        other = route.instead.get(Refusal.CONTEXT)
        models = self._services.engine.models
        return other is not None and (
            models[other.served].windows[serving.name] > models[route.served].windows[serving.name]
        )

    async def _admit(self, place: Place, asking: Asking, admissions: AsyncExitStack, at_least: int = 0) -> Admission:
        limiter, journal, choices_each = self._services.limiter, self._services.journal, asking.request.params.n
        return await admissions.enter_async_context(
            admitted(limiter, journal, place.opening, place.quotas, place.prompts, choices_each, at_least)
        )

    def _opening(self, route: Route, asking: Asking, model: ServedModel) -> Opening:
        """What is billed, to whom, at the prices of this moment."""
        caller, tier_served = asking.caller, asking.serving.name
        return Opening(
            event_id=new_event_id(),
            request_id=asking.id,
            tenant_id=caller.tenant_id,
            key_id=caller.key_id,
            tier=caller.tier,
            tier_served=tier_served,
            requested_model=route.requested,
            routed_model=route.routed,
            served_model=model.name,
            model_version=model.version,
            route_reason=route.reason.value,
            price=self._services.prices.price_of(model.name, tier_served, asking.asked_at),
            opened_ms=unix_ms(asking.asked_at),
        )
