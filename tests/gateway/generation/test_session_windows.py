"""Sessions that outgrow their window: which turns go, what stands in for them, and who pays."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from starlette.testclient import TestClient

from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.metering.event import Ending
from gateway.routing.question import Question
from gateway.sessions.policy import SessionWindow
from gateway.tenancy.limits import ScopeKind
from gateway.tenancy.policies import Preference, SessionPolicy, TenantPolicies
from tests.support.error_envelope import error_of
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import AUTHORISED, CHAT, KEY, limit, until
from tests.support.services import price_book, services_with
from tests.support.session_turns import body, contents, shown, system, user
from tests.support.usage_events import events_of

WINDOW = 1024
PRICES = {
    "big": ("1", "0.5", "4"),
    "small": ("0.1", "0.05", "0.4"),
    "short": ("0.1", "0.05", "0.4"),
    "alone": ("1", "0.5", "4"),
}
SUMMARY = "They met in Rome."


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine({"big": WINDOW, "small": 2 * WINDOW, "short": WINDOW // 4, "alone": WINDOW})
    engine.replies = {"big": "from big", "small": SUMMARY, "short": "from short", "alone": "alone"}
    return engine


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path,
        models=dict.fromkeys(PRICES, tmp_path),
        small_models={"big": "small"},
        session_max_bytes=16 * 1024,
    )


@pytest.fixture
def app(engine, authenticator, metrics, limiter, journal, sessions, settings):
    given = {"metrics": metrics, "limiter": limiter, "journal": journal, "sessions": sessions}
    services = services_with(settings.data_dir, engine, authenticator, prices=price_book(PRICES), **given)
    return create_app(settings, services)


@pytest.fixture
def want(authenticator):
    def want(window: SessionWindow) -> None:
        authenticator.principals[KEY] = replace(
            authenticator.principals[KEY], policies=TenantPolicies(session=SessionPolicy(window))
        )

    return want


def ask(client: httpx.Client, text: str, model: str = "big", **fields):
    response = client.post(CHAT, json=body(user(text), model=model, **fields))
    assert response.status_code == 200, response.text
    return response


def dropped(response) -> int:
    return int(response.headers["x-turnpike-session-dropped-turns"])


def fill(client: httpx.Client, model: str = "big") -> tuple[int, httpx.Response]:
    """Turns of a hundred characters, until some go; the number of the last, and its response."""
    for number in range(40):
        response = ask(client, f"{number:-<100}", model)
        if dropped(response):
            return number, response
    raise AssertionError("no turn goes")


def test_the_oldest_turns_go_whole_and_the_system_prompt_stays(client, engine):
    client.post(CHAT, json=body(system("be brief"), user("first"), model="big"))
    number, response = fill(client)
    assert response.headers["x-turnpike-session-window"] == "sliding"
    text = shown(engine)
    assert text.startswith("<system>be brief\n<user>")
    assert text.endswith(f"<user>{number:-<100}\n<assistant>")
    assert text.count("<user>") == text.count("<assistant>")
    turns = int(response.headers["x-turnpike-session-turns"])
    assert text.count("<user>") == turns + 1
    assert turns + dropped(response) == number + 1
    session = client.get("/v1/sessions/trip").json()
    assert (session["turns"], session["dropped_turns"]) == (turns + 1, dropped(response))
    assert session["messages"][0] == system("be brief")


def test_a_step_leaves_room_so_that_the_front_stays(client, engine):
    """Most prompts begin with all of the one before: the window has room for six turns, and a step leaves three."""
    number, _ = fill(client)
    steps = 0
    for later in range(number + 1, number + 19):
        before = shown(engine)
        ask(client, f"{later:-<100}")
        steps += not shown(engine).startswith(before)
    assert 1 <= steps <= 18 // 3


def test_room_is_kept_for_the_answer_that_is_asked_for(client, engine):
    for number in range(4):
        ask(client, f"{number:-<100}")
    ask(client, "now much", max_tokens=700)
    call = engine.calls[-1]
    assert (call.params.max_tokens, len(call.prompt) <= WINDOW - 700) == (700, True)


def test_what_never_fits_is_refused_and_changes_nothing(client, engine):
    ask(client, "first")
    refused = client.post(CHAT, json=body(user("x" * WINDOW), model="big"))
    assert error_of(refused, 400)["code"] == "context_length_exceeded"
    refused = client.post(CHAT, json=body(user("x"), model="big", max_tokens=WINDOW))
    assert error_of(refused, 400)["param"] == "max_tokens"
    assert contents(client) == ["first", "from big"]


def test_a_failed_turn_drops_nothing(client, engine):
    for number in range(20):
        before = contents(client) if number else []
        engine.failing = {"big"}
        assert client.post(CHAT, json=body(user(f"{number:-<100}"), model="big")).status_code == 500
        engine.failing = set()
        assert number == 0 or contents(client) == before
        if dropped(ask(client, f"{number:-<100}")):
            return
    raise AssertionError("no turn goes")


def test_a_session_is_bounded_in_bytes(client, settings):
    """A window of its own: what a template does not show takes room as well."""
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":"' + "x" * 1500 + '"}'}}]
    for number in range(20):
        messages = [user(f"{number}"), {"role": "assistant", "content": None, "tool_calls": calls}, user("and?")]
        response = client.post(CHAT, json=body(*messages, model="big"))
        if dropped(response):
            break
    assert response.headers["x-turnpike-session-window"] == "sliding"
    assert len(client.get("/v1/sessions/trip").content) < settings.session_max_bytes * 0.6


def test_messages_larger_than_a_session_are_refused(client, engine):
    ask(client, "first")
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":"' + "x" * 17000 + '"}'}}]
    messages = [user("a"), {"role": "assistant", "content": None, "tool_calls": calls}, user("and?")]
    refused = error_of(client.post(CHAT, json=body(*messages, model="big")), 400)
    assert (refused["param"], refused["code"]) == ("messages", "session_too_large")
    assert contents(client) == ["first", "from big"]


def test_another_models_window_is_another_ones_tokens(client, engine):
    for number in range(4):
        ask(client, f"{number:-<60}")
    response = ask(client, "short now", model="short")
    assert dropped(response) > 0
    assert len(engine.calls[-1].prompt) < WINDOW // 4


def test_a_summary_stands_for_the_turns_that_went(client, engine, want, journal):
    want(SessionWindow.SUMMARY)
    number, response = fill(client)
    assert response.headers["x-turnpike-session-window"] == "summary"
    writing, answering = engine.calls[-2:]
    asked = bytes(writing.prompt[1:]).decode()
    assert (writing.model, writing.params.temperature, answering.model) == ("small", 0.0, "big")
    assert f"user: {0:-<100}\n\nassistant: from big" in asked
    assert f"{number:-<100}" not in asked
    text = shown(engine)
    assert text.startswith("<system>")
    assert SUMMARY in text.partition("\n<")[0]
    assert f"{0:-<100}" not in text
    session = client.get("/v1/sessions/trip").json()
    assert (session["summary"], session["dropped_turns"]) == (SUMMARY, dropped(response))
    assert session["messages"][0]["role"] == "user"


def test_a_summary_is_a_request_that_is_billed(client, engine, want, journal):
    want(SessionWindow.SUMMARY)
    _, response = fill(client)
    *_, summary, answer = events_of(journal)
    assert summary.request_id == response.headers["x-turnpike-session-summary-id"]
    assert summary.request_id.startswith("sessionsum-")
    assert (summary.served_model, summary.tenant_id, summary.key_id) == ("small", "tenant-1", "pubid1")
    assert (summary.route_reason, answer.route_reason) == ("session_summary", "explicit")
    assert (summary.completion_tokens, summary.finish_reason) == (len(SUMMARY), Ending.STOP)
    fresh = summary.prompt_tokens - summary.cached_tokens
    assert summary.cost_nanodollars == fresh * 100 + summary.cached_tokens * 50 + summary.completion_tokens * 400
    assert answer.request_id == response.json()["id"]


def test_the_next_summary_goes_on_with_the_former(client, engine, want):
    want(SessionWindow.SUMMARY)
    fill(client)
    engine.replies["small"] = "They parted."
    while client.get("/v1/sessions/trip").json()["summary"] == SUMMARY:
        ask(client, "-" * 100)
    [writing] = [call for call in engine.calls if call.model == "small"][1:]
    assert f"Summary of what came before: {SUMMARY}" in bytes(writing.prompt[1:]).decode()
    assert client.get("/v1/sessions/trip").json()["summary"] == "They parted."


def test_without_a_small_model_the_serving_one_sums_up(client, engine, want):
    want(SessionWindow.SUMMARY)
    fill(client, model="alone")
    assert {call.model for call in engine.calls} == {"alone"}
    assert client.get("/v1/sessions/trip").json()["summary"] == "alone"


def test_a_key_that_may_not_use_the_small_model_has_the_serving_one_sum_up(client, engine, want, authenticator):
    want(SessionWindow.SUMMARY)
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], models=frozenset({"big"}))
    fill(client)
    assert {call.model for call in engine.calls} == {"big"}


def fails(engine, limiter, authenticator) -> None:
    engine.failing = {"small"}


def writes_nothing(engine, limiter, authenticator) -> None:
    engine.replies["small"] = "  "


def is_busy(engine, limiter, authenticator) -> None:
    engine.waits_ms["small"] = 10**6


def is_beyond_the_limits(engine, limiter, authenticator) -> None:
    limit(authenticator, ScopeKind.MODEL, "small", tokens_per_day=10)


@pytest.mark.parametrize("trouble", [fails, writes_nothing, is_busy, is_beyond_the_limits])
def test_where_there_is_no_summary_the_turns_go_all_the_same(client, engine, want, limiter, authenticator, trouble):
    want(SessionWindow.SUMMARY)
    trouble(engine, limiter, authenticator)
    _, response = fill(client)
    assert response.headers["x-turnpike-session-window"] == "summary_failed"
    assert "x-turnpike-session-summary-id" not in response.headers
    session = client.get("/v1/sessions/trip").json()
    assert (session["summary"], session["dropped_turns"] > 0) == (None, True)


def test_a_summary_that_takes_too_long_is_done_without(client, engine, want, journal, monkeypatch):
    want(SessionWindow.SUMMARY)
    monkeypatch.setattr("gateway.generation.session_summary.SUMMARY_DEADLINE_S", 0.05)
    for number in range(6):
        ask(client, f"{number:-<100}")
    engine.pace_s, engine.replies["small"] = 0.02, "s" * 100
    assert ask(client, "-" * 100).headers["x-turnpike-session-window"] == "summary_failed"
    *_, summary, answer = events_of(journal)
    assert (summary.finish_reason, summary.cost_nanodollars) == (Ending.ERROR, 0)
    assert answer.finish_reason is Ending.STOP


def test_a_client_that_leaves_while_a_summary_is_written_leaves_all_as_it_was(server, engine, want, journal):
    want(SessionWindow.SUMMARY)
    with httpx.Client(base_url=server.url, headers=AUTHORISED, timeout=30) as client:
        for number in range(6):
            ask(client, f"{number:-<100}")
        before, calls = contents(client), len(engine.calls)
        engine.pace_s = 0.05
        with pytest.raises(httpx.ReadTimeout):
            client.post(CHAT, json=body(user("-" * 100), model="big"), timeout=0.3)
        until(lambda: len(events_of(journal)) == calls + 1)
        assert contents(client) == before
    assert [call.model for call in engine.calls[calls:]] == ["small"]
    event = events_of(journal)[-1]
    assert (event.finish_reason, event.cost_nanodollars) == (Ending.CANCELLED, 0)
    assert event.undelivered_tokens > 0


def test_the_settings_apply_to_tenants_without_their_own(engine, authenticator, limiter, journal, sessions, settings):
    settings = settings.model_copy(update={"session_window": SessionWindow.SUMMARY})
    given = {"limiter": limiter, "journal": journal, "sessions": sessions, "prices": price_book(PRICES)}
    app = create_app(settings, services_with(settings.data_dir, engine, authenticator, **given))
    with TestClient(app, headers=AUTHORISED) as client:
        assert fill(client)[1].headers["x-turnpike-session-window"] == "summary"


class EverythingIsEasy:
    """A score that sends all to the small model."""

    thresholds: ClassVar = dict.fromkeys(Preference, 0.5)

    def of(self, question: Question) -> float:
        return 0.0


def test_a_routed_session_moves_to_the_roomier_model_before_a_turn_goes(
    engine, authenticator, limiter, journal, sessions, settings, monkeypatch
):
    monkeypatch.setattr("gateway.generation.route_stage.ComplexityScore.load", lambda path: EverythingIsEasy())
    settings = settings.model_copy(update={"small_models": {"big": "short"}})
    given = {"limiter": limiter, "journal": journal, "sessions": sessions, "prices": price_book(PRICES)}
    app = create_app(settings, services_with(settings.data_dir, engine, authenticator, **given))
    with TestClient(app, headers=AUTHORISED) as client:
        served = [ask(client, "easy " * 8, model="auto") for _ in range(6)]
    assert [dropped(each) for each in served] == [0] * 6
    models = [each.json()["model"] for each in served]
    assert models == sorted(models, reverse=True)
    assert set(models) == {"short", "big"}
    assert served[-1].headers["x-turnpike-route-reason"] == "context"
