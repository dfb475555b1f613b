"""Each request becomes one usage event, with what its client received and nothing else."""

import asyncio
import http.client
import re
import sqlite3

import httpx
import orjson
import pytest
from starlette.testclient import TestClient

from gateway.admission.restoring import restore_spending
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.http.errors import ClientGone
from gateway.metering.event import Ending
from gateway.metering.journal.journal import Journal
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, BODY, CHAT, HEADERS, KEY, PREMIUM_KEY, limit, until
from tests.support.services import services_with
from tests.support.usage_events import cost, event_of, events_of


def usage_of(text: str) -> dict:
    """The usage chunk of a stream."""
    chunks = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return chunks[-1]["usage"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_on_the_disk_before_its_last_byte(client, journal, engine, stream):
    body = BODY | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
    response = client.post(CHAT, json=body)
    (event,) = events_of(journal)
    usage = usage_of(response.text) if stream else response.json()["usage"]
    assert (event.prompt_tokens, event.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert event.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"] == 1
    assert event.cost_nanodollars == cost(event) > 0
    assert (event.tenant_id, event.key_id, event.tier, event.tier_served) == ("tenant-1", "pubid1", *["standard"] * 2)
    assert (event.requested_model, event.served_model, event.model_version) == ("tiny", "tiny", "f00d")
    assert (event.price_version, event.finish_reason, event.undelivered_tokens) == ("tiny@1", Ending.STOP, 0)
    assert (event.engine_ns, event.queue_ms, event.paused_ms) == (1_000 * len(engine.reply), 2, 4)
    http = (event.http_request_id, event.endpoint, event.streamed)
    assert http == (response.headers["x-request-id"], CHAT, stream)
    assert event.http_status == response.status_code == 200
    details = usage["completion_tokens_details"]
    assert event.accepted_draft_tokens == details["accepted_prediction_tokens"] > 0
    assert event.draft_tokens == event.accepted_draft_tokens + details["rejected_prediction_tokens"]
    assert event.ttft_ms is not None
    assert 0 <= event.ttft_ms <= event.total_latency_ms


def test_the_id_of_the_answer_is_the_id_of_its_event(client, journal):
    assert client.post(CHAT, json=BODY).json()["id"] == event_of(journal).request_id


def test_choices_share_their_prompt(client, journal, engine):
    engine.reply = "abc"
    usage = client.post(CHAT, json=BODY | {"n": 3}).json()["usage"]
    event = event_of(journal)
    assert (event.prompt_tokens, event.completion_tokens) == (usage["prompt_tokens"], 9)
    assert (event.cached_tokens, event.engine_ns) == (1, 9_000)
    assert event.paused_ms == 12, "the longest pause: they stand still side by side"


def test_several_prompts_are_billed_each(client, journal, engine):
    engine.reply = "abc"
    usage = client.post("/v1/completions", json={"model": "tiny", "prompt": ["one", "two"], "n": 2}).json()["usage"]
    event = event_of(journal)
    assert (event.prompt_tokens, event.completion_tokens) == (usage["prompt_tokens"], 12)
    assert event.cached_tokens == 2
    assert event.request_id.startswith("cmpl-")


@pytest.mark.parametrize(("key", "asked", "tiers"), [
    (KEY, None, ("standard", "standard")),
    (PREMIUM_KEY, None, ("premium", "premium")),
    (PREMIUM_KEY, "default", ("premium", "standard")),
])  # fmt: skip
def test_the_tier_paid_for_and_the_tier_served_are_told_apart(client, journal, key, asked, tiers):
    client.post(CHAT, json=BODY | {"service_tier": asked}, headers={"authorization": f"Bearer {key}"})
    event = event_of(journal)
    assert (event.tier, event.tier_served) == tiers


def test_an_answer_of_full_length_says_so(client, journal):
    client.post(CHAT, json=BODY | {"max_tokens": 4})
    assert (event_of(journal).finish_reason, event_of(journal).completion_tokens) == (Ending.LENGTH, 4)


def test_a_failure_half_way_is_billed_as_far_as_it_was_sent(client, journal, engine):
    engine.fail_at, engine.pace_s = 3, 0.01
    client.post(CHAT, json=BODY | {"stream": True})
    event = event_of(journal)
    assert (event.finish_reason, event.completion_tokens) == (Ending.ERROR, 3)
    assert event.http_status == 200, "the status was sent before it failed"
    assert event.cost_nanodollars == cost(event)
    assert event.engine_ns == 3_000


def test_a_whole_answer_that_fails_costs_nothing(client, journal, engine):
    engine.fail_at = 3
    error_of(client.post(CHAT, json=BODY), 500)
    event = event_of(journal)
    assert (event.prompt_tokens, event.completion_tokens, event.cost_nanodollars) == (0, 0, 0)
    assert (event.finish_reason, event.undelivered_tokens, event.engine_ns) == (Ending.ERROR, 3, 3_000)
    assert event.http_status == 500


def test_a_client_that_hangs_up_pays_for_what_it_was_sent(server, journal, engine):
    engine.reply, engine.pace_s = "x" * 200, 0.01
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", CHAT, orjson.dumps(BODY | {"stream": True}), HEADERS)
    received = 0
    with connection.getresponse() as response:
        while received < 5:
            received += response.readline().count(b'"content":"x"')
    connection.close()
    event = event_of(journal)
    assert event.finish_reason is Ending.CANCELLED
    assert event.http_status == 200, "the status was sent before it left"
    assert 5 <= event.completion_tokens < 200
    assert event.cost_nanodollars == cost(event)
    assert event.engine_ns == 1_000 * (event.completion_tokens + event.undelivered_tokens)


@pytest.mark.parametrize("written", [False, True])
async def test_a_write_during_which_the_request_ends_is_billed_if_it_was_handed_over(app, journal, engine, written):
    """The engine fails while a client is slow to read, or the client leaves: before the tokens are handed over, or as
    they are."""
    engine.reply, engine.fail_at, engine.pace_s = "abcdef", 3, 0.01
    gone = asyncio.Event()
    sent: list[bytes] = []

    async def receive():
        if not gone.is_set() and not sent:
            return {"type": "http.request", "body": orjson.dumps(BODY | {"stream": True}), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message) -> None:
        body = message.get("body", b"")
        if b'"content":"a"' not in body:
            if gone.is_set():
                raise ClientGone
            return
        while engine.live:  # the failure comes while this write waits
            await asyncio.sleep(0.01)
        gone.set()
        await asyncio.sleep(0.05)
        if not written:
            raise ClientGone
        sent.append(body)

    headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "headers": headers,
        "query_string": b"",
        "http_version": "1.1",
    }
    async with app.router.lifespan_context(app):
        await app(scope, receive, send)
        event = await asyncio.to_thread(event_of, journal)
    assert event.completion_tokens == b"".join(sent).count(b'"content":"a"')
    assert event.completion_tokens == (1 if written else 0)


def test_a_client_that_leaves_before_the_first_token_pays_nothing(server, journal, engine):
    engine.pace_s = 0.3
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", CHAT, orjson.dumps(BODY | {"stream": True}), HEADERS)
    until(lambda: engine.live)
    connection.close()
    event = event_of(journal)
    assert (event.finish_reason, event.cost_nanodollars, event.prompt_tokens) == (Ending.CANCELLED, 0, 0)
    assert event.http_status == 499


@pytest.mark.parametrize("fields", [{"model": "none"}, {"messages": []}, {"max_tokens": 10_000}])
def test_what_is_refused_is_not_billed(client, journal, fields):
    assert client.post(CHAT, json=BODY | fields).status_code in (400, 404)
    assert events_of(journal) == []


def test_a_disk_that_fails_means_503_and_no_readiness(client, journal, engine, monkeypatch, limiter):
    def fail():
        raise sqlite3.OperationalError("database or disk is full")

    commit = journal._file.commit
    monkeypatch.setattr("gateway.metering.journal.journal.RETRY_S", 0.01)
    monkeypatch.setattr(journal._file, "commit", fail)
    until_refused = client.post(CHAT, json=BODY)  # its end cannot be written
    assert error_of(until_refused, 503)["code"] == "service_unavailable"
    assert "disk" not in until_refused.text
    refused = client.post(CHAT, json=BODY)
    assert error_of(refused, 503)["code"] == "service_unavailable"
    assert client.get("/readyz").status_code == 503
    assert len(engine.calls) == 1
    monkeypatch.setattr(journal._file, "commit", commit)
    until(lambda: client.get("/readyz").status_code == 200)
    assert client.post(CHAT, json=BODY).status_code == 200
    until(lambda: len(events_of(journal)) == 2)
    failed, served = events_of(journal)
    assert (failed.finish_reason, failed.cost_nanodollars) == (Ending.ERROR, 0)
    assert (served.finish_reason, served.sequence) == (Ending.STOP, 2)
    assert (failed.http_status, served.http_status) == (503, 200)


def test_a_stream_whose_end_cannot_be_written_ends_with_an_error(client, journal, monkeypatch):
    monkeypatch.setattr("gateway.metering.journal.journal.RETRY_S", 0.01)
    failing = False
    commit = journal._file.commit

    def fail_after_the_first():
        nonlocal failing
        if failing:
            raise sqlite3.OperationalError("disk I/O error")
        commit()
        failing = True

    monkeypatch.setattr(journal._file, "commit", fail_after_the_first)
    text = client.post(CHAT, json=BODY | {"stream": True}).text
    monkeypatch.setattr(journal._file, "commit", commit)
    assert "[DONE]" not in text
    assert orjson.loads(text.strip().splitlines()[-1][6:])["error"]["code"] == "service_unavailable"
    sent = len(re.findall(r'"content":"."', text))
    event = event_of(journal)
    assert (event.finish_reason, event.completion_tokens, event.http_status) == (Ending.ERROR, sent, 200)


def test_a_stream_that_cannot_be_recorded_is_503_and_free(client, journal, monkeypatch):
    monkeypatch.setattr("gateway.metering.journal.journal.RETRY_S", 0.01)
    commit = journal._file.commit

    def fail():
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(journal._file, "commit", fail)
    assert error_of(client.post(CHAT, json=BODY | {"stream": True}), 503)["code"] == "service_unavailable"
    monkeypatch.setattr(journal._file, "commit", commit)
    event = event_of(journal)
    assert (event.finish_reason, event.cost_nanodollars, event.http_status) == (Ending.ERROR, 0, 503)


def test_two_hundred_at_once_are_two_hundred_events(server, journal, engine):
    async def ask(client, n: int) -> dict:
        response = await client.post(CHAT, json=BODY | {"max_tokens": 1 + n % 13})
        return response.json()["usage"]

    async def ask_all() -> list[dict]:
        async with httpx.AsyncClient(base_url=server.url, headers=AUTHORISED, timeout=30) as client:
            return await asyncio.gather(*(ask(client, n) for n in range(200)))

    usages = asyncio.run(ask_all())
    events = events_of(journal)
    assert [event.sequence for event in events] == list(range(1, 201))
    assert len({event.event_id for event in events}) == 200
    for name in ("prompt_tokens", "completion_tokens"):
        assert sum(getattr(event, name) for event in events) == sum(usage[name] for usage in usages)


def test_what_was_spent_counts_after_a_restart(client, journal, engine, authenticator, tmp_path):
    for _ in range(3):
        client.post(CHAT, json=BODY)
    limit(authenticator, nanodollars_per_month=sum(event.cost_nanodollars for event in events_of(journal)) + 10)
    client.__exit__(None, None, None)
    services = services_with(tmp_path, engine, authenticator, journal=Journal(journal.path, min_free_bytes=0))
    asyncio.run(restore_spending(services.limiter, services.journal, {}, {}))
    with TestClient(create_app(Settings(data_dir=tmp_path), services), headers=AUTHORISED) as restarted:
        assert error_of(restarted.post(CHAT, json=BODY), 429)["code"] == "insufficient_quota"
