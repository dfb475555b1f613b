"""The credit balance is one number: for admission, for the admin API, and after a gateway's restart."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.admission import Hold, Limiter, LimitStore, Measure, MemoryStore, QuotaExceeded, demands_of, limits_for
from gateway.admission.redis_store import RedisStore
from gateway.admission.restoring import restore_spending
from gateway.billing.prepaid import PrepaidKeys
from gateway.billing.prices import Price
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.metering.event import Ending
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.usage_context import Progress, UsageContext, Work, event_of
from gateway.tenancy import Limits
from gateway.tenancy.database import open_database
from tests.support.billing import RecordedUsage
from tests.support.limit_stores import Clock
from tests.support.servers import RedisServer
from tests.support.usage_requests import a_usage_context
from tests.support.writers import CreditWriter, TenantWriter

PRICE = Price("m@v", 3, 1, 7)
PROMPT_TOKENS = 4

steps = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), st.integers(1, 900)),
        st.tuples(st.just("correct"), st.integers(-900, -1)),
        st.tuples(st.just("begin"), st.integers(1, 50)),
        st.tuples(st.just("end"), st.integers(0, 50)),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=25,
)


class Gateway:
    """A tenant's requests, from its key to the journal, by a clock that the test moves."""

    def __init__(self, folder: Path, tenants: TenantWriter, credit: CreditWriter, key: str, tenant_id: str) -> None:
        self.usage = RecordedUsage()
        self.journal = Journal(folder / "journal.db", interval_ms=1, min_free_bytes=0)
        self.running: list[tuple[Hold, UsageContext]] = []
        self._tenants, self._credit, self._key, self._tenant_id = tenants, credit, key, tenant_id
        self._clock = credit.now
        self._served = 0

    async def quotas(self):
        keys = PrepaidKeys(self._tenants, self._credit._database, self.journal.follow_credit)
        principal = (await keys.active_keys([self._key]))[self._key].principal
        return limits_for(principal, ("m",), 1000, Limits()).quotas

    async def begin(self, limiter: Limiter, tokens: int) -> None:
        self._served += 1
        demands = demands_of(
            await self.quotas(),
            prompt_tokens=PROMPT_TOKENS,
            choices=1,
            prompt_nanodollars=PRICE.of(PROMPT_TOKENS, 0, 0),
            token_nanodollars=PRICE.completion,
        )
        id = f"{self._tenant_id}-{self._served}"
        usage_context = replace(a_usage_context(id, self._tenant_id, unix_ms(self._clock())), price=PRICE)
        try:
            hold = await limiter.hold(id, demands, minimum_tokens=1, desired_tokens=tokens)
        except QuotaExceeded:
            return
        self.journal.begin(usage_context)
        self.running.append((hold, usage_context))

    async def end(self, limiter: Limiter, tokens: int) -> None:
        if not self.running:
            return
        hold, usage_context = self.running.pop(0)
        progress = Progress(PROMPT_TOKENS, 0, min(tokens, hold.granted_tokens), 1)
        event = event_of(usage_context, progress, Work(), Ending.STOP, 200, unix_ms(self._clock()))
        await self.journal.finish(event)
        self.usage.record(event)
        await limiter.settle(hold, PROMPT_TOKENS + progress.completion_tokens, event.cost_nanodollars)

    async def check(self, limiter: Limiter) -> None:
        """Admission and the balance say the same, but for what requests under way hold."""
        balance = await self._credit.balance("acme", self.usage)
        quotas = await self.quotas()
        assert [quota.scope.measure for quota in quotas] == [Measure.CREDIT_NANODOLLARS] * (balance is not None)
        if balance is not None:
            (state,) = await limiter.usage(quotas)
            assert state.used - state.held == balance.spent_nanodollars
            assert state.quota.limit == max(0, balance.granted_nanodollars)


@asynccontextmanager
async def a_store(redis: RedisServer | None, clock: Clock) -> AsyncIterator[LimitStore]:
    if redis is None:
        yield MemoryStore(clock)
    else:
        async with Redis.from_url(redis.url) as client:
            yield RedisStore(client, clock)


async def forget_all(redis: RedisServer | None) -> None:
    if redis is not None:
        async with Redis.from_url(redis.url) as client:
            await client.flushall()


async def play(moves: list[tuple], schema: Path, redis: RedisServer | None) -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copyfile(schema, root / "turnpike.db")
        database = open_database(f"sqlite+aiosqlite:///{root / 'turnpike.db'}")
        tenants = TenantWriter(database, b"p" * 32)
        tenant = await tenants.create_tenant("acme", "standard")
        key = (await tenants.create_key("acme")).record.public_id
        credit = CreditWriter(database, now=lambda: utc_from_ms(clock.now_ms))
        gateway = Gateway(root, tenants, credit, key, tenant.id)
        await forget_all(redis)
        await run_through(moves, clock, gateway, credit, redis, root)
        await database.dispose()


async def run_through(moves, clock, gateway, credit, redis, root) -> None:
    while moves:
        async with a_store(redis, clock) as store:
            limiter = Limiter(store)
            since = {id: unix_ms(each.since) for id, each in (await credit.all_prepaid()).items()}
            await restore_spending(limiter, gateway.journal, {}, since)
            await gateway.check(limiter)
            forgets = False
            while moves:
                clock.now_ms += 7
                move, amount = moves.pop(0)
                if move == "restart":
                    forgets = amount
                    break
                if move in ("grant", "correct"):
                    await credit.add("acme", amount, "for a test", f"{len(moves)}")
                else:
                    await getattr(gateway, move)(limiter, amount)
                clock.now_ms += 7
                await gateway.check(limiter)
            while gateway.running:
                await gateway.end(limiter, 1)
            await limiter.aclose()
        if forgets:
            await forget_all(redis)
        await gateway.journal.aclose()
        gateway.journal = Journal(root / "journal.db", interval_ms=1, min_free_bytes=0)
    await gateway.journal.aclose()


@pytest.mark.parametrize("where", ["memory", "redis"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=steps)
def test_restart_keeps_balance(where: str, sqlite_schema: Path, redis_server: RedisServer, moves: list[tuple]) -> None:
    asyncio.run(play(list(moves), sqlite_schema, redis_server if where == "redis" else None))
