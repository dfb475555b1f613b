"""From settings to a limiter."""

import pytest

from gateway.admission import Demand, Measure, Quota, QuotaExceeded
from gateway.config.settings import load_settings
from gateway.process.open_limiter import open_limiter
from tests.support.limit_stores import each, scope, tokens
from tests.support.servers import RedisServer, free_port

pytestmark = pytest.mark.usefixtures("no_settings")


async def test_without_redis_each_replica_counts_for_itself() -> None:
    one, two = open_limiter(load_settings(), "a"), open_limiter(load_settings(), "b")
    for replica in (one, two):
        await replica.hold("a", [each(Measure.CONCURRENT, 1)], minimum_tokens=0, desired_tokens=0)
        await replica.aclose()


async def test_with_redis_replicas_count_together(redis_server: RedisServer) -> None:
    settings = load_settings(redis_url=redis_server.url)
    one, two = open_limiter(settings, "a"), open_limiter(settings, "b")
    demand = Demand(Quota(scope(Measure.TOKENS_PER_DAY, tenant="opening"), 100), 0, 1)
    hold = await one.hold("here", [demand], minimum_tokens=1, desired_tokens=100)
    with pytest.raises(QuotaExceeded):
        await two.hold("there", [demand], minimum_tokens=1, desired_tokens=100)
    await one.settle(hold, 60)
    assert (await two.hold("again", [demand], minimum_tokens=1, desired_tokens=100)).granted_tokens == 40
    assert two.counts()["breaker_open"] == 0
    await one.aclose()
    await two.aclose()


async def test_redis_need_not_be_there_at_the_start() -> None:
    limiter = open_limiter(load_settings(redis_url=f"redis://127.0.0.1:{free_port()}/0", limits_local_share=0.5), "a")
    hold = await limiter.hold("a", [tokens(100)], minimum_tokens=1, desired_tokens=100)
    assert (hold.granted_tokens, hold.degraded) == (50, True)
    await limiter.settle(hold, 5)
    await limiter.aclose()
