"""Plans: what is found, what is refused, and what does not change the result."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.planning.deployment import simulate
from engine.planning.outcome import ClassOutcome, Outcome, percentile
from engine.planning.plan import OutsideFit, Question, TokenPrices, make_plan
from engine.planning.runs import Runs
from engine.planning.search import LoadStep, NoFleet, find_knee, replica_rate, smallest_fleet
from engine.planning.step_features import MeasuredRange, StepFeatures
from engine.planning.targets import Target, breaches
from engine.planning.trace import TraceRow, TraceTraffic
from engine.planning.traffic import DescribedTraffic, Lengths, MeanLengths, Stream, Window
from tests.support.planning import deployment, linear_times, traffic

TARGETS = {"premium": Target(500, 60), "standard": Target(2000, 100)}
WINDOW = Window(0, 2.0, 12.0)


def outcome(ttft_ms: float, replicas: int = 1, refused: int = 0, **changes: object) -> Outcome:
    """100 requests of one class."""
    one = ClassOutcome("premium", 100, refused, ttft_ms / 2, ttft_ms, 10.0, 10.0)
    made = Outcome(
        replicas=replicas,
        seconds=10.0,
        classes=(one,),
        prompt_tokens=1000,
        cached_tokens=0,
        answer_tokens=500,
        too_long=0,
        preemptions=0,
        peak_kv_share=0.5,
        busy_share=0.5,
        busy_ns=5,
        least_ns=1.0,
        steps=10,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@given(st.integers(1, 200), st.integers(1, 200))
def test_the_smallest_number_that_passes_is_found(enough: int, first: int) -> None:
    def evaluate(numbers: Sequence[int]) -> list[Outcome]:
        return [outcome(100.0 if number >= enough else 900.0, number) for number in numbers]

    targets = {"premium": Target(500.0)}
    if enough > 4 * first + 4:
        with pytest.raises(NoFleet, match="ttft_p99_ms of premium is 900 ms, above 500 ms"):
            smallest_fleet(evaluate, targets, first)
    else:
        found, of_it = smallest_fleet(evaluate, targets, first)
        assert (found, of_it.replicas) == (enough, enough)


def test_breaches_are_named_the_largest_first() -> None:
    found = breaches(outcome(900.0, refused=50), {"premium": Target(500.0, 20.0, 0.01)})
    assert [each.field for each in found] == ["refused_share", "ttft_p99_ms"]
    assert str(found[1]) == "ttft_p99_ms of premium is 900 ms, above 500 ms"


def test_the_knee_is_the_first_load_that_misses_a_target() -> None:
    targets = {"premium": Target(500.0)}
    steps = [
        LoadStep(factor, each, tuple(breaches(each, targets)))
        for factor, each in (
            (0.5, outcome(100.0)),
            (1.0, outcome(200.0)),
            (1.5, outcome(800.0, busy_share=0.97)),
            (2.0, outcome(5000.0, peak_kv_share=1.0)),
        )
    ]
    knee = find_knee(steps, 16)
    assert (knee.last_good, knee.first_bad) == (1.0, 1.5)
    assert knee.breaks == "ttft_p99_ms of premium is 800 ms, above 500 ms; the replicas compute for 97% of the time"
    assert find_knee(steps[:2], 16).first_bad is None
    full = LoadStep(1.5, outcome(800.0, peak_kv_share=1.0), steps[2].missed)
    assert "KV memory is full" in find_knee([full], 16).breaks


def test_more_replicas_have_shorter_waits_in_the_same_traffic() -> None:
    """On the same arrivals, far over one replica's capacity."""
    heavy = traffic(6.0, 14.0)
    waits = []
    for replicas in (1, 2, 4):
        played = simulate(deployment(replicas, max_running=2), heavy, WINDOW, seed=3)
        waits.append([(each.ttft_p50_ms, each.ttft_p99_ms) for each in played.classes])
        assert played.requests == sum(each.requests for each in played.classes) > 200
    for fewer, more in pairwise(waits):
        for (p50, p99), (next_p50, next_p99) in zip(fewer, more, strict=True):
            assert next_p50 <= 1.1 * p50
            assert next_p99 <= 1.1 * p99


def test_a_class_above_waits_less() -> None:
    premium, standard = simulate(deployment(), traffic(3.0, 12.0), WINDOW).classes
    assert premium.ttft_p99_ms < standard.ttft_p99_ms


def test_admission_refuses_what_would_wait_too_long() -> None:
    bounded = deployment(max_wait_ms={"standard": 300}, max_running=4)
    free, strict = (simulate(each, traffic(1.0, 24.0), WINDOW) for each in (deployment(max_running=4), bounded))
    assert free.classes[1].refused == 0
    assert strict.classes[1].refused > 10
    assert strict.classes[0].refused == 0
    assert strict.classes[1].ttft_p99_ms < free.classes[1].ttft_p99_ms


def test_prompts_that_never_fit_are_refused() -> None:
    played = simulate(deployment(max_model_len=100, num_blocks=64), traffic(0.0, 4.0), WINDOW)
    assert played.too_long > 0
    assert played.too_long == played.classes[-1].refused


def question(**changes: object) -> Question:
    fields: dict[str, object] = {
        "deployment": deployment(max_running=4),
        "traffic": traffic(8.0, 36.0),
        "targets": TARGETS,
        "window_requests": 100,
        "loads": (0.5, 2.0),
    }
    return Question(**fields | changes)  # type: ignore[arg-type]


def test_a_plan_meets_the_targets_with_the_fewest_replicas() -> None:
    with Runs(1) as runs:
        plan = make_plan(question(device_price=2.0, token_prices=TokenPrices(1.0, 0.5, 2.0)), runs)
        assert plan.replicas > 1
        fewer = make_plan(question(replicas=plan.replicas - 1), runs)

    assert not breaches(plan.busiest, TARGETS)
    assert breaches(fewer.busiest, TARGETS)
    assert plan.day.requests == pytest.approx(44 * 3600)
    assert plan.costs is not None
    assert plan.costs.day == plan.replicas * 2.0
    millions = plan.day.answer_tokens / 1e6
    assert plan.costs.million_answer == pytest.approx(plan.costs.day / millions)
    assert 0 < plan.costs.least_million_answer < plan.costs.million_answer
    day = plan.day
    revenue = (day.prompt_tokens - day.cached_tokens + 0.5 * day.cached_tokens + 2 * day.answer_tokens) / 1e6
    assert plan.costs.revenue == pytest.approx(revenue)
    assert plan.costs.margin == pytest.approx(revenue - plan.costs.day)
    assert [step.factor for step in plan.loads] == [0.5, 1.0, 2.0]


def test_equal_questions_have_equal_plans_in_any_number_of_processes() -> None:
    asked = question(replicas=3, seed=5)
    with Runs(1) as one, Runs(2) as two:
        first, again, parallel = make_plan(asked, one), make_plan(asked, one), make_plan(asked, two)
    assert first == again == parallel
    with Runs(1) as runs:
        assert make_plan(replace(asked, seed=6), runs).busiest != first.busiest


def test_a_plan_outside_the_fitted_range_is_refused() -> None:
    narrow = MeasuredRange(StepFeatures(10**6, 10**9, 2, 10**6))
    fitted = deployment(times=linear_times(fitted=narrow))
    with Runs(1) as runs, pytest.raises(OutsideFit, match=r"decode_rows up to \d+ in .* fitted up to 2"):
        make_plan(question(deployment=fitted, replicas=2), runs)


def test_a_load_outside_the_fitted_range_is_no_knee() -> None:
    """Only the larger loads are outside."""
    fitted = deployment(times=linear_times(fitted=MeasuredRange(StepFeatures(10**6, 10**9, 7, 10**6))))
    with Runs(1) as runs:
        plan = make_plan(question(deployment=fitted, traffic=traffic(2.0, 4.0), replicas=1, loads=(8.0,)), runs)
    assert not plan.loads[0].outcome.outside
    assert [each.feature for each in plan.loads[1].outcome.outside] == ["decode_rows"]


def test_traffic_without_requests_is_refused() -> None:
    with Runs(1) as runs, pytest.raises(ValueError, match="no requests"):
        make_plan(question(traffic=traffic(0.0, 0.0)), runs)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=120), st.sampled_from((0.5, 0.99)))
def test_a_percentile_is_the_smallest_value_that_its_share_does_not_exceed(values: list[int], share: float) -> None:
    found = percentile(values, share)
    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_just_meets_its_target_is_not_ended_early(seed: int) -> None:
    """With sessions, many of whose turns in the window are of sessions that began before it."""
    stream = Stream(
        tenant="a",
        service_class="premium",
        rates=(60.0,),
        prompt=Lengths(40),
        answer=Lengths(4),
        turns=6.0,
        think_s=3.0,
    )
    sessions, window = DescribedTraffic((stream,)), Window(0, 6.0, 10.0)
    [of_class] = simulate(deployment(), sessions, window, seed).classes
    assert of_class.requests > 300
    assert of_class.ttft_p99_ms is not None
    met, missed = (
        simulate(deployment(), sessions, window, seed, {"premium": Target(bound)})
        for bound in (of_class.ttft_p99_ms, of_class.ttft_p50_ms)
    )
    assert not met.stopped
    assert missed.stopped


def test_a_day_of_a_trace_has_the_tokens_of_its_requests() -> None:
    """Of which most come in one burst: a window of an hour is its busiest part."""
    times = [10.0 * number for number in range(300)] + [3000.0 + number / 4 for number in range(300)]
    rows = tuple(TraceRow(at_s, "a", "premium", 50, 8) for at_s in sorted(times))
    with Runs(1) as runs:
        plan = make_plan(question(traffic=TraceTraffic(rows), replicas=1, loads=()), runs)
    assert plan.day.requests == pytest.approx(600 * 3600 / 3074.75, rel=1e-3)
    assert plan.day.answer_tokens == pytest.approx(8 * plan.day.requests)
    assert plan.day.prompt_tokens == pytest.approx(50 * plan.day.requests)
    assert plan.day.busy_s < 3600


def test_groups_of_layers_share_the_blocks() -> None:
    """Each has blocks of its own for a sequence, those with a window for no more than that."""
    lengths = MeanLengths(400.0, 0.0, 16.0)
    plain, doubled, windowed = (
        deployment(num_blocks=200, max_running=64, windows=windows) for windows in ((), (4096,), (64,))
    )
    running = [replica_rate(each, lengths)[1] for each in (plain, doubled, windowed)]
    assert running[1] == running[0] // 2
    assert running[0] > running[2] > running[1]
