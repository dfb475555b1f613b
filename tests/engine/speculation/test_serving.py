"""From its first step, a server with the controller is nearly as fast as the better of always and never drafting."""

import random
from collections.abc import Callable

import pytest

from engine.runtime import step_loop
from engine.speculation import FixedDepth
from tests.engine.speculation.serving import Clock, Policy, Server, controller

DEPTHS = (0, 1, 2, 3)
SERVERS, RUNS = 3, 4
"""A run is as short as one of the benchmark's: each request has a few dozen tokens, all begin at once."""

Serve = Callable[[Policy, int], Server]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """A new server with a policy. Its clock is noisy by a seed, and the only one from then on."""

    def begin(policy: Policy, seed: int) -> Server:
        clock = Clock(random.Random(seed))
        monkeypatch.setattr(step_loop.time, "monotonic_ns", clock.monotonic_ns)
        return Server(clock, policy)

    return begin


def fixed(depth: int) -> Policy:
    return lambda _: FixedDepth(depth)


def times(serve: Serve, policy: Policy, concurrency: int) -> list[list[float]]:
    """Seconds a token of each run, of some servers from their first step on."""
    spent = []
    for number in range(SERVERS):
        server = serve(policy, number)
        runs = range(RUNS * number, RUNS * (number + 1))
        spent.append([1.0 / server.run(run, concurrency, concurrency) for run in runs])
    return spent


@pytest.mark.parametrize("concurrency", [1, 2, 4, 8, 16, 32])
def test_it_is_about_as_fast_as_the_best_depth_from_the_first_step_on(serve: Serve, concurrency: int) -> None:
    """Learning is in it. In the very first run it is most of what there is to lose."""
    with_controller = times(serve, controller, concurrency)
    best = min((times(serve, fixed(depth), concurrency) for depth in DEPTHS), key=lambda each: sum(map(sum, each)))
    assert sum(map(sum, best)) >= 0.97 * sum(map(sum, with_controller))
    assert sum(runs[0] for runs in best) >= 0.92 * sum(runs[0] for runs in with_controller)


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_it_is_in_a_long_run_where_one_request_follows_another(serve: Serve, concurrency: int) -> None:
    requests = 8 * concurrency + 8
    speed = serve(controller, 0).run(77, concurrency, requests)
    assert speed >= 0.97 * max(serve(fixed(depth), 0).run(77, concurrency, requests) for depth in DEPTHS)


@pytest.mark.parametrize("policy", [controller, fixed(4)], ids=["controller", "always four"])
def test_every_draft_that_is_made_is_verified(serve: Serve, policy: Policy) -> None:
    """Steps are full of prompts at first, and have no room for any."""
    server = serve(policy, 0)
    server.run(0, 16, 16)
    assert server.drafter.made == server.verified > 0
