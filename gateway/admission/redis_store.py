"""Limits in Redis, shared by replicas: each decision is one Lua script and thus one atomic step.

The clock is Redis' own; Redis 7.0 suffices. If Redis loses its data, by a restart without persistence or a failover,
each replica records its own part again before any other call of the tenant: its open holds, and what it committed in
windows of a day or longer (`ReplicaLedger`). Lost are the counts of the minute and, until another replica calls for a
tenant (within a heartbeat if it has open holds), that replica's part. Under an eviction policy single counters can be
lost unnoticed: set `maxmemory-policy noeviction`.
"""

import logging
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
    HoldRefusal,
    HoldRequest,
    LimitState,
    Quota,
    Scope,
    Settlement,
    SettleOutcome,
    Use,
)
from gateway.admission.replica_ledger import ReplicaLedger
from gateway.admission.store import FINISHED_MS, HOLD_TTL_MS, StoreAway

_NEVER, _CLEAR = -2, -3
_LOST = ([-1], -1, b"lost")
"""Replies of scripts if Redis has lost what this replica recorded."""
_OUTCOMES = {
    b"open": SettleOutcome.SETTLED,
    b"expired": SettleOutcome.LATE,
    b"settled": SettleOutcome.REPEATED,
    b"unknown": SettleOutcome.UNKNOWN,
}


_log = logging.getLogger(__name__)


class RedisStore:
    """A `LimitStore` in Redis. Every method raises `StoreAway` if Redis fails; none has a deadline of its own.

    `clock`: Unix milliseconds, for tests; None: Redis' TIME. `replica`: stable name of this process among those that
    share the store; "": lost data is not recorded again.
    """

    def __init__(self, client: Redis, clock: Callable[[], int] | None = None, replica: str = "") -> None:
        self._client = client
        self._clock = clock
        self._replica = replica
        self._ledger = ReplicaLedger()
        prelude = _source("prelude")
        self._hold, self._settle, self._extend, self._usage, self._restore, self._recover = (
            client.register_script(prelude + _source(name))
            for name in ("hold", "settle", "extend", "usage", "restore", "recover")
        )
        self._probe = client.register_script(_source("probe"))

    @classmethod
    def open(cls, url: str, replica: str = "") -> "RedisStore":
        """A store at a `redis://`, `rediss://` or `unix://` URL. Connects on first use.

        One retry without delay: a connection that was idle while Redis restarted is found dead on its next use, and all
        scripts are idempotent.
        """
        return cls(Redis.from_url(url, retry=Retry(NoBackoff(), 1)), replica=replica)

    async def hold(self, request: HoldRequest) -> Hold | HoldRefusal:
        """As in `LimitStore`."""
        quotas = [demand.quota for demand in request.demands]
        arguments: list[str | int] = [request.request_id, HOLD_TTL_MS, request.minimum_tokens, request.desired_tokens]
        for demand in request.demands:
            window = demand.quota.scope.measure.window.value
            arguments += [window, demand.quota.limit, demand.fixed, demand.per_token]
        keys = [*_request_keys(request.tenant_id, request.request_id), *(_counter_key(quota.scope) for quota in quotas)]
        reply = cast(list[int], await self._recovering(self._hold, request.tenant_id, keys, arguments))
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
        hold = Hold(request.request_id, at, granted, bound_by, request.demands, states)
        self._ledger.on_hold(hold)
        return hold

    async def extend(self, hold: Hold) -> bool:
        """As in `LimitStore`."""
        tenant_id = hold.demands[0].quota.scope.tenant_id
        keys = _request_keys(tenant_id, hold.request_id)
        return bool(await self._recovering(self._extend, tenant_id, keys, [hold.request_id, HOLD_TTL_MS]))

    async def settle(self, hold: Hold, use: Use) -> Settlement:
        """As in `LimitStore`."""
        scopes = [demand.quota.scope for demand in hold.demands]
        arguments: list[str | int] = [hold.request_id, hold.at_ms, hold.granted_tokens, _bound_of(hold)]
        for scope in scopes:
            arguments += [scope.measure.window.value, use.of(scope.measure)]
        tenant_id = scopes[0].tenant_id
        keys = [*_request_keys(tenant_id, hold.request_id), *map(_counter_key, scopes)]
        outcome = _OUTCOMES[cast(bytes, await self._recovering(self._settle, tenant_id, keys, arguments))]
        self._ledger.on_settle(hold, use, outcome)
        return Settlement(outcome, outcome is not SettleOutcome.REPEATED and exceeds(hold, use))

    async def usage(self, quotas: Sequence[Quota]) -> tuple[LimitState, ...]:
        """As in `LimitStore`."""
        tenant_id = quotas[0].scope.tenant_id
        keys = [_prefix(tenant_id) + "open", *(_counter_key(quota.scope) for quota in quotas)]
        windows = [quota.scope.measure.window.value for quota in quotas]
        now, *rows = cast(list[int], await self._call(self._usage, tenant_id, keys, windows))
        return tuple(
            state_of(quota, used, held, None if newest < 0 else newest, now)
            for quota, used, held, newest in zip(quotas, rows[::3], rows[1::3], rows[2::3], strict=True)
        )

    async def restore(self, known: Sequence[Committed]) -> None:
        """As in `LimitStore`, with one call per tenant."""
        by_tenant: dict[str, list[Committed]] = {}
        for entry in known:
            by_tenant.setdefault(entry.scope.tenant_id, []).append(entry)
        for tenant_id, entries in by_tenant.items():
            arguments: list[str | int] = []
            for entry in entries:
                arguments += [entry.scope.measure.window.value, entry.at_ms, entry.amount]
            keys = [_prefix(tenant_id) + "open", *(_counter_key(entry.scope) for entry in entries)]
            await self._recovering(self._restore, tenant_id, keys, arguments)
            self._ledger.on_restore(entries)

    async def probe(self) -> None:
        """Write a key that expires soon, as a full Redis answers PING but accepts no writes. Raises StoreAway."""
        with _answering():
            await self._probe(keys=["turnpike:probe"])

    def counts(self) -> Mapping[str, int]:
        """As in `LimitStore`: none."""
        return {}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _recovering(
        self, script: Any, tenant_id: str, keys: Sequence[str], arguments: Sequence[str | int]
    ) -> object:
        """Run a script. If Redis has lost what this replica recorded of the tenant, record it again first."""
        reply = await self._call(script, tenant_id, keys, arguments)
        if reply in _LOST:
            await self._record_again(tenant_id)
            reply = await self._call(script, tenant_id, keys, arguments)
        if reply in _LOST:
            raise StoreAway("Redis has lost its data again")
        return reply

    async def _record_again(self, tenant_id: str) -> None:
        committed, holds = self._ledger.committed(tenant_id), self._ledger.open_holds(tenant_id)
        arguments: list[str | int] = [HOLD_TTL_MS, len(committed), len(holds)]
        for entry in committed:
            arguments += [entry.scope.measure.window.value, entry.at_ms, entry.amount]
        keys = [_prefix(tenant_id) + "open", *(_counter_key(entry.scope) for entry in committed)]
        for hold in holds:
            demands = hold.demands
            arguments += [hold.request_id, hold.at_ms, hold.granted_tokens, _bound_of(hold), len(demands)]
            for demand in demands:
                arguments += [demand.quota.scope.measure.window.value, demand.amount(hold.granted_tokens)]
                keys.append(_counter_key(demand.quota.scope))
        if await self._call(self._recover, tenant_id, keys, arguments):
            _log.warning("the store of limits has lost its data: %d holds of a tenant are recorded again", len(holds))

    async def _call(self, script: Any, tenant_id: str, keys: Sequence[str], arguments: Sequence[str | int]) -> object:
        now = -1 if self._clock is None else self._clock()
        expected = int(bool(self._replica) and self._ledger.has(tenant_id))
        with _answering():
            return await script(
                keys=keys, args=[_prefix(tenant_id), now, FINISHED_MS, *arguments, self._replica, expected]
            )


@contextmanager
def _answering() -> Iterator[None]:
    """Turn errors of Redis into `StoreAway`. The client's own message is dropped, as it may name hosts and users."""
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


def _bound_of(hold: Hold) -> int:
    """Index, from 1, of the demand that cut the grant; 0: none."""
    scopes = [demand.quota.scope for demand in hold.demands]
    return 0 if hold.bound_by is None else scopes.index(hold.bound_by) + 1


def _counter_key(scope: Scope) -> str:
    return f"{_prefix(scope.tenant_id)}used:{scope.measure.value}:{scope.kind.value}:{scope.id}"
