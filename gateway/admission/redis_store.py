"""Limits in Redis, for replicas that share them: one Lua script, and so one atomic step, for each decision.

The clock is Redis' own. Redis 7.0 is enough. What Redis forgets by a restart is forgotten: windows begin anew but for
what `restore` knows, and holds from before are settled as `Outcome.UNKNOWN`. With eviction, counters can go as well:
`maxmemory-policy noeviction`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.admission.decisions import exceeds, refusal_of, state_of
from gateway.admission.model import (
    Committed,
    Hold,
    HoldRequest,
    LimitState,
    Outcome,
    Quota,
    Refusal,
    Scope,
    Settlement,
    Use,
)
from gateway.admission.store import FINISHED_MS, HOLD_TTL_MS, StoreAway

_NEVER, _CLEAR = -2, -3
_OUTCOMES = {
    b"open": Outcome.SETTLED,
    b"expired": Outcome.LATE,
    b"settled": Outcome.REPEATED,
    b"unknown": Outcome.UNKNOWN,
}


class RedisStore:
    """A `LimitStore` in Redis. Every method raises `StoreAway` where Redis fails; none has a deadline of its own.

    `clock` gives Unix milliseconds in tests; None: Redis' TIME.
    """

    def __init__(self, client: Redis, clock: Callable[[], int] | None = None) -> None:
        self._client = client
        self._clock = clock
        prelude = _source("prelude")
        self._hold, self._settle, self._extend, self._usage, self._restore = (
            client.register_script(prelude + _source(name)) for name in ("hold", "settle", "extend", "usage", "restore")
        )
        self._probe = client.register_script(_source("probe"))

    @classmethod
    def open(cls, url: str) -> "RedisStore":
        """A store at a `redis://`, `rediss://` or `unix://` URL. Connects on first use.

        One retry, at once: a connection that was idle while Redis restarted is found dead by its next use, and all
        scripts can be repeated.
        """
        return cls(Redis.from_url(url, retry=Retry(NoBackoff(), 1)))

    async def hold(self, request: HoldRequest) -> Hold | Refusal:
        quotas = [demand.quota for demand in request.demands]
        arguments: list[str | int] = [request.request_id, HOLD_TTL_MS, request.minimum_tokens, request.desired_tokens]
        for demand in request.demands:
            window = demand.quota.scope.measure.window.value
            arguments += [window, demand.quota.limit, demand.fixed, demand.per_token]
        keys = [*_request_keys(request.tenant_id, request.request_id), *(_counter_key(quota.scope) for quota in quotas)]
        reply = cast(list[int], await self._call(self._hold, request.tenant_id, keys, arguments))
        taken, now, at, granted, bound = reply[:5]
        rows = list(zip(quotas, reply[5::4], reply[6::4], reply[7::4], reply[8::4], strict=True))
        states = tuple(
            state_of(quota, used, held, None if newest < 0 else newest, now) for quota, used, held, newest, _ in rows
        )
        if not taken:
            blocked = [
                (quota, None if blocks == _NEVER else blocks) for quota, _, _, _, blocks in rows if blocks != _CLEAR
            ]
            return refusal_of(blocked, states, now)
        bound_by = quotas[bound - 1].scope if bound else None
        return Hold(request.request_id, at, granted, bound_by, request.demands, states)

    async def extend(self, hold: Hold) -> bool:
        tenant_id = hold.demands[0].quota.scope.tenant_id
        keys = _request_keys(tenant_id, hold.request_id)
        return bool(await self._call(self._extend, tenant_id, keys, [hold.request_id, HOLD_TTL_MS]))

    async def settle(self, hold: Hold, use: Use) -> Settlement:
        scopes = [demand.quota.scope for demand in hold.demands]
        bound = scopes.index(hold.bound_by) + 1 if hold.bound_by is not None else 0
        arguments: list[str | int] = [hold.request_id, hold.at_ms, hold.granted_tokens, bound]
        for scope in scopes:
            arguments += [scope.measure.window.value, use.of(scope.measure)]
        tenant_id = scopes[0].tenant_id
        keys = [*_request_keys(tenant_id, hold.request_id), *map(_counter_key, scopes)]
        before = cast(bytes, await self._call(self._settle, tenant_id, keys, arguments))
        outcome = _OUTCOMES[before]
        return Settlement(outcome, outcome is not Outcome.REPEATED and exceeds(hold, use))

    async def usage(self, quotas: Sequence[Quota]) -> tuple[LimitState, ...]:
        tenant_id = quotas[0].scope.tenant_id
        keys = [_prefix(tenant_id) + "open", *(_counter_key(quota.scope) for quota in quotas)]
        windows = [quota.scope.measure.window.value for quota in quotas]
        now, *rows = cast(list[int], await self._call(self._usage, tenant_id, keys, windows))
        return tuple(
            state_of(quota, used, held, None if newest < 0 else newest, now)
            for quota, used, held, newest in zip(quotas, rows[::3], rows[1::3], rows[2::3], strict=True)
        )

    async def restore(self, known: Sequence[Committed]) -> None:
        """One call for each tenant."""
        by_tenant: dict[str, list[Committed]] = {}
        for each in known:
            by_tenant.setdefault(each.scope.tenant_id, []).append(each)
        for tenant_id, entries in by_tenant.items():
            arguments: list[str | int] = []
            for each in entries:
                arguments += [each.scope.measure.window.value, each.at_ms, each.amount]
            keys = [_prefix(tenant_id) + "open", *(_counter_key(each.scope) for each in entries)]
            await self._call(self._restore, tenant_id, keys, arguments)

    async def probe(self) -> None:
        """Write a key that soon expires: a full Redis answers PING and takes no writes. Raises: StoreAway."""
        with _answering():
            await self._probe(keys=["turnpike:probe"])

    def counts(self) -> Mapping[str, int]:
        return {}

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _call(self, script: Any, tenant_id: str, keys: Sequence[str], arguments: Sequence[str | int]) -> object:
        now = -1 if self._clock is None else self._clock()
        with _answering():
            return await script(keys=keys, args=[_prefix(tenant_id), now, FINISHED_MS, *arguments])


@contextmanager
def _answering() -> Iterator[None]:
    """The client's own text is dropped: it may name hosts and users."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise StoreAway(f"Redis does not answer ({type(error).__name__})") from error


def _source(name: str) -> str:
    return (files("gateway.admission") / "lua" / f"{name}.lua").read_text(encoding="utf-8")


def _prefix(tenant_id: str) -> str:
    return f"turnpike:{{{tenant_id}}}:"


def _request_keys(tenant_id: str, request_id: str) -> list[str]:
    prefix = _prefix(tenant_id)
    return [f"{prefix}open", f"{prefix}request:{request_id}"]


def _counter_key(scope: Scope) -> str:
    return f"{_prefix(scope.tenant_id)}used:{scope.measure.value}:{scope.kind.value}:{scope.id}"
