"""Sessions in Redis: on any replica, and when Redis goes away."""

import threading

import httpx
import pytest
from starlette.testclient import TestClient

from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.sessions import Sessions
from gateway.sessions.redis_store import RedisSessionStore
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, CHAT, until
from tests.support.servers import RedisServer
from tests.support.services import services_with
from tests.support.session_turns import body, contents, shown, user


@pytest.fixture
def sessions(redis: RedisServer) -> Sessions:
    return Sessions(RedisSessionStore.open(redis.url), wait_s=0.2)


def test_a_turn_that_was_seen_to_end_is_there_on_another_replica(client, engine, authenticator, redis, tmp_path):
    other = Sessions(RedisSessionStore.open(redis.url), wait_s=0.2)
    app = create_app(Settings(data_dir=tmp_path), services_with(tmp_path, engine, authenticator, sessions=other))
    with TestClient(app, headers=AUTHORISED) as replica:
        for number, gateway in enumerate((client, replica) * 3):
            response = gateway.post(CHAT, json=body(user(f"{number}"), stream=True))
            assert response.text.endswith("data: [DONE]\n\n")
            assert response.headers["x-turnpike-session-turns"] == f"{number}"
        assert contents(client) == contents(replica)
        assert replica.delete("/v1/sessions/trip").status_code == 200
        error_of(client.get("/v1/sessions/trip"), 404)


def test_a_turn_on_one_replica_keeps_the_others_out(server, engine, authenticator, redis, tmp_path):
    engine.reply, engine.pace_s = "x" * 60, 0.02
    other = Sessions(RedisSessionStore.open(redis.url), wait_s=0.0)
    app = create_app(Settings(data_dir=tmp_path), services_with(tmp_path, engine, authenticator, sessions=other))
    with TestClient(app, headers=AUTHORISED) as replica:
        turn = threading.Thread(target=httpx.post, args=(f"{server.url}{CHAT}",), kwargs={
            "json": body(user("a")), "headers": AUTHORISED, "timeout": 10
        })  # fmt: skip
        turn.start()
        until(lambda: engine.live)
        assert error_of(replica.post(CHAT, json=body(user("b"))), 409)["code"] == "session_busy"
        turn.join()
        engine.pace_s = 0.0
        assert replica.post(CHAT, json=body(user("b"))).headers["x-turnpike-session-turns"] == "1"


def test_when_redis_goes_answers_end_well_and_new_turns_are_refused(server, engine, redis):
    with httpx.Client(base_url=server.url, headers=AUTHORISED, timeout=30) as client:
        assert client.post(CHAT, json=body(user("a"))).status_code == 200
        engine.reply, engine.pace_s = "x" * 30, 0.02
        with client.stream("POST", CHAT, json=body(user("b"), stream=True)) as response:
            lines = response.iter_lines()
            next(lines)
            redis.stop()
            rest = list(lines)
        assert rest[-4:] == [": session turn not kept", "", "data: [DONE]", ""]
        engine.pace_s = 0.0
        for refused in (client.post(CHAT, json=body(user("c"))), client.get("/v1/sessions/trip")):
            assert error_of(refused, 503)["code"] == "service_unavailable"
        assert client.post(CHAT, json={"model": "tiny", "messages": [user("c")]}).status_code == 200
        redis.start()
        assert client.post(CHAT, json=body(user("d"))).status_code == 200
        assert shown(engine) == "<user>d\n<assistant>", "this Redis keeps nothing over a restart"
