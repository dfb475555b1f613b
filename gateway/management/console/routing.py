"""Routing: what it chose and saved, what each tenant wants of it, and what it would make of a question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.http.errors import APIError, invalid
from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import (
    SPANS,
    reading,
    shown_again,
    span_of,
    span_options,
    typed_fields,
    window_query,
)
from gateway.management.console.names import pickers_of, resolved
from gateway.management.console.routing_figures import Savings, routing_figures
from gateway.management.console.screens import Page, PageRequest, Screens
from gateway.management.operations.roles import READERS
from gateway.routing.question import Question
from gateway.routing.score import Expectation
from gateway.tenancy.policies import Preference

DEFAULT_SPAN = "day"
EVERY_S = 30
MAX_QUESTION_CHARS = 2000
TENANTS_A_PAGE = 25
"""Each one's policy is a read of its own."""

_OFFERED = [span for span in SPANS if span.length.days <= 30]
_ASKED = ("window", "tenant_id")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The model of a question under a preference: the large one for scores from `threshold` on."""

    preference: str
    threshold: float
    is_large: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    expected: Expectation
    verdicts: tuple[Verdict, ...]


SCREENS = Screens()


@SCREENS.get("/routing", "routing", "Routing", READERS, section="Observe", tenants=True)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    question = page_request.query.get("question")
    typed = typed_fields(page_request.query, *_ASKED)
    values: dict[str, Any] = {
        "typed": typed,
        "spans": span_options(_OFFERED),
        "default_span": DEFAULT_SPAN,
        "every_s": 0 if page_request.query.get("cursor") else EVERY_S,
        "everyone": page_request.tenant is None,
        "pairs": sorted(context.names.small_of.items()),
        "question": question,
        "most_chars": MAX_QUESTION_CHARS,
        "judgement": None,
        "error": None,
        "figures": None,
        "pickers": await pickers_of(context, page_request, page_request.query.given("tenant_id")),
        "own": None if page_request.tenant is None else page_request.tenant.policies.routing,
        **await _policies(context, page_request),
    }
    try:
        if question:
            values["judgement"] = judged(context, question)
        span = span_of(page_request.query, DEFAULT_SPAN)
        window = window_query(page_request.query, context.now(), DEFAULT_SPAN)
        asked = {
            **window,
            "bucket": span.grain.value,
            **await resolved(context, page_request, page_request.query.given("tenant_id")),
        }
        answer = await reading(page_request)("readRouteShares", query=asked)
    except APIError as error:
        if not shown_again(error):
            raise
        return Page("routing.html", values | {"error": error}, 400)
    return Page(
        "routing.html",
        values | {"answer": answer, "figures": routing_figures(answer, Savings(context.names, context.prices))},
    )


def judged(context: ConsoleContext, question: str) -> Judgement:
    """Score a question without a conversation.

    Raises:
        APIError: 400 naming `question`, it is too long.
    """
    if len(question) > MAX_QUESTION_CHARS:
        raise invalid("question", f"A question here has at most {MAX_QUESTION_CHARS} characters.")
    expected = context.score.expect(Question(text=question))
    thresholds = context.score.thresholds
    return Judgement(
        expected,
        tuple(Verdict(each.value, thresholds[each], expected.score >= thresholds[each]) for each in Preference),
    )


async def _policies(context: ConsoleContext, page_request: PageRequest) -> dict[str, Any]:
    """Of a page of tenants, by name; of none for a tenant, who has its own."""
    if page_request.tenant is not None:
        return {"policies": (), "further": None}
    query = {"limit": str(TENANTS_A_PAGE), **page_request.query.given("cursor")}
    listed = await page_request.actions.read("listTenants", query=query)
    tenants: Sequence[Any] = listed["data"]
    policies = [
        (tenant, await page_request.actions.read("readRoutingPolicy", {"tenant_id": tenant["id"]}))
        for tenant in tenants
    ]
    further = next_page("/routing", page_request.query.given(*_ASKED), listed["next_cursor"])
    return {"policies": policies, "further": further}
