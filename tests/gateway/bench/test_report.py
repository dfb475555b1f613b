import pytest

from gateway.tools.bench.compare import compare
from gateway.tools.bench.outcome import FINISHED, UNFINISHED, Outcome
from gateway.tools.bench.report import Objective, Report, summarise
from gateway.tools.bench.text import describe


def outcome(
    due_s: float = 0.0, *, first_s: float = 0.1, every_s: float = 0.01, pieces: int = 11, **more: object
) -> Outcome:
    """An answer whose pieces come `every_s`, from `first_s` after it was due on."""
    times = tuple(due_s + first_s + n * every_s for n in range(pieces))
    fields: dict[str, object] = {"sent_s": due_s, "ending": FINISHED, "ended_s": times[-1] if times else due_s}
    return Outcome(**{"due_s": due_s, "pieces_s": times} | fields | more)  # type: ignore[arg-type]


def summary(outcomes: list[Outcome], objective: Objective | None = None, *, scheduled: bool = True) -> Report:
    return summarise("load", outcomes, (10.0, 20.0), objective or Objective(), scheduled=scheduled)


def failed(ending: str, due_s: float = 12.0) -> Outcome:
    return outcome(due_s, pieces=0, ending=ending)


class TestOutcome:
    def test_latencies_count_from_when_it_was_due(self) -> None:
        late = outcome(5.0, sent_s=7.0)
        assert late.ttft_s == pytest.approx(0.1)
        assert late.late_s == pytest.approx(2.0)
        assert late.total_s == pytest.approx(0.2)

    def test_time_per_token_is_by_the_servers_count(self) -> None:
        assert outcome().tpot_s == pytest.approx(0.01)
        assert outcome(usage_tokens=21).tpot_s == pytest.approx(0.005)

    @pytest.mark.parametrize("one", [outcome(pieces=0), outcome(pieces=1, usage_tokens=9), outcome(usage_tokens=1)])
    def test_there_is_none_where_it_cannot_be_known(self, one: Outcome) -> None:
        assert one.tpot_s is None


class TestObjective:
    @pytest.mark.parametrize(
        ("objective", "met"),
        [
            (Objective(ttft_ms=101), True),
            (Objective(ttft_ms=99), False),
            (Objective(tpot_ms=11), True),
            (Objective(tpot_ms=9), False),
            (Objective(101, 11), True),
            (Objective(101, 9), False),
            (Objective(99, 11), False),
        ],
    )
    def test_both_bounds_hold_it(self, objective: Objective, met: bool) -> None:
        assert objective.met(outcome()) is met

    def test_errors_never_meet_it(self) -> None:
        assert not Objective(ttft_ms=1e9).met(failed("http 500"))
        assert not Objective(ttft_ms=1e9).met(outcome(ending="stream cut off"))


class TestSummary:
    def test_only_what_was_due_in_the_measured_time_counts(self) -> None:
        report = summary([outcome(9.9), outcome(10.0), outcome(19.95), outcome(20.0)])
        assert (report.requests, report.finished) == (2, 2)

    def test_throughput_is_what_came_and_ended_in_it(self) -> None:
        """One that was due before brings 6 of its 11 tokens in time, one that ends after it 5 of 11."""
        report = summary([outcome(9.85, usage_tokens=22), outcome(19.85)])
        assert report.requests_per_s == pytest.approx(0.1)
        assert report.output_tokens_per_s == pytest.approx((22 * 6 / 11 + 5) / 10)

    def test_errors_by_kind_and_refusals_apart(self) -> None:
        endings = ["http 500 boom", "timeout", "timeout", "http 429 overloaded", "http 429", UNFINISHED]
        report = summary([outcome(11.0), *map(failed, endings)])
        assert report.errors == {"http 500 boom": 1, "timeout": 2}
        assert (report.requests, report.finished, report.refused, report.unfinished) == (7, 1, 2, 1)

    def test_goodput_is_of_all_that_were_asked_and_not_broken_off(self) -> None:
        outcomes = [
            outcome(11.0),
            outcome(12.0, first_s=9.0),
            failed("http 429"),
            failed("timeout"),
            failed(UNFINISHED),
        ]
        report = summary(outcomes, Objective(ttft_ms=500))
        assert report.goodput_per_s == pytest.approx(0.1)
        assert report.attainment == pytest.approx(0.25)
        assert summary(outcomes).goodput_per_s is None

    def test_what_tokens_were_counted_by(self) -> None:
        assert summary([outcome(11.0, usage_tokens=3)]).tokens_by == "usage"
        assert summary([outcome(11.0)]).tokens_by == "chunks"
        assert summary([outcome(11.0), outcome(11.0, usage_tokens=3)]).tokens_by == "both"

    def test_a_generator_that_was_late(self) -> None:
        on_time = [outcome(11.0, sent_s=11.009)] * 99
        assert not summary([*on_time, outcome(11.0, sent_s=11.02)]).behind
        behind = summary([*on_time, *[outcome(11.0, sent_s=11.02)] * 2])
        assert behind.behind
        assert "THE GENERATOR WAS LATE" in "\n".join(describe(behind))
        closed = summary([*on_time, *[outcome(11.0, sent_s=11.02)] * 2], scheduled=False)
        assert (closed.behind, closed.late_ms) == (False, None)

    def test_of_nothing(self) -> None:
        report = summary([], Objective(ttft_ms=1))
        assert (report.requests, report.attainment, report.goodput_per_s) == (0, None, 0.0)
        assert describe(report)


def test_a_p99_is_printed_from_a_thousand_on() -> None:
    def row(n: int) -> list[str]:
        lines = list(describe(summary([outcome(11.0, usage_tokens=11)] * n)))
        return next(line for line in lines if "first token" in line).split()[2:]

    assert row(999) == ["100.0", "100.0", "100.0", "-", "100.0", "999"]
    assert row(1000) == ["100.0", "100.0", "100.0", "100.0", "100.0", "1000"]
    assert row(19) == ["100.0", "-", "-", "-", "100.0", "19"]


def test_two_runs_side_by_side() -> None:
    before = {"a": summary([outcome(11.0)] * 20), "b": summary([])}
    after = {"a": summary([outcome(11.0, first_s=0.2)] * 20), "c": summary([])}
    rows = {name: (one, other) for load, name, one, other in compare(before, after) if load == "a"}
    assert rows["first token p50, ms"] == (pytest.approx(100), pytest.approx(200))
    assert "first token p99, ms" not in rows
    assert {load for load, *_ in compare(before, after)} == {"a"}
