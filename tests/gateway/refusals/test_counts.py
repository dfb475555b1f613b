"""However many requests are refused, and for whatever names: all are counted, in few rows."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.refusals import counts as module
from gateway.refusals.counts import MAX_ROWS_PER_TENANT, OTHER, RefusalCounts
from tests.support.refusal_samples import TODAY_MS, a_refusal

AT_MS = TODAY_MS
LIMITED = a_refusal()


def test_equal_refusals_of_a_minute_are_one_row_with_the_last_request() -> None:
    counts = RefusalCounts()
    for second in range(60):
        assert counts.add(a_refusal(at_ms=AT_MS + second * 1000, request_id=f"req_{second}"))
    [row] = counts.take("journal-1")
    assert (row.requests, row.request_id) == (60, "req_59")
    assert row.occurred_at.timestamp() * 1000 == AT_MS + 59_000
    assert (row.tenant_id, row.key_id, row.tier, row.model) == ("t1", "key_1", "standard", "large")
    assert (row.outcome, row.status, row.code) == ("turned_away", 429, "rate_limit_exceeded")
    assert (row.endpoint, row.limit_name) == ("/v1/chat/completions", "tenant.requests_per_minute")
    assert row.source == "journal-1"
    assert counts.take("journal-1") == []


@pytest.mark.parametrize(
    "changed",
    [
        {"at_ms": AT_MS + 60_000},
        {"tenant_id": "t2"},
        {"key_id": "key_2"},
        {"model": "small"},
        {"endpoint": "/v1/completions"},
        {"status": 403},
        {"code": "overloaded"},
        {"limit_name": "key.requests_per_minute"},
    ],
)
def test_refusals_that_differ_are_rows_of_their_own(changed: dict) -> None:
    counts = RefusalCounts()
    counts.add(LIMITED)
    counts.add(a_refusal(**changed))
    rows = counts.take("a")
    assert [row.requests for row in rows] == [1, 1]
    assert rows[0].refusal_id != rows[1].refusal_id


def test_a_tenant_that_invents_names_has_few_rows_and_all_its_refusals_by_code() -> None:
    counts = RefusalCounts()
    for number in range(5_000):
        code = "model_not_found" if number % 2 else "rate_limit_exceeded"
        counts.add(a_refusal(model=f"model-{number}", code=code))
    counts.add(a_refusal(tenant_id="t2"))
    counts.check()
    rows = counts.take("a")
    assert len(rows) == MAX_ROWS_PER_TENANT + 2 + 1
    by_code = Counter[tuple[str, str]]()
    for row in rows:
        by_code[row.tenant_id, row.code] += row.requests
    assert by_code == {
        ("t1", "model_not_found"): 2500,
        ("t1", "rate_limit_exceeded"): 2500,
        ("t2", LIMITED.kind.code): 1,
    }
    assert [row.model for row in rows if row.tenant_id == "t2"] == ["large"], "it does not pay for the other's rows"
    assert {row.key_id for row in rows if row.model == OTHER} == {OTHER}


def test_a_kind_that_has_a_row_keeps_it_when_the_tenant_has_its_most() -> None:
    counts = RefusalCounts()
    for number in range(2 * MAX_ROWS_PER_TENANT):
        counts.add(a_refusal(model=f"model-{number}"))
    counts.add(a_refusal(model="model-0"))
    assert [row.requests for row in counts.take("a") if row.model == "model-0"] == [2]


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=150))
def test_no_bound_is_passed_and_each_refusal_is_counted_or_dropped(drawn: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name, bound in (("MAX_ROWS_PER_TENANT", 3), ("MAX_ROWS", 8), ("MAX_ALL_ROWS", 12)):
            patched.setattr(module, name, bound)
        counts, counted = RefusalCounts(), 0
        for tenant, model, code in drawn:
            counted += counts.add(a_refusal(tenant_id=f"t{tenant}", model=f"m{model}", code=f"c{code}", request_id="x"))
            counts.check()
        rows = counts.take("a")
        assert sum(row.requests for row in rows) == counted
        assert len(drawn) == counted or len(rows) == 12
