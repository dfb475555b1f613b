"""Routing as a client meets it: the model that answers, the headers and errors, the bill."""

import http.client
import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.metering.event import Ending
from gateway.routing.features import NUMBERS
from gateway.routing.score import ComplexityScore, Head
from gateway.tenancy.limits import ScopeKind
from gateway.tenancy.policies import Preference
from tests.support.error_envelope import error_of
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import AUTHORISED, CHAT, EASY, HARD, KEY, PREMIUM_KEY, allow, limit, until
from tests.support.services import price_book, services_with
from tests.support.usage_events import event_of, events_of

WINDOWS = {"big": 512, "small": 128, "big-2": 512}
PRICES = {"big": ("1", "0.5", "4"), "small": ("0.1", "0.05", "0.4"), "big-2": ("2", "1", "8")}
ROUTED = ("requested-model", "served-model", "route-reason")


def weights(path: Path) -> Path:
    """The word `hard` is all that matters."""
    zeros = (0.0,) * len(NUMBERS)
    thresholds = {Preference.QUALITY: 0.4, Preference.BALANCED: 0.6, Preference.ECONOMY: 1.0}
    small, large = (Head(0.0, zeros, {"hard": weight}) for weight in (-5.0, 5.0))
    score = replace(ComplexityScore.load(), small=small, large=large, thresholds=thresholds)
    path.write_text(json.dumps(score.to_json()))
    return path


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(WINDOWS)
    engine.replies = {"big": "from big", "small": "from small", "big-2": "from the second"}
    return engine


@pytest.fixture
def app(engine, authenticator, metrics, limiter, journal, tmp_path):
    checkpoints = dict.fromkeys(WINDOWS, tmp_path)
    settings = Settings(
        data_dir=tmp_path,
        models=checkpoints,
        small_models={"big": "small"},
        aliases={"gpt-4o-mini": "small"},
        model_versions={"assistant": {"big-2": 1}, "split": {"big": 1, "big-2": 1}},
        route_weights=weights(tmp_path / "weights.json"),
    )
    given = {"metrics": metrics, "limiter": limiter, "journal": journal, "prices": price_book(PRICES)}
    return create_app(settings, services_with(tmp_path, engine, authenticator, **given))


def ask(client, model: str = "auto", text: str = EASY, **fields):
    key = fields.pop("key", KEY)
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    return client.post(CHAT, json=body, headers={"authorization": f"Bearer {key}"})


def route_of(response: httpx.Response) -> tuple[str, ...]:
    assert response.status_code == 200, response.text
    return tuple(response.headers[f"x-turnpike-{name}"] for name in ROUTED)


def text_of(response: httpx.Response) -> str:
    """Of an answer, streamed or whole."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return response.json()["choices"][0]["message"]["content"]
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "served", "reason"), [(EASY, "small", "complexity_small"), (HARD, "big", "complexity_large")]
)
def test_auto_is_answered_by_the_model_that_it_takes(client, journal, text, served, reason, stream):
    response = ask(client, text=text, stream=stream)
    assert route_of(response) == ("auto", served, reason)
    assert text_of(response) == f"from {served}"
    assert f'"model":"{served}"' in response.text
    event = event_of(journal)
    assert (event.requested_model, event.routed_model, event.served_model) == ("auto", served, served)
    assert (event.route_reason, event.price_version) == (reason, f"{served}@1")


def test_the_preference_moves_the_border(client, authenticator):
    allow(authenticator, preference=Preference.QUALITY)
    assert route_of(ask(client))[1] == "big"
    allow(authenticator, preference=Preference.ECONOMY)
    assert route_of(ask(client, text=HARD))[1] == "small"


def test_completions_are_routed_too(client):
    response = client.post("/v1/completions", json={"model": "auto", "prompt": HARD})
    assert route_of(response) == ("auto", "big", "complexity_large")
    assert response.json()["model"] == "big"


@pytest.mark.parametrize("model", ["big", "small", "big-2"])
def test_a_named_model_answers(client, journal, model):
    assert route_of(ask(client, model)) == (model, model, "explicit")
    assert event_of(journal).route_reason == "explicit"


@pytest.mark.parametrize("body", [{"prompt": "ab"}, {"tokens": [97]}])
def test_tokens_are_those_of_a_model_by_any_of_its_names(client, authenticator, body):
    path = "/v1/tokenize" if "prompt" in body else "/v1/detokenize"
    allow(authenticator, aliases={"gpt-4o": "auto", "gpt-4": "assistant"})
    for name in ("big", "assistant", "split", "gpt-4"):
        assert client.post(path, json=body | {"model": name}).status_code == 200
    for name in ("auto", "gpt-4o"):
        assert error_of(client.post(path, json=body | {"model": name}), 400)["param"] == "model"
    assert error_of(client.post(path, json=body | {"model": "gone"}), 404)["code"] == "model_not_found"


def test_an_alias_and_a_versioned_name(client, authenticator, journal):
    allow(authenticator, aliases={"gpt-4o": "auto", "gpt-4": "assistant"})
    assert route_of(ask(client, "gpt-4o")) == ("gpt-4o", "small", "complexity_small")
    response = ask(client, "gpt-4")
    assert route_of(response) == ("gpt-4", "big-2", "version")
    event = events_of(journal)[-1]
    assert (event.requested_model, event.routed_model, event.served_model) == ("gpt-4", "assistant", "big-2")
    assert event.price_version == "big-2@1"


@pytest.mark.parametrize("name", ["gpt-4", "auto:small", "auto:"])
def test_a_name_that_leads_nowhere_is_404(client, name):
    error = error_of(ask(client, name), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_a_key_for_an_alias_sees_that_alone(client, authenticator):
    allow(authenticator, aliases={"gpt-4o": "auto"})
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], models=frozenset({"gpt-4o"}))
    assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["gpt-4o"]
    assert route_of(ask(client, "gpt-4o"))[1] == "small"
    assert error_of(ask(client, "auto"), 403)["code"] == "model_not_allowed"


@pytest.mark.parametrize(("models", "served"), [({"big"}, "big"), ({"small"}, "small"), ({"big-2"}, None)])
def test_a_key_for_one_of_the_pair(client, authenticator, models, served):
    principal = authenticator.principals[KEY]
    authenticator.principals[KEY] = replace(principal, models=frozenset(models))
    if served is None:
        assert error_of(ask(client), 403)["code"] == "model_not_allowed"
    else:
        assert route_of(ask(client)) == ("auto", served, "only_allowed")
    listed = {each["id"] for each in client.get("/v1/models").json()["data"]}
    assert listed - {"gpt-4o-mini"} == (models if served is None else {*models, "auto"})
    assert ("gpt-4o-mini" in listed) == ("small" in models)


def test_an_alias_of_all_tenants_leads_to_its_model(client, authenticator):
    answer = ask(client, "gpt-4o-mini")
    assert answer.json()["model"] == "small"
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], models=frozenset({"small"}))
    assert ask(client, "gpt-4o-mini").status_code == 200
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], models=frozenset({"big"}))
    assert error_of(ask(client, "gpt-4o-mini"), 403)["code"] == "model_not_allowed"


def test_what_is_listed_can_be_asked(client, authenticator):
    allow(authenticator, aliases={"gpt-4o": "auto", "gone": "nothing"})
    listed = {each["id"]: each["context_window"] for each in client.get("/v1/models").json()["data"]}
    assert listed == WINDOWS | {"assistant": 512, "split": 512, "auto": 512, "gpt-4o": 512, "gpt-4o-mini": 128}
    for name in listed:
        assert client.get(f"/v1/models/{name}").json()["id"] == name
        assert ask(client, name).status_code == 200
    assert error_of(client.get("/v1/models/gone"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"5": 1}}, "logit_bias"),
        (CHAT, {"messages": [{"role": "user", "content": "hi"}], "stop_token_ids": [5]}, "stop_token_ids"),
        ("/v1/completions", {"prompt": [1, 2, 3]}, "prompt"),
    ],
)
def test_token_ids_need_a_model_by_its_name(client, path, fields, param):
    error = error_of(client.post(path, json={"model": "auto", **fields}), 400)
    assert error["param"] == param
    assert client.post(path, json={"model": "big", **fields}).status_code == 200


@pytest.mark.parametrize("model", ["auto", "big"])
def test_a_long_queue_is_left_for_the_small_model_by_those_who_allow_it(client, engine, authenticator, model):
    engine.queues, engine.waits_ms = {"big": 11}, {"big": 500}
    assert route_of(ask(client, model, HARD))[1] == "big"
    for key in (KEY, PREMIUM_KEY):
        allow(authenticator, key, degrade=True)
    assert route_of(ask(client, model, HARD)) == (model, "small", "saturated")
    assert route_of(ask(client, model, HARD, key=PREMIUM_KEY))[1] == "big"
    assert route_of(ask(client, model, HARD, key=PREMIUM_KEY, service_tier="default"))[1] == "small"


@pytest.mark.parametrize("key", [KEY, PREMIUM_KEY])
def test_who_would_be_turned_away_is_served_by_the_small_model(client, engine, authenticator, journal, key):
    """For any class: the alternative is no answer."""
    engine.waits_ms = {"big": 60_000}
    assert error_of(ask(client, "big", key=key), 429)["code"] == "overloaded"
    allow(authenticator, key, degrade=True)
    assert route_of(ask(client, "big", key=key)) == ("big", "small", "saturated")
    assert event_of(journal).price_version == "small@1"


def test_where_both_are_too_busy_the_answer_speaks_of_the_one_that_was_asked(client, engine, authenticator, metrics):
    engine.waits_ms = {"big": 60_000, "small": 90_000}
    allow(authenticator, degrade=True)
    assert "60.0 s" in error_of(ask(client, "big"), 429)["message"]
    sheds = metrics.registry.get_sample_value
    labels = {"gen_ai_request_model": "big", "turnpike_class": "standard", "reason": "overloaded"}
    assert sheds("turnpike_class_sheds_total", labels) == 1


def test_a_busy_small_model_is_no_reason_to_be_turned_away(client, engine):
    engine.waits_ms = {"small": 60_000}
    assert route_of(ask(client)) == ("auto", "big", "saturated")


def test_what_is_too_long_for_the_small_model_goes_to_the_large_one(client):
    assert route_of(ask(client, text="long " * 40)) == ("auto", "big", "context")
    assert error_of(ask(client, text="long " * 200), 400)["code"] == "context_length_exceeded"


@pytest.mark.parametrize("model", ["auto", "big"])
def test_near_the_end_of_a_budget_the_small_model_answers(client, authenticator, limiter, journal, model):
    """The large one's prompt alone costs more than there is."""
    limit(authenticator, nanodollars_per_month=20_000)
    assert error_of(ask(client, model, HARD, max_tokens=8), 429)["code"] == "insufficient_quota"
    allow(authenticator, degrade_near_budget=True)
    assert route_of(ask(client, model, HARD, max_tokens=8)) == (model, "small", "budget")
    event = event_of(journal)
    assert (event.served_model, event.completion_tokens) == ("small", 8)
    assert event.cost_nanodollars < 20_000
    assert limiter.counts()["open"] == 0


PROMPT = 1 + len(f"<user>{EASY}\n<assistant>")


@pytest.mark.parametrize(
    ("tokens_left", "fields", "served"),
    [(8, {"max_tokens": 8}, "big"), (7, {"max_tokens": 8}, "small"), (100, {}, "small"), (512 - PROMPT, {}, "big")],
)
def test_a_budget_is_nearly_spent_if_it_cuts_a_large_answer(client, engine, authenticator, tokens_left, fields, served):
    engine.replies = {}
    allow(authenticator, degrade_near_budget=True)
    limit(authenticator, nanodollars_per_month=PROMPT * 1_000 + tokens_left * 4_000)
    assert route_of(ask(client, "big", **fields)) == ("big", served, "budget" if served == "small" else "explicit")


def test_a_large_answer_that_is_cut_is_better_than_none(client, engine, authenticator, journal):
    """Where the small one has no budget at all."""
    allow(authenticator, degrade_near_budget=True)
    limit(authenticator, nanodollars_per_month=PROMPT * 1_000 + 3 * 4_000)
    limit(authenticator, ScopeKind.MODEL, "small", tokens_per_day=0)
    assert route_of(ask(client, "big", max_tokens=8)) == ("big", "big", "explicit")
    assert (event_of(journal).completion_tokens, event_of(journal).finish_reason) == (3, Ending.QUOTA)


def test_what_no_small_model_can_save_is_no_reason_for_one(client, authenticator, journal):
    allow(authenticator, degrade_near_budget=True)
    limit(authenticator, tokens_per_day=PROMPT + 3)
    assert route_of(ask(client, "big", max_tokens=8)) == ("big", "big", "explicit")
    assert event_of(journal).completion_tokens == 3
    assert error_of(ask(client, "big"), 429)["limit"]["name"] == "tokens_per_day"


def test_a_limit_of_the_large_model_is_not_the_small_ones(client, authenticator):
    allow(authenticator, degrade_near_budget=True)
    limit(authenticator, ScopeKind.MODEL, "big", tokens_per_day=10)
    assert route_of(ask(client, "big")) == ("big", "small", "budget")


def test_too_many_requests_are_no_matter_of_the_budget(client, authenticator):
    allow(authenticator, degrade_near_budget=True)
    limit(authenticator, requests_per_minute=0)
    assert error_of(ask(client, "big"), 429)["code"] == "request_exceeds_limit"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("sure", "served"), [(0.9, "small"), (0.5, "big")])
def test_a_cascade_sends_what_its_model_was_sure_of(client, engine, authenticator, journal, sure, served, stream):
    allow(authenticator, cascade_percent=70)
    engine.sure = {"small": sure}
    response = ask(client, text=HARD, stream=stream)
    reason = "cascade_accepted" if served == "small" else "cascade_escalated"
    assert route_of(response) == ("auto", served, reason)
    assert text_of(response) == f"from {served}"
    assert "logprob" not in response.text.replace('"logprobs":null', "")
    event = event_of(journal)
    assert (event.served_model, event.route_reason, event.price_version) == (served, reason, f"{served}@1")
    written = {"small": len("from small"), "big": len("from big")}
    small_alone = served == "small"
    assert event.completion_tokens == written[served]
    assert event.undelivered_tokens == (0 if small_alone else written["small"])
    assert event.engine_ns == 1_000 * (written["small"] if small_alone else sum(written.values()))


def test_the_logprobs_that_a_client_asks_for_are_there(client, engine, authenticator):
    allow(authenticator, cascade_percent=70)
    engine.sure = {"small": 0.9}
    entries = ask(client, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert [len(each["top_logprobs"]) for each in entries] == [2] * len("from small")


def test_a_trial_may_not_be_longer_than_a_client_can_wait(client, engine, authenticator, monkeypatch):
    monkeypatch.setattr("gateway.generation.cascade.MAX_TRIAL_TOKENS", 5)
    allow(authenticator, cascade_percent=70)
    engine.sure = {"small": 0.9}
    assert route_of(ask(client)) == ("auto", "big", "cascade_escalated")
    assert engine.calls[0].params.max_tokens == 5
    assert route_of(ask(client, max_tokens=5)) == ("auto", "small", "cascade_accepted")


def test_every_choice_of_every_prompt_is_on_trial(client, engine, authenticator, journal):
    allow(authenticator, cascade_percent=70)
    engine.sure = {"small": 0.9}
    body = {"model": "auto", "prompt": ["one", "two"], "n": 2}
    response = client.post("/v1/completions", json=body)
    assert route_of(response) == ("auto", "small", "cascade_accepted")
    assert [(each["index"], each["text"]) for each in response.json()["choices"]] == [
        (index, "from small") for index in range(4)
    ]
    assert event_of(journal).engine_ns == 4_000 * len("from small")


def test_a_client_that_leaves_during_the_trial_pays_nothing(server, engine, authenticator, journal, limiter):
    allow(authenticator, cascade_percent=70)
    limit(authenticator, concurrent=1)
    engine.pace_s = 0.05
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = {"model": "auto", "messages": [{"role": "user", "content": EASY}], "stream": True}
    headers = AUTHORISED | {"content-type": "application/json"}
    connection.request("POST", CHAT, json.dumps(body), headers)
    until(lambda: engine.generated > 1)
    connection.close()
    event = event_of(journal)
    assert (event.finish_reason, event.cost_nanodollars, event.completion_tokens) == (Ending.CANCELLED, 0, 0)
    assert event.undelivered_tokens > 1
    assert event.engine_ns == 1_000 * event.undelivered_tokens
    assert limiter.counts()["open"] == 0


def test_a_session_keeps_its_version_and_a_tenant_has_one_without(client, engine):
    """Tenants and sessions that others have may get the other one."""
    served = {}
    for session in ("a", "b", "c", "d", "e", "f", "g", "h"):
        answers = [ask(client, "split", session_id=session) for _ in range(3)]
        (served[session],) = {route_of(each) for each in answers}
    assert {each[1] for each in served.values()} == {"big", "big-2"}
    assert len({route_of(ask(client, "split")) for _ in range(5)}) == 1


def test_a_small_model_that_fails_has_not_answered(client, engine, authenticator, journal):
    allow(authenticator, cascade_percent=70)
    engine.failing = {"small"}
    assert route_of(ask(client)) == ("auto", "big", "cascade_escalated")
    assert event_of(journal).finish_reason is Ending.STOP


def test_an_answer_at_hand_is_sent_where_the_large_model_cannot_be_had(client, engine, authenticator, journal):
    allow(authenticator, cascade_percent=70)
    engine.sure = {"small": 0.5}
    engine.waits_ms = {"big": 60_000}
    assert route_of(ask(client)) == ("auto", "small", "saturated")
    assert events_of(journal)[-1].route_reason == "saturated"
    engine.waits_ms = {}
    limit(authenticator, nanodollars_per_month=20_000)
    assert route_of(ask(client, max_tokens=10)) == ("auto", "small", "budget")
    event = events_of(journal)[-1]
    assert (event.route_reason, event.price_version, event.undelivered_tokens) == ("budget", "small@1", 0)


def test_a_trial_whose_room_somebody_else_took_is_not_sent(client, engine, authenticator, limiter, monkeypatch):
    """Every request to the engine has a hold."""
    allow(authenticator, cascade_percent=70)
    limit(authenticator, requests_per_minute=1)
    engine.sure = {"small": 0.5}
    release = limiter.release

    async def release_to_another(hold):
        settlement = await release(hold)
        await limiter.hold("another", hold.demands, minimum_tokens=1, desired_tokens=1)
        return settlement

    monkeypatch.setattr(limiter, "release", release_to_another)
    assert error_of(ask(client, max_tokens=8), 429)["code"] == "rate_limit_exceeded"


def test_where_neither_can_answer_the_client_hears_of_the_large_one(client, engine, authenticator, journal):
    allow(authenticator, cascade_percent=70)
    engine.failing, engine.waits_ms = {"small"}, {"big": 60_000}
    assert error_of(ask(client), 429)["code"] == "overloaded"
    event = event_of(journal)
    assert (event.finish_reason, event.completion_tokens, event.cost_nanodollars) == (Ending.ERROR, 0, 0)


def test_escalation_does_not_count_twice_against_a_limit(client, engine, authenticator, limiter):
    allow(authenticator, cascade_percent=70)
    limit(authenticator, concurrent=1, requests_per_minute=2)
    engine.sure = {"small": 0.5}
    for _ in range(2):
        assert route_of(ask(client, max_tokens=4)) == ("auto", "big", "cascade_escalated")
    assert error_of(ask(client), 429)["code"] == "rate_limit_exceeded"
    assert limiter.counts()["open"] == 0


def test_what_routing_did_is_counted(client, engine, metrics):
    ask(client)
    ask(client, text=HARD)
    value = metrics.registry.get_sample_value
    for model, reason in (("small", "complexity_small"), ("big", "complexity_large")):
        assert value("turnpike_routed_requests_total", {"gen_ai_request_model": model, "reason": reason}) == 1
    all_large = value("turnpike_route_all_large_dollars_total", {"gen_ai_request_model": "big"})
    saved = value("turnpike_route_saved_dollars_total", {"gen_ai_request_model": "big"})
    assert 0 < saved < all_large
    prompt_tokens, cached_tokens = 1 + len("<user>easy\n<assistant>"), 1
    as_large = (prompt_tokens - cached_tokens * 0.5 + len("from small") * 4) / 1e6
    assert saved == pytest.approx(0.9 * as_large)


@pytest.mark.parametrize(("text", "served"), [(EASY, "small"), (HARD, "big")])
def test_messages_and_their_count_are_of_the_model_that_auto_takes(client, text, served):
    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    response = client.post("/v1/messages", json=body | {"max_tokens": 50})
    assert response.headers["x-turnpike-requested-model"] == "auto"
    assert response.headers["x-turnpike-served-model"] == response.json()["model"] == served
    assert response.json()["content"] == [{"type": "text", "text": f"from {served}"}]
    count = client.post("/v1/messages/count_tokens", json=body)
    assert count.json() == {"input_tokens": len(f"B<user>{text}\n<assistant>")}
