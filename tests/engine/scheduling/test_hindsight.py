"""How fast a queue moves corrects what is predicted of its waits, and only that."""

import pytest

from engine.scheduling.hindsight import MAX_SPEED, MIN_SPEED, Hindsight
from engine.scheduling.wait import ClassLoad, ClassRoom, QueueSnapshot

MS = 10**6
REQUEST_NS = 200 * MS
"""A queue is predicted to take so long for each request in it."""


def queue(*waiting: int) -> QueueSnapshot:
    loads = tuple(ClassLoad(waiting_requests=each, waiting_tokens=10 * each) for each in waiting)
    return QueueSnapshot(loads, tuple(ClassRoom(0, 0, 512.0) for _ in waiting), 0)


def predict(snapshot: QueueSnapshot, rank: int, prompt_tokens: int) -> int:
    return REQUEST_NS * (snapshot.classes[rank].waiting_requests + 1)


def run(hindsight: Hindsight, *, speed: float, seconds: float = 30.0) -> None:
    """A queue that stays 40 long: one leaves every so often, and another comes."""
    leaves_ns = int(REQUEST_NS / speed)
    hindsight.submitted(queue(40), 10, 0)
    for step in range(1, int(seconds * 1e9 / leaves_ns)):
        hindsight.moved(queue(40), step * leaves_ns)
        hindsight.submitted(queue(40), 10, step * leaves_ns)


def test_nothing_is_corrected_before_a_queue_has_moved() -> None:
    hindsight = Hindsight(0, predict)
    hindsight.submitted(queue(40), 10, 0)
    hindsight.moved(queue(41), 1)
    assert hindsight.factor == 1.0


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.0, 1.5])
def test_waits_are_predicted_by_the_speed_of_their_queue(speed: float) -> None:
    hindsight = Hindsight(0, predict)
    run(hindsight, speed=speed)
    assert hindsight.factor == pytest.approx(1 / speed, rel=0.05)


def test_the_latest_count_most() -> None:
    hindsight = Hindsight(0, predict)
    run(hindsight, speed=0.5, seconds=100)
    hindsight.moved(queue(0), 10**12)
    run(hindsight, speed=1.0, seconds=100)
    assert hindsight.factor == pytest.approx(1.0, abs=0.05)


def test_a_queue_that_stands_still_or_flies_is_bounded() -> None:
    """A change of mind of the prediction looks like that, and is gone with the next window."""
    still, flying = Hindsight(0, predict), Hindsight(0, predict)
    run(still, speed=0.02, seconds=200)
    run(flying, speed=20, seconds=60)
    assert still.factor == pytest.approx(1 / MIN_SPEED, rel=0.1)
    assert flying.factor == pytest.approx(1 / MAX_SPEED, rel=0.1)


def test_who_comes_behind_is_no_standstill() -> None:
    """The queue grows as fast as it moves, and faster: whoever watches it is nearer to its place all the same."""
    hindsight = Hindsight(0, predict)
    hindsight.submitted(queue(40), 10, 0)
    waiting, now_ns = 41, 0
    for _ in range(40):
        now_ns += REQUEST_NS
        waiting -= 1
        hindsight.moved(queue(waiting), now_ns)
        for _ in range(3):
            hindsight.submitted(queue(waiting), 10, now_ns)
            waiting += 1
    assert hindsight.factor == pytest.approx(1.0, abs=0.05)


def test_short_queues_tell_nothing() -> None:
    """There a wait is mostly the request's own prompt."""
    hindsight = Hindsight(0, lambda *_: 10 * MS)
    hindsight.submitted(queue(0), 10, 0)
    hindsight.moved(queue(1), 10**10)
    assert hindsight.factor == 1.0
