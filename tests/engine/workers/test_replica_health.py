"""Replicas that are silent or stand still, and the budget of requests that are moved from lost ones."""

from dataclasses import replace
from random import Random

import pytest

from engine.request import PREMIUM, STANDARD, FinishReason, SamplingParams, TokenDelta
from engine.runtime.core import EngineHealth
from engine.runtime.submission import Submission
from engine.workers.messages import Deltas, Draining, Stats, Submit, ToWorker
from engine.workers.replica_health import SILENT_SECONDS, STALLED_SECONDS
from engine.workers.replicas import Replica, ReplicaSet
from engine.workers.retry_budget import RetryBudget
from tests.support.worker_messages import ready

HEALTHY = EngineHealth(alive=True, stuck_steps_total=0, step_age_seconds=0.0)


def submission(number: int, *, premium: bool = False) -> Submission:
    service_class = replace(PREMIUM, name="standard") if premium else STANDARD
    return Submission((f"r{number}",), (number,), [number + 3] * 20, 20, SamplingParams(), 16, service_class, "t", b"")


class Two:
    """Two replicas, a clock, and what was sent and delivered."""

    def __init__(self, budget: RetryBudget | None = None) -> None:
        self.now_s = 100.0
        self.set = ReplicaSet(clock=lambda: self.now_s, retries=budget)
        self.sent: dict[str, list[str]] = {"a": [], "b": []}
        self.delivered: list[TokenDelta] = []
        for name in self.sent:
            replica = Replica(name, self.set, lambda message, name=name: self._send(name, message))  # type: ignore[misc]
            self.set.replicas.append(replica)
            replica.on_ready(ready())
        self.a, self.b = self.set.replicas

    def _send(self, name: str, message: ToWorker) -> bool:
        if isinstance(message, Submit):
            self.sent[name] += [each for one in message.submissions for each in one.request_ids]
        return True

    def submit(self, each: Submission) -> None:
        self.set.submit("m", [each], self.delivered.extend, lambda error: None)

    def heartbeat(self, replica: Replica, *, steps: int = 0, running: int = 0) -> None:
        stats = replace(ready().stats["m"], steps_total=steps, running=running)
        replica.on_message(Stats(HEALTHY, {"m": stats}))

    def fill(self, count: int) -> None:
        for number in range(count):
            self.submit(submission(number))

    @property
    def failed(self) -> list[str]:
        return [delta.request_id for delta in self.delivered if delta.finish_reason is FinishReason.ERROR]


def test_a_silent_replica_gets_nothing() -> None:
    two = Two()
    two.now_s += SILENT_SECONDS + 0.1
    two.heartbeat(two.b)
    two.fill(4)
    assert (len(two.sent["a"]), len(two.sent["b"])) == (0, 4)
    two.heartbeat(two.a)
    two.submit(submission(9))
    assert two.sent["a"] == ["r9"]


def test_where_all_are_silent_requests_are_served_all_the_same() -> None:
    two = Two()
    two.now_s += SILENT_SECONDS + 0.1
    two.fill(4)
    assert len(two.sent["a"]) == len(two.sent["b"]) == 2


def test_a_replica_that_makes_no_progress_gets_nothing() -> None:
    two = Two()
    for _ in range(int(STALLED_SECONDS / 0.5) + 2):
        two.heartbeat(two.a, steps=7, running=1)
        two.heartbeat(two.b, steps=int(two.now_s), running=1)
        two.now_s += 0.5
    two.fill(4)
    assert (len(two.sent["a"]), len(two.sent["b"])) == (0, 4)
    two.heartbeat(two.a, steps=8, running=1)
    two.submit(submission(9))
    assert two.sent["a"] == ["r9"]


def test_an_idle_replica_stands_still_rightly() -> None:
    two = Two()
    for _ in range(40):
        two.now_s += 0.5
        two.heartbeat(two.a, steps=7)
        two.heartbeat(two.b, steps=7)
    two.heartbeat(two.a, steps=7, running=1)
    two.fill(4)
    assert len(two.sent["a"]) == len(two.sent["b"]) == 2


def test_requests_beyond_the_budget_end_with_an_error() -> None:
    two = Two(RetryBudget(reserve=2, share=0.1))
    two.fill(20)
    assert len(two.sent["a"]) == 10
    begun = two.sent["a"][3]
    two.a.on_message(Deltas([TokenDelta(begun, (5,))]))
    two.a.on_ended()
    moved = [each for each in two.sent["b"] if each in two.sent["a"]]
    assert len(moved) == 2, "the budget is full from the start, and does not grow beyond its reserve"
    assert begun in moved, "a stream that has begun goes first"
    assert sorted([*two.failed, *moved]) == sorted(two.sent["a"])
    assert all("retries" in (delta.error or "") for delta in two.delivered if delta.error)
    two.set.check()


def test_the_budget_is_a_tenth_of_the_requests() -> None:
    budget = RetryBudget(reserve=5, share=0.1)
    assert [budget.take() for _ in range(6)] == [True] * 5 + [False]
    for _ in range(9):
        budget.add()
    assert not budget.take()
    budget.add()
    assert budget.take()
    assert not budget.take()
    for _ in range(1000):
        budget.add()
    assert sum(budget.take() for _ in range(100)) == 5


@pytest.mark.parametrize("seed", range(3))
def test_retries_never_exceed_a_tenth_and_the_reserve(seed: int) -> None:
    random, budget, added, taken = Random(seed), RetryBudget(reserve=7, share=0.1), 0, 0
    for _ in range(5000):
        if random.random() < 0.7:
            budget.add()
            added += 1
        else:
            taken += budget.take()
        assert taken <= 7 + added / 10 + 1e-6


def test_what_a_drained_worker_hands_on_costs_nothing() -> None:
    two = Two(RetryBudget(reserve=1, share=0.1))
    two.fill(12)
    two.a.on_message(Draining())
    two.a.on_ended()
    assert not two.failed
    assert len(two.b.requests) == 12
