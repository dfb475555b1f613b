"""Shares are counted, savings are what the large model would have cost more, and the box says what the score says."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from gateway.billing.errors import NoPrice
from gateway.billing.prices import Price
from gateway.management.console.routing_figures import Savings, routing_figures
from gateway.routing.names import ModelNames
from gateway.routing.question import Question
from gateway.routing.score import ComplexityScore
from gateway.tenancy.policies import Preference
from tests.console.events import ago_ms, of_tenant, used
from tests.console.house import ACME, GLOBEX, House
from tests.console.html import rows, stat

LARGE, SMALL = "org/tiny-2", "tiny"


def routed(house: House, who: str, sequence: int, at_ms: int, **fields: Any) -> dict[str, Any]:
    by_small = {"requested_model": "auto", "routed_model": SMALL, "served_model": SMALL}
    return of_tenant(house, who, sequence, at_ms, **(by_small | fields))


async def test_shares_add_up(console: House) -> None:
    large = {"routed_model": LARGE, "served_model": LARGE, "route_reason": "complexity_large"}
    now_ms = ago_ms()
    await used(
        console,
        routed(console, ACME, 1, now_ms),
        routed(console, ACME, 2, now_ms),
        routed(console, GLOBEX, 3, now_ms, **large),
    )
    page = await console.page("/routing", "viewer")
    assert stat(page, "Requests") == "3"
    table = {row[0]: row for row in rows(page, "By model and reason")}
    assert table[SMALL][1:5] == ["complexity_small", "2", "66.7 %", "220"]
    assert table[LARGE][2:4] == ["1", "33.3 %"]
    mine = await console.page(f"/routing?tenant_id={console.tenant[ACME].id}", GLOBEX)
    assert stat(mine, "Requests") == "1", "a tenant sees its own whatever it asks"
    assert ACME not in mine.replace(console.tenant[ACME].id, "")


def share(requested: str, routed: str, served: str | None = None, **more: Any) -> dict[str, Any]:
    plain = {
        "start": "2026-03-01T10:00:00.000000Z",
        "tier_served": "standard",
        "route_reason": "complexity_small",
        "events": 1,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 10,
        "cost_nanodollars": 7,
    }
    return {**plain, "requested_model": requested, "routed_model": routed, "served_model": served or routed, **more}


class Book:
    """The large model's prices since March, which this test alone states."""

    def price_of(self, model: str, tier: str, at: datetime) -> Price:
        if model != LARGE or at < datetime(2026, 3, 1, tzinfo=UTC):
            raise NoPrice(model)
        return Price("v", 1000, 500, 4000)


WHOLE = 60 * 1000 + 40 * 500 + 10 * 4000


@pytest.mark.parametrize(
    ("found", "saved"),
    [
        (share("auto", SMALL), WHOLE - 7),
        (share(f"auto:{LARGE}", SMALL), WHOLE - 7),
        (share("auto", LARGE), 0),
        (share(LARGE, SMALL, route_reason="saturated"), WHOLE - 7),
        (share(SMALL, SMALL, route_reason="explicit"), 0),
        (share(LARGE, LARGE, route_reason="explicit"), 0),
        (share("gpt-4o", SMALL), WHOLE - 7),
        (share("auto", SMALL, cost_nanodollars=10**9), 0),
        (share("auto", SMALL, start="2026-02-01T00:00:00.000000Z"), 0),
    ],
)
def test_saved_is_what_the_large_one_would_have_cost_more(found: dict[str, Any], saved: int) -> None:
    savings = Savings(ModelNames((LARGE, SMALL), {LARGE: SMALL}, {}), Book())  # type: ignore[arg-type]
    assert savings.of(found) == saved


def test_sums_are_of_all_shares() -> None:
    savings = Savings(ModelNames((LARGE, SMALL), {LARGE: SMALL}, {}), Book())  # type: ignore[arg-type]
    data = [share("auto", SMALL), share("auto", SMALL, start="2026-03-01T11:00:00.000000Z", events=4)]
    answer = {"start": data[0]["start"], "end": "2026-03-01T12:00:00.000000Z", "bucket": "hour", "data": data}
    figures = routing_figures(answer, savings)
    assert (figures.events, figures.cost_nanodollars, figures.saved_nanodollars) == (5, 14, 2 * (WHOLE - 7))
    assert figures.all_large_nanodollars == 2 * WHOLE
    assert [row[1] for row in figures.charts[0].rows] == ["1", "4"]


async def test_policies_are_listed(console: House) -> None:
    page = await console.page("/routing")
    assert [row[0] for row in rows(page, "Routing policies")] == ["balanced", "balanced"]
    assert "Routing policies" not in await console.page("/routing", ACME)
    assert rows(await console.page("/routing", ACME), "Your policy")[0][:3] == ["balanced", "no", "no"]


@pytest.mark.parametrize(
    "question", ["What is the capital of France?", "Prove that sqrt(2) is irrational, step by step."]
)
async def test_the_box_says_what_the_score_says(console: House, question: str) -> None:
    score = ComplexityScore.load()
    expected = score.of(Question(text=question))
    page = await console.page(f"/routing?question={quote(question)}", ACME)
    assert f"{expected:.3f}" in page
    assert [row[2] for row in rows(page, "Under each preference")] == [
        "large" if expected >= score.thresholds[each] else "small" for each in Preference
    ]
    assert console.engine.calls == [], "no model is asked"


async def test_a_question_has_its_bound_and_is_shown_as_text(console: House) -> None:
    assert 'id="ask-question-note"' in await console.page(f"/routing?question={'x' * 2001}", status=400)
    assert "<script>x" not in await console.page("/routing?question=%3Cscript%3Ex")
