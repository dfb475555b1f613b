"""The number of workers: bounded, without flapping, and enough for a queue in virtual time."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.cluster_file import Scaling
from gateway.cluster.scaling import Demand, Sample, Scaler, decide, demand_of

FAST = Scaling(target_wait_s=2, target_requests=10, look_back_s=5, up_delay_s=10, down_delay_s=60)
LEAST, MOST = 1, 8


def changes(loads: list[tuple[float, float]], scaling: Scaling = FAST) -> list[tuple[float, int]]:
    """When the number changes, in seconds, and to what; `loads`: requests and predicted wait of each second."""
    scaler, seen = Scaler(scaling, LEAST, MOST), [(0.0, LEAST)]
    for second, (requests, wait_s) in enumerate(loads):
        workers = scaler.observe(Sample(float(second), scaler.workers, requests, wait_s))
        assert LEAST <= workers <= MOST
        if workers != seen[-1][1]:
            seen.append((float(second), workers))
    return seen[1:]


LOADS = st.lists(
    st.tuples(st.tuples(st.floats(0, 120), st.floats(0, 20)), st.integers(1, 90)), min_size=1, max_size=12
).map(lambda parts: [load for load, seconds in parts for _ in range(seconds)])


@given(LOADS)
def test_it_changes_back_only_after_the_delay(loads: list[tuple[float, float]]) -> None:
    seen = [(0.0, LEAST), *changes(loads)]
    for before, now, after in zip(seen, seen[1:], seen[2:], strict=False):
        grew, shrank = now[1] > before[1], after[1] < now[1]
        if grew and shrank:
            assert after[0] - now[0] >= FAST.down_delay_s - 2
        if not grew and not shrank:
            assert after[0] - now[0] >= FAST.up_delay_s - 2


@given(st.floats(0, 100), st.floats(0, 1.5))
def test_a_constant_load_changes_it_once(requests: float, wait_s: float) -> None:
    seen = changes([(requests, wait_s)] * 400)
    assert len(seen) <= 1
    needed = max(LEAST, min(MOST, -(-requests // FAST.target_requests)))
    assert (seen[-1][1] if seen else LEAST) == needed


@given(LOADS)
def test_it_grows_only_if_more_are_needed_and_shrinks_only_if_fewer_suffice(loads: list[tuple[float, float]]) -> None:
    scaler = Scaler(FAST, LEAST, MOST)
    for second, (requests, wait_s) in enumerate(loads):
        before = scaler.workers
        after = scaler.observe(Sample(float(second), before, requests, wait_s))
        demand = scaler._demands[-1]
        assert after <= max(before, demand.needed)
        assert after >= min(before, max(demand.with_margin, LEAST))


def test_short_peaks_and_short_pauses_change_nothing() -> None:
    peaks = ([(80.0, 10.0)] * 3 + [(2.0, 0.0)] * 20) * 20
    assert changes(peaks) == []
    pauses = ([(45.0, 0.0)] * 50 + [(0.0, 0.0)] * 20) * 10
    assert [workers for _, workers in changes(pauses)] == [5]


def test_a_predicted_wait_above_its_target_adds_workers() -> None:
    assert [workers for _, workers in changes([(3.0, 6.0)] * 12)] == [3]
    near = [demand_of(FAST, [Sample(0.0, 4, 3.0, 1.9)])]
    assert near[0].needed == 1
    assert near[0].with_margin == 4, "none is superfluous while the wait is near its target"


def test_a_window_that_is_not_covered_decides_nothing() -> None:
    many = [Demand(float(second), 5, 5) for second in range(5)]
    assert decide(FAST, many, 1, 4.0, (1, 8)) == 1
    assert decide(FAST, [], 3, 100.0, (1, 8)) == 3
    assert decide(FAST, [], 30, 100.0, (1, 8)) == 8


def test_a_queue_drains_and_the_group_comes_to_rest() -> None:
    """Closed loop: each worker ends 5 requests a second, which is its target; 22 arrive. Workers start in 15 s."""
    scaling = FAST.model_copy(update={"target_requests": 5.0})
    scaler, queue, ready, changed = Scaler(scaling, LEAST, MOST), 0.0, 1, [1]
    starting: list[float] = []
    for second in range(1500):
        arrivals = 22.0 if second < 900 else 2.0
        served = min(queue + arrivals, 5.0 * ready)
        queue += arrivals - served
        workers = scaler.observe(Sample(float(second), ready, queue + served, queue / (5.0 * ready)))
        starting += [second + 15.0] * (workers - ready - len(starting))
        ready += sum(at <= second for at in starting)
        starting = [at for at in starting if at > second]
        ready = min(ready, workers)
        if workers != changed[-1]:
            changed.append(workers)
        if second == 890:
            assert queue < 30
            assert ready >= 5
    assert changed[-1] == 1
    assert len(changed) <= 15, changed
