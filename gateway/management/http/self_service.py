"""Endpoints where a tenant reads its own usage, refusals and limits.

The tenant follows from the key, never from the request.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from gateway.admission import Limiter, limits_for
from gateway.analytics import Analytics
from gateway.analytics.refusals import RefusalDimension
from gateway.analytics.sums import Dimension
from gateway.errors import OperatorError
from gateway.generation.service_classes import TierClasses
from gateway.http.request_state import request_state
from gateway.http.responses import send_body
from gateway.management.http.endpoint import read_query
from gateway.management.operations.errors import as_admin_error
from gateway.management.operations.limit_use import counter_wire
from gateway.management.operations.refusals import (
    REFUSAL_FILTERS,
    REFUSED_BY,
    refusals_only,
    summary_answer,
    summary_query,
)
from gateway.management.operations.usage import FILTERS, only_of, usage_answer, usage_query
from gateway.management.operations.wire import limits_wire
from gateway.tenancy.records import Principal

OWN_USAGE_QUERY = {
    **usage_query({"key": Dimension.KEY, "model": Dimension.MODEL, "tier": Dimension.TIER}),
    **{name: member for name, member in FILTERS.items() if name != "tenant_id"},
}

OWN_REFUSALS_QUERY = {
    **summary_query([word for word in REFUSED_BY if word != "tenant"]),
    **{name: member for name, member in REFUSAL_FILTERS.items() if name != "tenant_id"},
}


class OwnUsage:
    """An ASGI endpoint: GET /v1/usage."""

    def __init__(self, analytics: Analytics, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._analytics = analytics
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = request_state(scope).caller()
        query = read_query(OWN_USAGE_QUERY, scope["query_string"])
        only = {**only_of(query), Dimension.TENANT: caller.tenant_id}
        try:
            answer = await usage_answer(self._analytics, query, only, self._now())
        except OperatorError as error:
            raise as_admin_error(error) or error from error
        for point in answer["data"]:
            del point["tenant"]
        await send_body(send, 200, orjson.dumps(answer))


class OwnRefusals:
    """An ASGI endpoint: GET /v1/refusals."""

    def __init__(self, analytics: Analytics, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._analytics = analytics
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = request_state(scope).caller()
        query = read_query(OWN_REFUSALS_QUERY, scope["query_string"])
        only = {**refusals_only(query), RefusalDimension.TENANT: caller.tenant_id}
        try:
            answer = await summary_answer(self._analytics, query, only, self._now())
        except OperatorError as error:
            raise as_admin_error(error) or error from error
        for point in answer["data"]:
            del point["tenant"]
        await send_body(send, 200, orjson.dumps(answer))


class OwnLimits:
    """An ASGI endpoint: GET /v1/limits: what is stated, and where the counters of the key and its tenant stand."""

    def __init__(self, limiter: Limiter, classes: TierClasses) -> None:
        self._limiter = limiter
        self._classes = classes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = request_state(scope).caller()
        read_query({}, scope["query_string"])
        own = self._classes.of_tier(caller.tier)
        stated = [each for each in caller.limits if caller.may_use(each.scope_id) or each.kind.value != "model"]
        # No model has this name: of the models' own counters, none is asked for.
        quotas = limits_for(caller, (), 0, own.limits).quotas
        answer = {
            "tier": caller.tier,
            "limits": [limits_wire(each) for each in stated],
            "counters": [counter_wire(state) for state in await self._limiter.usage(quotas)],
            "key": _key(caller),
        }
        await send_body(send, 200, orjson.dumps(answer))


def _key(caller: Principal) -> dict[str, Any]:
    return {
        "id": caller.key_id,
        "scopes": None if caller.scopes is None else sorted(caller.scopes),
        "models": None if caller.models is None else sorted(caller.models),
    }
