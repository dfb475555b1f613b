"""Sessions over HTTP: what the next turn is shown, who sees it, and what becomes of a turn that does not end well."""

import asyncio
import http.client
import threading
from dataclasses import replace

import httpx
import orjson
import pytest

from gateway.sessions import SessionKey, SessionStoreAway
from gateway.sessions.memory import MemorySessionStore
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, CHAT, HEADERS, KEY, PREMIUM_KEY, until
from tests.support.session_turns import body, contents, shown, system, user
from tests.support.usage_events import events_of

OTHER_TENANT = {"authorization": f"Bearer {PREMIUM_KEY}"}


@pytest.fixture
def say(client, engine):
    """A turn on a session: what the model was shown, and the response."""

    def say(*messages, headers=None, **fields):
        response = client.post(CHAT, json=body(*messages, **fields), headers=headers)
        assert response.status_code == 200, response.text
        return shown(engine), response

    return say


@pytest.mark.parametrize("stream", [False, True])
def test_the_next_turn_is_shown_what_was_said(say, engine, stream):
    engine.reply = "In Rome."
    text, response = say(user("Where?"), stream=stream)
    assert text == "<user>Where?\n<assistant>"
    assert response.headers["x-turnpike-session"] == "trip"
    assert response.headers["x-turnpike-session-turns"] == "0"
    text, response = say(user("When?"), stream=stream)
    assert text == "<user>Where?\n<assistant>In Rome.\n<user>When?\n<assistant>"
    assert response.headers["x-turnpike-session-turns"] == "1"
    assert response.headers["x-turnpike-session-dropped-turns"] == "0"
    assert "x-turnpike-session-window" not in response.headers


def test_a_whole_answer_says_that_its_turn_is_kept(say):
    assert say(user("Where?"))[1].headers["x-turnpike-session-kept"] == "true"
    assert "x-turnpike-session-kept" not in say(user("Where?"), stream=True)[1].headers


def test_a_header_names_a_session_as_well(client, engine, say):
    plain = {"model": "tiny", "messages": [user("Where?")]}
    response = client.post(CHAT, json=plain, headers={"x-turnpike-session": "trip"})
    assert response.headers["x-turnpike-session"] == "trip"
    text, _ = say(user("When?"), headers={"x-turnpike-session": "trip"})
    assert text.startswith("<user>Where?\n<assistant>Hello, world!\n<user>When?")


def test_without_a_session_nothing_is_remembered(client, engine, say):
    response = client.post(CHAT, json={"model": "tiny", "messages": [user("Where?")]})
    assert not [name for name in response.headers if name.startswith("x-turnpike-session")]
    assert say(user("When?"))[0] == "<user>When?\n<assistant>"


def test_a_system_prompt_is_kept_until_a_new_one_takes_its_place(say):
    say(system("be brief"), user("a"))
    assert say(user("b"))[0].startswith("<system>be brief\n<user>a\n")
    assert say(system("be long"), user("c"))[0].startswith("<system>be long\n<user>a\n")
    assert say(user("d"))[0].startswith("<system>be long\n<user>a\n")


def test_calls_of_tools_pass_through_as_they_were_sent(client, say):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    called = [user("1+2?"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    result = {"role": "tool", "content": "3", "tool_call_id": "c1"}
    say(*called, result)
    say({"role": "tool", "content": "again 3", "tool_call_id": "c1"})
    session = client.get("/v1/sessions/trip").json()
    assert session["messages"][:3] == [*called, result]
    assert (session["turns"], len(session["messages"])) == (1, 6)


@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"session_id": ""}, {}, "session_id"),
        ({"session_id": "a b"}, {}, "session_id"),
        ({"session_id": "a/b"}, {}, "session_id"),
        ({"session_id": "é"}, {}, "session_id"),
        ({"session_id": "x" * 129}, {}, "session_id"),
        ({"session_id": 5}, {}, "session_id"),
        ({}, {"x-turnpike-session": "a b"}, "x-turnpike-session"),
        ({"session_id": "a"}, {"x-turnpike-session": "b"}, "session_id"),
        ({"session_id": "a", "n": 2}, {}, "n"),
        ({"n": 2}, {"x-turnpike-session": "a"}, "n"),
        ({"session_id": "a", "add_generation_prompt": False}, {}, "add_generation_prompt"),
    ],
)
def test_what_is_no_turn_of_a_session_is_refused(client, engine, fields, headers, param):
    response = client.post(CHAT, json={"model": "tiny", "messages": [user("hi")]} | fields, headers=headers)
    assert error_of(response, 400)["param"] == param
    assert engine.calls == []


def test_completions_have_no_sessions(client, engine):
    plain = {"model": "tiny", "prompt": "hi"}
    refused = error_of(client.post("/v1/completions", json=plain | {"session_id": "a"}), 400)
    assert (refused["param"], refused["code"]) == ("session_id", "unknown_parameter")
    refused = error_of(client.post("/v1/completions", json=plain, headers={"x-turnpike-session": "a"}), 400)
    assert (refused["param"], refused["code"]) == ("x-turnpike-session", "unsupported_parameter")
    assert engine.calls == []


def test_the_longest_id_works(client, say):
    id = ("Az09._:-" * 16)[:128]
    say(user("a"), session=id)
    assert contents(client, id) == ["a", "Hello, world!"]


def test_a_tenant_never_sees_another_ones_session(client, say):
    say(user("my secret"))
    assert "secret" not in say(user("What did I say?"), headers=OTHER_TENANT)[0]
    assert "x-turnpike-session" in say(user("x"), headers=OTHER_TENANT)[1].headers
    assert "my secret" not in client.get("/v1/sessions/trip", headers=OTHER_TENANT).text
    client.delete("/v1/sessions/trip", headers=OTHER_TENANT)
    error_of(client.get("/v1/sessions/trip", headers=OTHER_TENANT), 404)
    error_of(client.delete("/v1/sessions/trip", headers=OTHER_TENANT), 404)
    assert contents(client) == ["my secret", "Hello, world!"]


def test_a_session_is_read_and_deleted(client, say):
    say(system("be brief"), user("a"))
    session = client.get("/v1/sessions/trip").json()
    assert 3590 <= session.pop("expires_in_s") <= 3600
    assert 0 < session.pop("stored_bytes") < 500
    assert session == {
        "id": "trip",
        "object": "session",
        "turns": 1,
        "dropped_turns": 0,
        "summary": None,
        "messages": [system("be brief"), user("a"), {"role": "assistant", "content": "Hello, world!"}],
    }
    deleted = client.delete("/v1/sessions/trip")
    assert deleted.json() == {"id": "trip", "object": "session.deleted", "deleted": True}
    for request in (client.get, client.delete):
        assert error_of(request("/v1/sessions/trip"), 404)["code"] == "session_not_found"
    assert say(user("b"))[0] == "<user>b\n<assistant>"


@pytest.mark.parametrize("id", ["a b", "a/b", "x" * 129, "", "%00"])
def test_what_cannot_be_an_id_is_not_there(client, id):
    assert error_of(client.get(f"/v1/sessions/{id}"), 404)["code"] == "session_not_found"


def test_sessions_are_for_keys_that_may_chat(client, say, authenticator):
    say(user("a"))
    chatting = authenticator.principals[KEY]
    authenticator.principals[KEY] = replace(chatting, scopes=frozenset({"completions", "usage"}))
    for request in (client.get, client.delete):
        error_of(request("/v1/sessions/trip"), 403)
    authenticator.principals[KEY] = replace(chatting, scopes=frozenset({"chat"}))
    assert client.get("/v1/sessions/trip").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["fail_at", "crash_at"])
def test_a_turn_that_fails_leaves_the_session_as_it_was(client, engine, say, stream, fault):
    say(user("a"))
    setattr(engine, fault, 3)
    client.post(CHAT, json=body(user("b"), stream=stream))
    setattr(engine, fault, None)
    assert contents(client) == ["a", "Hello, world!"]
    assert "b" not in say(user("c"))[0].replace("<assistant>", "")


def test_a_turn_that_is_refused_leaves_the_session_as_it_was(client, say):
    say(user("a"))
    for fields in ({"model": "nobody"}, {"temperature": 9}, {"max_tokens": 10_000}, {"service_tier": "gold"}):
        assert client.post(CHAT, json=body(user("b")) | fields).status_code in (400, 404)
    client.post(CHAT, json=body(user("TEMPLATE-REFUSES")))
    assert contents(client) == ["a", "Hello, world!"]
    say(user("c"))


def test_a_client_that_hangs_up_leaves_the_session_as_it_was(server, engine, journal):
    engine.reply, engine.pace_s = "x" * 200, 0.01
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", CHAT, orjson.dumps(body(user("a"), stream=True)), HEADERS)
    with connection.getresponse() as response:
        response.readline()
    connection.close()
    until(lambda: events_of(journal))
    with httpx.Client(base_url=server.url, headers=AUTHORISED) as client:
        error_of(client.get("/v1/sessions/trip"), 404)
        engine.pace_s = 0.0
        assert client.post(CHAT, json=body(user("b"))).status_code == 200
        assert contents(client)[0] == "b"


def test_an_answer_cut_to_its_length_is_remembered(client, say):
    say(user("a"), max_tokens=4)
    assert contents(client) == ["a", "Hell"]


def test_a_turn_is_stored_when_its_usage_is_and_before_its_last_byte(client, journal, monkeypatch):
    """So a client that has seen the end finds the turn, and a turn that is found has been billed."""
    seen = []
    store = MemorySessionStore.store

    async def observed(self, key, token, value):
        seen.append(len(events_of(journal)))
        return await store(self, key, token, value)

    monkeypatch.setattr(MemorySessionStore, "store", observed)
    with client.stream("POST", CHAT, json=body(user("a"), stream=True)) as response:
        for line in response.iter_lines():
            if line == "data: [DONE]":
                break
    assert seen == [1]


def test_concurrent_turns_are_never_interleaved(server, engine):
    """Each is served after the one before it, or refused."""
    engine.pace_s = 0.002

    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, headers=AUTHORISED, timeout=30) as client:
            return await asyncio.gather(*(client.post(CHAT, json=body(user(f"{n}"))) for n in range(12)))

    responses = asyncio.run(ask_all())
    refused = [each for each in responses if each.status_code != 200]
    assert 1 <= len(refused) <= 11
    for each in refused:
        assert error_of(each, 409)["code"] == "session_busy"
        assert int(each.headers["retry-after"]) >= 1
    with httpx.Client(base_url=server.url, headers=AUTHORISED) as client:
        session = client.get("/v1/sessions/trip").json()
    assert [each["role"] for each in session["messages"]] == ["user", "assistant"] * (12 - len(refused))
    assert sorted(int(each.headers["x-turnpike-session-turns"]) for each in responses if each.status_code == 200) == [
        *range(12 - len(refused))
    ]


def test_a_session_deleted_while_it_answers_stays_deleted(server, engine):
    engine.reply, engine.pace_s = "x" * 30, 0.01
    done: list[httpx.Response] = []
    with httpx.Client(base_url=server.url, headers=AUTHORISED) as client:
        client.post(CHAT, json=body(user("a"), max_tokens=1))
        turn = threading.Thread(target=lambda: done.append(httpx.post(
            f"{server.url}{CHAT}", json=body(user("b")), headers=AUTHORISED
        )))  # fmt: skip
        turn.start()
        until(lambda: engine.live)
        assert client.delete("/v1/sessions/trip").status_code == 200
        turn.join(10)
        assert (done[0].status_code, done[0].headers["x-turnpike-session-kept"]) == (200, "false")
        error_of(client.get("/v1/sessions/trip"), 404)


def away(monkeypatch, method: str) -> None:
    async def fail(*_: object) -> None:
        raise SessionStoreAway("redis.internal is gone")

    monkeypatch.setattr(MemorySessionStore, method, fail)


def test_a_history_that_cannot_be_read_is_not_answered_without(client, engine, say, monkeypatch):
    say(user("a"))
    away(monkeypatch, "begin")
    away(monkeypatch, "read")
    for response in (client.post(CHAT, json=body(user("b"))), client.get("/v1/sessions/trip")):
        assert error_of(response, 503)["code"] == "service_unavailable"
        assert "redis" not in response.text
        assert response.headers["retry-after"]
    assert len(engine.calls) == 1
    assert client.post(CHAT, json={"model": "tiny", "messages": [user("b")]}).status_code == 200


def test_an_answer_whose_turn_cannot_be_stored_is_the_clients_all_the_same(client, engine, say, monkeypatch):
    with monkeypatch.context() as patch:
        away(patch, "store")
        assert say(user("a"))[1].headers["x-turnpike-session-kept"] == "false"
        streamed = say(user("a"), stream=True)[1].text
    assert streamed.endswith(": session turn not kept\n\ndata: [DONE]\n\n")
    assert ": session" not in say(user("b"), stream=True)[1].text
    assert contents(client) == ["b", "Hello, world!"]


def test_what_is_stored_and_cannot_be_read_is_said_until_it_is_deleted(client, sessions):
    key = SessionKey("tenant-1", "trip")

    async def damage() -> None:
        store = sessions._store
        await store.begin(key, "x")
        await store.store(key, "x", b"?")

    client.portal.call(damage)
    for response in (client.post(CHAT, json=body(user("a"))), client.get("/v1/sessions/trip")):
        assert error_of(response, 500)["code"] == "session_unreadable"
    assert client.delete("/v1/sessions/trip").status_code == 200
    assert client.post(CHAT, json=body(user("a"))).status_code == 200
