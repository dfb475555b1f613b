"""Responses stored in Redis: on any replica, and when Redis goes away."""

import pytest
from starlette.testclient import TestClient

from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.sessions import Sessions
from gateway.sessions.redis_store import RedisSessionStore
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED
from tests.support.responses_bodies import PATH, body, shown
from tests.support.servers import RedisServer
from tests.support.services import services_with


@pytest.fixture
def sessions(redis: RedisServer) -> Sessions:
    return Sessions(RedisSessionStore.open(redis.url), wait_s=0.2)


def test_a_response_is_gone_on_from_on_another_replica(ask, client, engine, authenticator, redis, tmp_path):
    first = ask("Where?")
    other = Sessions(RedisSessionStore.open(redis.url), wait_s=0.2)
    app = create_app(Settings(data_dir=tmp_path), services_with(tmp_path, engine, authenticator, sessions=other))
    with TestClient(app, headers=AUTHORISED) as replica:
        assert replica.get(f"{PATH}/{first['id']}").json() == first
        second = replica.post(PATH, json=body("When?", previous_response_id=first["id"])).json()
        assert shown(engine) == "<user>Where?\n<assistant>Hello, world!\n<user>When?\n"
        assert client.delete(f"{PATH}/{second['id']}").status_code == 200
        error_of(replica.get(f"{PATH}/{second['id']}"), 404)


def test_when_redis_goes_plain_answers_say_that_they_are_not_kept(ask, client, redis):
    first = ask()["id"]
    redis.stop()
    assert ask()["store"] is False
    refused = client.post(PATH, json=body(previous_response_id=first))
    assert error_of(refused, 503)["code"] == "service_unavailable"
    redis.start()
    assert ask()["store"] is True
