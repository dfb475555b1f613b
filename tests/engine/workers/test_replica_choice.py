"""The policies as functions of views: bounds on what they choose, and simulated fleets."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.simulation.fleet import Fleet
from engine.simulation.fleet_shape import FleetShape, Served
from engine.simulation.fleet_traffic import TrafficShape
from engine.workers.replica_choice import (
    POLICIES,
    TOLERANCE,
    LeastConnections,
    Predicted,
    ReplicaView,
    RoundRobin,
    routing_policy,
)


@st.composite
def replica_views(draw: st.DrawFn) -> list[ReplicaView]:
    views = []
    for _ in range(draw(st.integers(1, 20))):
        wait_ns = draw(st.integers(0, 10**10))
        saved_ns = draw(st.integers(0, wait_ns))
        views.append(ReplicaView(wait_ns, saved_ns, 64 if saved_ns else 0, draw(st.integers(0, 100))))
    return views


@given(replica_views(), st.integers(0, 1000))
def test_predicted_is_within_the_tolerance_of_the_best(views: list[ReplicaView], seed: int) -> None:
    chosen = views[Predicted(Random(seed)).choose(views, 100)]
    best = min(views, key=lambda view: view.cost_ns)
    assert chosen.cost_ns <= best.cost_ns + TOLERANCE * best.wait_ns


@given(replica_views(), st.integers(0, 1000), st.integers(0, 19))
def test_a_dominated_replica_is_not_preferred(views: list[ReplicaView], seed: int, place: int) -> None:
    """A longer wait, with no more saved, by more than the tolerance: never chosen."""
    best = min(views, key=lambda view: view.cost_ns)
    worse = ReplicaView(best.wait_ns * (1 + 2 * TOLERANCE) + 1, best.saved_ns, best.cached_tokens, 0)
    place = min(place, len(views))
    views = [*views[:place], worse, *views[place:]]
    assert views[Predicted(Random(seed)).choose(views, 100)] is not worse


@given(replica_views(), st.permutations(range(20)), st.integers(0, 1000))
def test_the_order_of_replicas_does_not_bound_the_cost(views: list[ReplicaView], order: list[int], seed: int) -> None:
    shuffled = [views[index] for index in order if index < len(views)]
    bound = min(view.cost_ns for view in views) + TOLERANCE * max(view.wait_ns for view in views)
    assert shuffled[Predicted(Random(seed)).choose(shuffled, 100)].cost_ns <= bound


@given(replica_views(), st.integers(0, 1000))
def test_least_connections_has_the_fewest(views: list[ReplicaView], seed: int) -> None:
    chosen = views[LeastConnections(Random(seed)).choose(views, 100)]
    assert chosen.requests == min(view.requests for view in views)


def test_equal_replicas_share_the_requests_of_gateways_that_see_the_same() -> None:
    views = [ReplicaView(10**8, 0, 0, 3)] * 8
    counts = [0] * 8
    for gateway in range(800):
        counts[Predicted(Random(gateway)).choose(views, 100)] += 1
    assert max(counts) < 160, "they follow one another"


def test_round_robin_takes_each_in_turn() -> None:
    policy = RoundRobin(Random(1))
    views = [ReplicaView(0, 0, 0, 0)] * 3
    turns = [policy.choose(views, 1) for _ in range(6)]
    assert sorted(turns[:3]) == [0, 1, 2]
    assert turns[:3] == turns[3:]


@pytest.mark.parametrize("name", POLICIES)
def test_policies_have_names(name: str) -> None:
    assert isinstance(routing_policy(name), POLICIES[name])  # type: ignore[index, arg-type]


def mean_ttft_ms(served: list[Served]) -> float:
    return sum(each.ttft_ns for each in served) / len(served) / 1e6


def hit_share(served: list[Served]) -> float:
    return sum(each.cached_tokens for each in served) / sum(each.prompt_tokens for each in served)


SESSIONS = TrafficShape(sessions_per_s=3.0, turns=3.0, tenants=8)
UNIQUE = TrafficShape(prompts_per_s=10.0)


def played(traffic: TrafficShape, policy: type[Predicted] | type[LeastConnections], **shape: int) -> list[Served]:
    fleet = FleetShape(speeds=(1.0,) * 3, **shape)  # type: ignore[arg-type]
    return Fleet(fleet, policy, 1).play(traffic.draw(1, 4.0))


def test_equal_arguments_give_equal_runs() -> None:
    assert played(SESSIONS, Predicted, gateways=2) == played(SESSIONS, Predicted, gateways=2)


def test_sessions_find_their_prefixes() -> None:
    predicted, least = played(SESSIONS, Predicted), played(SESSIONS, LeastConnections)
    assert hit_share(predicted) > hit_share(least) + 0.1
    assert mean_ttft_ms(predicted) < 0.8 * mean_ttft_ms(least)


def test_prompts_without_a_prefix_wait_no_longer_than_by_least_connections() -> None:
    assert mean_ttft_ms(played(UNIQUE, Predicted)) < 1.05 * mean_ttft_ms(played(UNIQUE, LeastConnections))


def test_prefix_events_find_what_other_gateways_have_sent() -> None:
    events = played(SESSIONS, Predicted, gateways=3, report_ns=50_000_000)
    sent = played(SESSIONS, Predicted, gateways=3, report_ns=50_000_000, events=False)
    assert hit_share(events) > hit_share(sent) + 0.05
