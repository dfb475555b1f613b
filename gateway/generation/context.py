"""`RequestContext`: one request, whichever model answers it. `Candidate`: the request as one model would run it."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from starlette.types import Receive

from engine.adapters.source import AdapterSource
from engine.runtime.reservation import Reservation
from gateway.admission import Quota
from gateway.billing.prices import Price
from gateway.common.ids import new_event_id
from gateway.common.timestamps import unix_ms
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.service_classes import TierClass
from gateway.metering.journal.usage_context import UsageContext
from gateway.routing.router import Route
from gateway.tenancy.records import Principal

Prepare = Callable[[ServedModel, int, bool], Awaitable[Sequence[PreparedPrompt]]]
"""Tokenises a request for a model: `(model, context_tokens, may_fall_back)`. `may_fall_back`: another model has a
longer context window, so a conversation that does not fit this one is refused, and not shortened.

Raises:
    APIError, ChatTemplateError: the model cannot serve the request.
    ClientGone: the client disconnected.
"""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The HTTP request that a usage event names. `id`: its `x-request-id`. `endpoint`: its path."""

    id: str
    endpoint: str
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends a request, the class that serves it, the ASGI callable on which a disconnect arrives, and the HTTP
    request as usage events name it."""

    principal: Principal
    serving: TierClass
    receive: Receive
    http: HttpRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """One request from its parsed body on.

    `operation` is OpenTelemetry's `gen_ai.operation.name`. `choices_each`: answers to each prompt.
    `prompts_at_a_time`: how many of its prompts the engine is given together; None: all. `deadline_s` bounds the time
    in the engine. `retry_jitter` from [0, 1) spreads the Retry-After of requests that are refused together.
    `on_metered` is called when its usage record is open.
    """

    id: str
    operation: str
    client: Client
    prepare: Prepare
    choices_each: int = 1
    prompts_at_a_time: int | None = None
    deadline_s: float | None = None
    received_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    retry_jitter: float = field(default_factory=random.random)
    on_metered: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request as one model would run it: its prompts in the model's tokens, what is billed, and the quotas that it
    counts against. `reservation` is its place in the model's queue until it is submitted. `adapter`: of the model."""

    route: Route
    model: ServedModel
    usage_context: UsageContext
    quotas: Sequence[Quota]
    prompts: Sequence[PreparedPrompt]
    reservation: Reservation
    adapter: AdapterSource | None = None

    @property
    def answer_model(self) -> str:
        """The answer's `model`: the model that computed it, or the adapter by the name that the client used."""
        return self.model.name if self.route.adapter is None else self.route.requested


def usage_context_of(context: RequestContext, route: Route, model: ServedModel, price: Price) -> UsageContext:
    """The usage record of a request: its tenant, model, and price of the moment when it was received."""
    principal, http = context.client.principal, context.client.http
    routed = route.adapter
    return UsageContext(
        event_id=new_event_id(),
        request_id=context.id,
        http_request_id=http.id,
        endpoint=http.endpoint,
        streamed=http.streamed,
        tenant_id=principal.tenant_id,
        key_id=principal.key_id,
        tier=principal.tier,
        tier_served=context.client.serving.name,
        requested_model=route.requested,
        routed_model=route.routed,
        served_model=model.name,
        model_version=model.version if routed is None else f"{model.version}+{routed.version.digest[:16]}",
        route_reason=route.reason.value,
        adapter_id="" if routed is None else routed.adapter.id,
        price=price,
        opened_ms=unix_ms(context.received_at),
    )
