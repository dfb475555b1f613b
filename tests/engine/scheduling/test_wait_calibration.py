"""How fast a queue moves corrects what is predicted of its waits, and only that."""

from itertools import count

import pytest

from engine.scheduling.wait import ClassCapacity, ClassLoad, QueueSnapshot
from engine.scheduling.wait_calibration import MAX_SPEED, MIN_SPEED, WaitCalibration

MS = 10**6
REQUEST_NS = 200 * MS
"""A queue is predicted to take so long for each request in it."""


def queue(*waiting: int) -> QueueSnapshot:
    loads = tuple(ClassLoad(waiting_requests=each, waiting_tokens=10 * each) for each in waiting)
    return QueueSnapshot(loads, tuple(ClassCapacity(0, 0, 512.0) for _ in waiting), 0)


def predict(snapshot: QueueSnapshot, rank: int, prompt_tokens: int) -> int:
    return REQUEST_NS * (snapshot.classes[rank].waiting_requests + 1)


IDS = map(str, count())


def come(calibration: WaitCalibration, ahead: int, now_ns: int) -> str:
    """Queue a request of 10 tokens behind `ahead` requests. Returns its id."""
    request_id = next(IDS)
    calibration.on_submit(request_id, 10, now_ns, lambda: queue(ahead))
    return request_id


def run(calibration: WaitCalibration, *, speed: float, seconds: float = 30.0) -> None:
    """Hold the queue at 40 requests: one leaves and one arrives, `speed` times the predicted rate."""
    leaves_ns = int(REQUEST_NS / speed)
    come(calibration, 40, 0)
    for step in range(1, int(seconds * 1e9 / leaves_ns)):
        calibration.on_step(queue(40), step * leaves_ns)
        come(calibration, 40, step * leaves_ns)


def test_nothing_is_corrected_before_a_queue_has_moved() -> None:
    calibration = WaitCalibration(0, predict)
    come(calibration, 40, 0)
    calibration.on_step(queue(41), 1)
    assert calibration.factor == 1.0


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.0, 1.5])
def test_waits_are_predicted_by_the_speed_of_their_queue(speed: float) -> None:
    calibration = WaitCalibration(0, predict)
    run(calibration, speed=speed)
    assert calibration.factor == pytest.approx(1 / speed, rel=0.05)


def test_the_latest_count_most() -> None:
    calibration = WaitCalibration(0, predict)
    run(calibration, speed=0.5, seconds=100)
    calibration.on_step(queue(0), 10**12)
    run(calibration, speed=1.0, seconds=100)
    assert calibration.factor == pytest.approx(1.0, abs=0.05)


def test_a_queue_that_stands_still_or_flies_is_bounded() -> None:
    """A change of mind of the prediction looks like that, and is gone with the next window."""
    still, flying = WaitCalibration(0, predict), WaitCalibration(0, predict)
    run(still, speed=0.02, seconds=200)
    run(flying, speed=20, seconds=60)
    assert still.factor == pytest.approx(1 / MIN_SPEED, rel=0.1)
    assert flying.factor == pytest.approx(1 / MAX_SPEED, rel=0.1)


def test_who_comes_behind_is_no_standstill() -> None:
    """Arrivals at the tail, even faster than the queue drains, do not delay a request that is ahead of them."""
    calibration = WaitCalibration(0, predict)
    come(calibration, 40, 0)
    waiting, now_ns = 41, 0
    for _ in range(40):
        now_ns += REQUEST_NS
        waiting -= 1
        calibration.on_step(queue(waiting), now_ns)
        for _ in range(3):
            come(calibration, waiting, now_ns)
            waiting += 1
    assert calibration.factor == pytest.approx(1.0, abs=0.05)


def test_short_queues_tell_nothing() -> None:
    """There a wait is mostly the request's own prompt."""
    calibration = WaitCalibration(0, lambda *_: 10 * MS)
    come(calibration, 0, 0)
    calibration.on_step(queue(1), 10**10)
    assert calibration.factor == 1.0


def watched(ahead: int, behind: int) -> tuple[WaitCalibration, list[str]]:
    """A calibration in which one request waits since 0 with `ahead` before it, and the ids of it and those after it."""
    calibration = WaitCalibration(0, predict)
    ids = [come(calibration, ahead + number, 0) for number in range(1 + behind)]
    return calibration, ids


def test_a_queue_that_empties_because_its_clients_leave_is_not_fast() -> None:
    calibration, _ = watched(ahead=40, behind=0)
    calibration.on_displaced({"another"}, queue(41), queue(1))
    calibration.on_step(queue(0), REQUEST_NS)
    assert calibration.factor == pytest.approx(1.0, abs=0.05), "the one request took its time"


def test_those_behind_who_leave_are_not_taken_for_those_ahead() -> None:
    calibration, ids = watched(ahead=10, behind=30)
    calibration.on_displaced(ids[1:], queue(41), queue(11))
    for left in range(10, -1, -1):
        calibration.on_step(queue(left), (11 - left) * REQUEST_NS)
    assert calibration.factor == pytest.approx(1.0, abs=0.05)


def test_one_that_is_watched_and_leaves_has_seen_nothing() -> None:
    calibration, ids = watched(ahead=40, behind=3)
    calibration.on_displaced(ids[:1], queue(44), queue(43))
    assert not calibration.has_probe
    calibration.on_step(queue(0), 1)
    assert calibration.factor == 1.0


def test_those_who_come_back_to_their_places_are_no_standstill() -> None:
    calibration, _ = watched(ahead=5, behind=0)
    calibration.on_displaced({"paused"}, queue(6), queue(16))
    for left in range(15, -1, -1):
        calibration.on_step(queue(left), (16 - left) * REQUEST_NS)
    assert calibration.factor == pytest.approx(1.0, abs=0.05)


def test_those_who_leave_after_the_one_that_is_watched_has_started_leave_no_queue_of_less_than_none() -> None:
    asked: list[int] = []

    def predicted(snapshot: QueueSnapshot, rank: int, prompt_tokens: int) -> int:
        asked.append(snapshot.classes[rank].waiting_requests)
        return predict(snapshot, rank, prompt_tokens)

    calibration = WaitCalibration(0, predicted)
    first = come(calibration, 40, 0)
    behind = [come(calibration, 41 + index, 0) for index in range(3)]
    calibration.on_displaced(behind[:2], queue(3), queue(1))  # the step that it starts with is under way
    assert min(asked) >= 0, f"a queue of {min(asked)} ahead of {first}"
    calibration.on_step(queue(1), 41 * REQUEST_NS)
    assert not calibration.has_probe
    assert calibration.factor == pytest.approx(1.0, abs=0.05)


def test_those_who_leave_where_others_have_overtaken_the_one_that_is_watched_leave_no_queue_of_less_than_none() -> None:
    """Three are ahead and two come behind; one of these is served first, and those ahead are aborted."""

    def predict_of_some(snapshot: QueueSnapshot, rank: int, prompt_tokens: int) -> int:
        assert snapshot.classes[rank].waiting_requests >= 0
        return predict(snapshot, rank, prompt_tokens)

    calibration = WaitCalibration(0, predict_of_some)
    come(calibration, 3, 0)
    come(calibration, 4, 0)
    come(calibration, 5, 0)
    calibration.on_step(queue(5), 10 * MS)
    calibration.on_displaced(["ahead", "of", "it"], queue(5), queue(2))
    assert not calibration.has_probe
