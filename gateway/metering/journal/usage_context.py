"""The billing data of a running request, from which a crashed gateway's next start bills it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple, Self
from uuid import UUID

import orjson

from gateway.billing.prices import Price
from gateway.common.timestamps import utc_from_ms
from gateway.metering.event import MAX_COUNT, Ending, UsageEvent, unrouted


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageContext:
    """Billing data that is fixed at admission. `price`: in effect at admission, for the tier that serves the request.
    `opened_ms`: Unix milliseconds."""

    event_id: UUID
    request_id: str
    http_request_id: str = ""
    endpoint: str = ""
    streamed: bool = False
    tenant_id: str
    key_id: str
    tier: str
    tier_served: str
    requested_model: str
    routed_model: str
    served_model: str
    model_version: str
    route_reason: str
    adapter_id: str = ""
    price: Price
    opened_ms: int

    def cost(self, progress: "Progress") -> int:
        """Cost in nanodollars, capped at the stores' range: prices of former versions are not bounded."""
        cost = self.price.of(progress.prompt_tokens, progress.cached_tokens, progress.completion_tokens)
        return min(cost, MAX_COUNT)

    def to_json(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Parse a context. Contexts of versions without routing get the requested model as the routed one; those of
        versions without the HTTP request's fields have none."""
        stated = orjson.loads(data)
        stated = unrouted(stated["served_model"]) | stated
        return cls(**stated | {"event_id": UUID(stated["event_id"]), "price": Price(**stated["price"])})


class Progress(NamedTuple):
    """Tokens handed to the client's socket. The prompt counts from the first of them. `estimated`: as in `UsageEvent`,
    so far."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ttft_ms: int | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The engine's work for a request, as far as it is known."""

    undelivered_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    queue_ms: int = 0
    paused_ms: int = 0
    engine_ns: int = 0
    recompute_ns: Mapping[str, int] | None = None
    preemptions: int = 0

    def __add__(self, later: "Work") -> "Work":
        if self == NO_WORK:
            return later
        sums = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "recompute_ns"}
        recompute_ns = Counter(self.recompute_ns or {}) + Counter(later.recompute_ns or {})
        return Work(**{name: amount + getattr(later, name) for name, amount in sums.items()}, recompute_ns=recompute_ns)


NO_WORK = Work()


def event_of(
    usage_context: UsageContext, progress: Progress, work: Work, ending: Ending, http_status: int, ended_ms: int
) -> UsageEvent:
    """The event of a request. `http_status`: as in `UsageEvent`. The journal sets `source` and `sequence`."""
    return UsageEvent(
        event_id=usage_context.event_id,
        source="",
        sequence=0,
        request_id=usage_context.request_id,
        http_request_id=usage_context.http_request_id,
        endpoint=usage_context.endpoint,
        streamed=usage_context.streamed,
        http_status=http_status,
        tenant_id=usage_context.tenant_id,
        key_id=usage_context.key_id,
        tier=usage_context.tier,
        tier_served=usage_context.tier_served,
        requested_model=usage_context.requested_model,
        routed_model=usage_context.routed_model,
        served_model=usage_context.served_model,
        model_version=usage_context.model_version,
        route_reason=usage_context.route_reason,
        adapter_id=usage_context.adapter_id,
        prompt_tokens=progress.prompt_tokens,
        cached_tokens=progress.cached_tokens,
        completion_tokens=progress.completion_tokens,
        estimated=progress.estimated,
        undelivered_tokens=work.undelivered_tokens,
        draft_tokens=work.draft_tokens,
        accepted_draft_tokens=work.accepted_draft_tokens,
        ttft_ms=progress.ttft_ms,
        total_latency_ms=max(0, ended_ms - usage_context.opened_ms),
        queue_ms=work.queue_ms,
        paused_ms=work.paused_ms,
        engine_ns=work.engine_ns,
        recompute_ns=dict(work.recompute_ns or {}),
        preemptions=work.preemptions,
        finish_reason=ending,
        price_version=usage_context.price.version,
        cost_nanodollars=usage_context.cost(progress),
        occurred_at=utc_from_ms(ended_ms),
    )
