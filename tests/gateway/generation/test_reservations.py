"""An admitted request counts in the queue at once, until the engine has it or it ends otherwise."""

import asyncio
import http.client
import json
import threading
from collections import Counter
from contextlib import ExitStack

import httpx
import pytest
from starlette.testclient import TestClient

from engine.config import EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.request import STANDARD
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.http.bounds import MAX_INLINE_CHARS
from gateway.metering.journal.journal import Journal, JournalUnavailable
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import AUTHORISED, CHAT, HARD, FakeAuthenticator, allow, limit, serving, until
from tests.support.services import price_book, services_with
from tests.support.tiny_models import make_checkpoint
from tests.support.usage_events import events_of

CLIENTS = 64
JSON = AUTHORISED | {"content-type": "application/json"}


def body(model: str = "tiny", text: str = "hi", **fields) -> dict:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


@pytest.fixture
def slow_limits(limiter, monkeypatch):
    """Between the decision to let a request in and its submission the event loop turns a few times."""
    hold = limiter.hold

    async def hold_late(*args, **options):
        await asyncio.sleep(0.02)
        return await hold(*args, **options)

    monkeypatch.setattr(limiter, "hold", hold_late)


def outcomes(server, engine, count: int, *, at_once: bool, **asked) -> Counter:
    """Statuses of `count` requests, none of which ends: of the answered ones, and 200 for the running ones."""
    refused, running = Counter(), Counter()

    async def ask(client) -> None:
        response = await client.post(CHAT, json=body(stream=True, **asked))
        refused[response.status_code] += 1

    async def known(number: int) -> None:
        while len(engine.live) + refused.total() < number:
            await asyncio.sleep(0.005)

    async def ask_all() -> None:
        limits = httpx.Limits(max_connections=count)
        async with httpx.AsyncClient(base_url=server.url, headers=AUTHORISED, timeout=60, limits=limits) as client:
            tasks = []
            for number in range(count):
                tasks.append(asyncio.create_task(ask(client)))
                if not at_once:
                    await known(number + 1)
            await known(count)
            running.update({f"runs on {model}": live for model, live in engine.live_of.items() if live})
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    engine.pace_s = 3600.0
    asyncio.run(ask_all())
    until(lambda: not engine.live)
    return refused + running


@pytest.mark.parametrize("text", ["hi", "x" * (MAX_INLINE_CHARS + 1)], ids=["short", "tokenised in a thread"])
def test_all_at_once_as_many_are_let_in_as_one_after_another(authenticator, limiter, slow_limits, tmp_path, text):
    seen = []
    for at_once in (False, True):
        engine = FakeEngine({"tiny": 10**6})
        engine.wait_ms_per_request = 1_000
        folder = tmp_path / str(at_once)
        folder.mkdir()
        services = services_with(folder, engine, authenticator, limiter=limiter)
        with serving(create_app(Settings(data_dir=folder), services)) as server:
            seen.append(outcomes(server, engine, 60, at_once=at_once, text=text))
        assert engine.reservations() == {"tiny": 0}
    apart, together = seen
    assert apart == {429: 35, "runs on tiny": 25}, "a wait of 24 s, with the margin, is within 30 s"
    assert abs(together[429] - apart[429]) <= 1


def test_all_at_once_as_many_are_routed_to_the_small_model(authenticator, slow_limits, limiter, tmp_path):
    allow(authenticator, degrade=True)
    seen = []
    for at_once in (False, True):
        engine = FakeEngine({"big": 512, "small": 512})
        engine.wait_ms_per_request = 1
        folder = tmp_path / str(at_once)
        folder.mkdir()
        settings = Settings(data_dir=folder, models=dict.fromkeys(engine.models, folder), small_models={"big": "small"})
        services = services_with(folder, engine, authenticator, limiter=limiter)
        with serving(create_app(settings, services)) as server:
            seen.append(outcomes(server, engine, 45, at_once=at_once, model="big"))
    apart, together = seen
    assert apart["runs on small"] > 10
    assert abs(together["runs on small"] - apart["runs on small"]) <= 1


def refuse_by_journal(monkeypatch, journal, **_):
    def unavailable(_):
        raise JournalUnavailable("the disk is full")

    monkeypatch.setattr(journal, "begin", unavailable)


def refuse_by_limit(authenticator, **_):
    limit(authenticator, tokens_per_minute=3)


def break_limits(limiter, monkeypatch, **_):
    async def fail(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(limiter, "hold", fail)


def fail_in_the_engine(engine, **_):
    engine.fail_at = 0


def crash_in_the_engine(engine, **_):
    engine.crash_at = 0


def make_queue_too_long_for_it(engine, **_):
    engine.wait_ms, engine.wait_ms_per_token = 10_000, 5_000


def nothing(**_):
    pass


@pytest.mark.parametrize(
    ("happens", "fields", "status"),
    [
        (nothing, {}, 200),
        (nothing, {"stream": True}, 200),
        (nothing, {"n": 3}, 200),
        (refuse_by_limit, {}, 429),
        (refuse_by_journal, {}, 503),
        (break_limits, {}, 500),
        (fail_in_the_engine, {}, 500),
        (crash_in_the_engine, {}, 500),
        (make_queue_too_long_for_it, {}, 429),
        (nothing, {"text": "TEMPLATE-REFUSES"}, 400),
        (nothing, {"text": "x" * 600}, 400),
        (nothing, {"logit_bias": {"600": 1}}, 400),
    ],
)
def test_places_are_released(app, engine, happens, fields, status, monkeypatch, limiter, journal, authenticator):
    happens(engine=engine, monkeypatch=monkeypatch, limiter=limiter, journal=journal, authenticator=authenticator)
    with TestClient(app, headers=AUTHORISED, raise_server_exceptions=False) as client:
        assert client.post(CHAT, json=body(**fields)).status_code == status
    assert engine.most_reserved == 1
    assert engine.reservations() == {"tiny": 0, "org/tiny-2": 0}


@pytest.mark.parametrize("prompts", [["one", "two", "three"], ["a"] * 70])
@pytest.mark.parametrize("path", ["completions", "embeddings"])
def test_every_prompt_has_its_place(client, engine, path, prompts):
    fields = {"prompt": prompts} if path == "completions" else {"input": prompts}
    assert client.post(f"/v1/{path}", json={"model": "tiny"} | fields).status_code == 200
    assert (len(engine.calls), engine.most_reserved) == (len(prompts), 1)
    assert engine.reservations() == {"tiny": 0, "org/tiny-2": 0}


def test_a_client_that_has_gone_before_its_request_is_submitted_keeps_no_place(server, engine, slow_limits):
    connections = []
    for _ in range(5):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("POST", CHAT, json.dumps(body(stream=True)), JSON)
        connections.append(connection)
    for connection in connections:
        connection.close()
    until(lambda: engine.most_reserved > 0)
    until(lambda: not engine.live and not any(engine.reservations().values()))


@pytest.mark.parametrize("large", ["is free", "is full", "is too expensive"])
def test_a_cascade_has_one_place_at_a_time(authenticator, limiter, tmp_path, large):
    engine = FakeEngine({"big": 512, "small": 128})
    engine.sure = {"small": 0.5}
    allow(authenticator, cascade_percent=70)
    if large == "is full":
        engine.waits_ms = {"big": 60_000}
    if large == "is too expensive":
        limit(authenticator, nanodollars_per_month=20_000)
    settings = Settings(data_dir=tmp_path, models=dict.fromkeys(engine.models, tmp_path), small_models={"big": "small"})
    prices = price_book({"big": ("1", "0.5", "4"), "small": ("0.1", "0.05", "0.4")})
    services = services_with(tmp_path, engine, authenticator, limiter=limiter, prices=prices)
    with TestClient(create_app(settings, services), headers=AUTHORISED) as client:
        response = client.post(CHAT, json=body("auto", HARD, max_tokens=10))
        assert response.status_code == 200
        assert response.json()["model"] == ("big" if large == "is free" else "small")
        assert engine.reservations() == {"big": 0, "small": 0}


def test_clients_that_leave_while_they_wait_shut_nobody_out(tmp_path):
    """Over the real engine, whose first step takes until they have all gone."""
    folder = make_checkpoint(tmp_path / "model", "llama")
    scheduler = SchedulerConfig(max_running=2)
    config = EngineConfig(dtype="float32", kv_cache_bytes=4 * 2**20, threads=1, scheduler=scheduler)
    engine = Engine.load({"tiny": folder}, config)
    worker = engine._core._runtimes["tiny"]
    going, execute = threading.Event(), worker.executor.execute

    def execute_late(plan):
        assert going.wait(60)
        return execute(plan)

    worker.executor.execute = execute_late
    journal = Journal(tmp_path / "journal.db", interval_ms=5, min_free_bytes=0)
    services = services_with(folder, engine, FakeAuthenticator(), journal=journal)
    settings = Settings(data_dir=tmp_path / "data", max_wait_s=100_000)
    with serving(create_app(settings, services)) as server, ExitStack() as on_failure:
        on_failure.callback(going.set)
        connections = []
        for number in range(CLIENTS):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request("POST", CHAT, json.dumps(body(text=f"{number}", stream=True, max_tokens=400)), JSON)
            connections.append(connection)
        until(lambda: engine.stats()["tiny"].waiting + engine.stats()["tiny"].running == CLIENTS, 60)
        assert engine.queue_depth("tiny") >= CLIENTS - 2
        for connection in connections:
            connection.close()
        until(lambda: len(events_of(journal)) == CLIENTS, 60)
        going.set()
        until(lambda: not engine.stats()["tiny"].running, 60)
        until(lambda: engine.queue_depth("tiny") == 0)
        assert engine.predicted_wait("tiny", STANDARD, 1).drain_ns == 0, "the next request is admitted"
        assert engine.reservations() == {"tiny": 0}
        assert httpx.post(server.url + CHAT, headers=JSON, json=body(max_tokens=2), timeout=60).status_code == 200
