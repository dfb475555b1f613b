"""Checks answers, events and costs against the adapters that there were, and that no slot is kept at the end."""

from collections.abc import Iterable
from decimal import Decimal
from math import floor
from typing import Any

from engine.scheduling.scheduler import Scheduler
from gateway.metering.event import UsageEvent
from tests.whole.adapters import BASE, MULTIPLIERS, NAMES, OWNERS, Life, own_name
from tests.whole.clients import Report
from tests.whole.scenario import Config
from tests.whole.tenants import PRICES, id_of, name_of
from tests.whole.upstream_server import FAR
from tests.whole.world import World

APPLIED_S = 5.0
"""Within this a change of an adapter holds at every gateway."""
PREMIUM = 3
"""Multiplier of the class."""
HEADER = "x-turnpike-adapter"


def held_in(scheduler: Scheduler) -> list[str]:
    """Leases, loads and waits for adapters that are left where no request runs or waits."""
    queue = scheduler.adapters._queue
    pool = queue.pool
    left = [f"{pool.leases(digest)} leases of {digest[:8]}" for digest in pool if pool.leases(digest)]
    left += [f"a load of {digest[:8]}" for digest in pool if not pool.is_resident(digest)]
    left += [f"{len(queue)} parked requests"] if len(queue) else []
    left += ["slots to be assigned"] if queue.changed else []
    left += [f"{len(queue._drained)} drains"] if queue._drained else []
    left += [f"{stats.waiting} in the gauge"] if (stats := scheduler.adapters.stats()).waiting else []
    return left


def check_waits(scheduler: Scheduler, config: Config, now_ns: int, slack_s: float) -> None:
    """No request waits for its adapter beyond the limit."""
    late = scheduler.adapters._queue.overdue(now_ns - int((config.adapter_wait_s + slack_s) * 1e9))
    assert not late, f"{[each.id for each in late]} wait for their adapters beyond the limit"


def check_names(world: World) -> None:
    """Every gateway knows the adapters that there are, and no others."""
    for gateway in world.gateways:
        for tenant in OWNERS:
            lives = [life for name in NAMES if (life := world.adapters.live(tenant, name)) is not None]
            expected = {life.id: life.weights[-1][1] for life in lives}
            found = {each.id: each.weights for each in gateway.services.adapters.of_tenant(id_of(tenant))}
            assert found == expected, f"{tenant} has {expected}, and a gateway knows {found}"


def check_answers(world: World, reports: Iterable[Report]) -> None:
    """A tenant gets its own adapters by their names, as long as they exist, and never another's."""
    for report in reports:
        if report.call.adapter is not None and report.status is not None:
            _check_answer(world, report, report.call.adapter)
        else:
            assert HEADER not in report.exchange.headers, f"an adapter answers for {report.call}"


def check_events(world: World, events: Iterable[UsageEvent]) -> None:
    """Each event names the adapter that computed its tokens, and its cost is at that adapter's price."""
    for event in events:
        if event.served_model == FAR:
            assert not event.adapter_id, f"an adapter is billed of a model that takes none: {event}"
            continue
        life = _life_of(world, event)
        computed = world.computed.get(event.request_id, set())
        assert len(computed) <= 1, f"{event.request_id} was computed with {sorted(computed)}"
        assert computed or not event.completion_tokens, f"tokens of {event.request_id} were computed by no step"
        for digest in computed:
            if life is None:
                assert not digest, f"{event.request_id} was computed with an adapter, and its event names none"
            else:
                assert digest in life.digests.values(), f"{event.request_id} was computed without {life.id}"
                assert event.model_version.endswith(f"+{digest[:16]}"), f"{event.model_version} answered with {digest}"
        cost = _cost(event, life)
        assert event.cost_nanodollars == cost, f"{event.request_id} costs {event.cost_nanodollars}, not {cost}"


def _check_answer(world: World, report: Report, name: str) -> None:
    tenant, own = report.call.tenant, own_name(name, report.call.tenant)
    assert report.ended_s is not None, f"{report.call} has not ended"
    since_s, until_s = report.began_s - APPLIED_S, report.ended_s
    lives = [] if own is None else world.adapters.of(tenant, own)
    possible = [life for life in lives if life.overlaps(since_s, until_s)]
    if report.status == 404:
        assert _is_missing(possible, since_s, until_s), f"{tenant} has {name}, and it is not found: {report.call}"
        return
    if report.status != 200:
        return
    assert possible, f"{name} answers {tenant}: {report.call}"
    if report.call.endpoint == "tokenize":
        return
    label = report.exchange.headers.get(HEADER, "")
    adapter_id, _, number = label.partition("@")
    life = next((life for life in possible if life.id == adapter_id), None)
    assert life is not None, f"{name} of {tenant} is answered by {label!r}: {report.call}"
    served = life.serving(since_s, until_s)
    assert int(number) in served, f"version {number} answers, and {sorted(served)} get requests: {report.call}"


def _is_missing(lives: list[Life], since_s: float, until_s: float) -> bool:
    """Whether at some time between none of these adapters existed."""
    reached_s = since_s
    for life in lives:
        if life.since_s > max(reached_s, 0.0):
            return True
        reached_s = max(reached_s, life.until_s)
    return reached_s < until_s


def _life_of(world: World, event: UsageEvent) -> Life | None:
    own = own_name(event.requested_model, name_of(event.tenant_id))
    is_adapter = own is not None and any(life.name == own for life in world.adapters.lives)
    assert is_adapter == bool(event.adapter_id), f"{event.requested_model} is billed as {event.adapter_id!r}"
    if not event.adapter_id:
        return None
    life = world.adapters.by_id(event.adapter_id)
    assert life is not None, f"an event names {event.adapter_id}, which never was"
    assert id_of(life.tenant) == event.tenant_id, f"a tenant is billed for {life.tenant}'s {life.id}"
    assert life.name == own, f"{event.requested_model} is billed as {life.id}"
    assert event.served_model == BASE, f"{life.id} is of {BASE}, not of {event.served_model}"
    return life


def _cost(event: UsageEvent, life: Life | None) -> int:
    """Nanodollars of an event, by the prices as they were stated."""
    dollars: Any = PRICES[event.served_model]
    multiplier = Decimal(1)
    if life is not None:
        dollars = life.price or dollars
        multiplier = MULTIPLIERS.get(life.name, multiplier)
    tier = PREMIUM if event.tier_served == "premium" else 1
    paid, cached, answered = (floor(Decimal(each) * 1000 * tier * multiplier) for each in dollars)
    fresh = event.prompt_tokens - event.cached_tokens
    return paid * fresh + cached * event.cached_tokens + answered * event.completion_tokens
