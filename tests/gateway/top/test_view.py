"""Figures out of the program's own metrics: a name that changes there is missed here."""

from dataclasses import fields

import pytest

from gateway.tools.top.history import OF_LATE_S, History
from gateway.tools.top.sample import Between, Sample
from gateway.tools.top.view import View, view_of
from tests.gateway.top.served import Served, busy, parsed


def test_a_model() -> None:
    view = busy()
    large, small = view.models
    assert (large.name, small.name) == ("large", "small")
    assert (large.running, large.waiting, large.paused) == (3, 2, 1)
    assert (large.blocks, large.free) == (100, 70)
    assert (large.steps_per_s, large.preempted_per_s) == (25, 1)
    assert (large.input_per_s, large.output_per_s) == (40, 20)
    assert large.found == 0.25
    (drafts,) = large.drafts
    assert (drafts.proposer, drafts.depth, drafts.right) == ("ngram", 2.5, 0.65)
    assert (small.found, small.drafts, small.input_per_s) == (None, (), None)


def test_a_class() -> None:
    premium, standard = busy().models[0].classes
    assert (premium.name, premium.running, premium.waiting, premium.queue_age_s) == ("premium", 3, 2, 1.5)
    assert (premium.held, premium.reserved, premium.cached) == (30, 10, 5)
    assert (premium.requests_per_s, premium.input_per_s, premium.output_per_s) == (2, 40, 20)
    assert (premium.preempted_per_s, premium.shed_per_s) == (1, 3)
    assert premium.ttft.n == premium.tpot.n == 4
    assert premium.ttft.p50 is not None
    assert premium.gap.p99.value == pytest.approx(0.025, rel=0.1)
    assert premium.tpot.p95 is not None
    assert 0.04 < premium.ttft.p50.value <= 0.06
    assert premium.tpot.p95.value == pytest.approx(0.025, rel=0.1)
    assert standard.requests_per_s is None  # no request yet
    assert (standard.ttft.n, standard.ttft.p50) == (0, None)


def test_a_server_that_says_little_is_shown_as_that() -> None:
    empty = Sample.parse("", 1.0)
    view = view_of(Between(Sample.parse("", 0.0), empty), Between(Sample.parse("", 0.0), empty))
    assert (view.version, view.models) == ("", ())
    assert {
        getattr(view, each.name) for each in fields(View) if each.name not in ("version", "models", "outcomes_per_s")
    } == {None}


class TestHistory:
    def test_two_samples_make_a_view(self) -> None:
        history, served = History(), Served()
        history.answered(parsed(served, 0.0))
        assert history.view() is None
        history.answered(parsed(served, 1.0))
        assert history.view() is not None

    def test_latencies_are_of_late_and_rates_of_the_last_interval(self) -> None:
        history, served = History(), Served()
        for at_s in range(100):
            history.answered(parsed(served, float(at_s)))
            served.answer("large", "premium")
        history.answered(parsed(served, 100.0))
        view = history.view()
        premium = view.models[0].classes[0]
        assert (premium.requests_per_s, premium.ttft.n) == (1, OF_LATE_S)

    def test_after_an_outage_everything_begins_anew(self) -> None:
        history, served = History(), Served()
        history.answered(parsed(served, 0.0))
        history.failed("cannot connect", 1.0)
        history.failed("silent", 2.0)
        assert (history.trouble, history.trouble_since_s) == ("silent", 1.0)
        served.answer("large", "premium")
        history.answered(parsed(served, 3.0))
        assert (history.trouble, history.view()) == ("", None)
