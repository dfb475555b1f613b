"""Responses that are gone on from, read and deleted."""

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from gateway.sessions import Sessions, SessionStoreAway
from gateway.sessions.memory import MemorySessionStore
from gateway.tenancy.grants import KeyScope
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, KEY, PREMIUM_KEY
from tests.support.responses_bodies import PATH, body, shown
from tests.support.usage_events import events_of

OTHER_TENANT = {"authorization": f"Bearer {PREMIUM_KEY}"}


def text_of(response: dict) -> str:
    return response["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_with_what_was_said(ask, watch, engine, stream):
    engine.reply = "In Rome."
    first = watch("Where?")[-1]["response"] if stream else ask("Where?")
    second = ask("When?", previous_response_id=first["id"])
    assert shown(engine) == "<user>Where?\n<assistant>In Rome.\n<user>When?\n"
    assert second["previous_response_id"] == first["id"]
    ask("Why?", previous_response_id=second["id"])
    assert shown(engine) == "<user>Where?\n<assistant>In Rome.\n<user>When?\n<assistant>In Rome.\n<user>Why?\n"


def test_one_response_goes_on_in_two_ways(ask, engine):
    first = ask("Where?")["id"]
    for question in ("When?", "Who?"):
        ask(question, previous_response_id=first)
        assert shown(engine) == f"<user>Where?\n<assistant>Hello, world!\n<user>{question}\n"


def test_instructions_are_not_carried_over(ask, engine):
    first = ask("a", instructions="be brief")["id"]
    ask("b", previous_response_id=first)
    assert "be brief" not in shown(engine)
    ask("b", previous_response_id=first, instructions="be long")
    assert shown(engine).startswith("<system>be long\n<user>a\n")


def test_what_was_asked_not_to_be_stored_is_not(client, ask):
    response = client.post(PATH, json=body(store=False))
    assert response.json()["store"] is False
    assert "x-turnpike-response-kept" not in response.headers
    error_of(client.get(f"{PATH}/{response.json()['id']}"), 404)


def test_a_stored_response_is_read_as_it_was_answered(client, ask, watch):
    for answered in (ask(metadata={"a": "b"}), watch()[-1]["response"], ask(max_output_tokens=2)):
        assert client.get(f"{PATH}/{answered['id']}").json() == answered


def test_a_whole_answer_says_that_it_is_kept(client):
    assert client.post(PATH, json=body()).headers["x-turnpike-response-kept"] == "true"


def test_a_deleted_response_is_gone(client, ask):
    id = ask()["id"]
    assert client.delete(f"{PATH}/{id}").json() == {"id": id, "object": "response", "deleted": True}
    for gone in (client.get, client.delete):
        assert error_of(gone(f"{PATH}/{id}"), 404)["code"] == "response_not_found"
    error = error_of(client.post(PATH, json=body(previous_response_id=id)), 404)
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")


def test_what_followed_a_deleted_response_goes_on(client, ask, engine):
    first = ask("a")["id"]
    second = ask("b", previous_response_id=first)["id"]
    client.delete(f"{PATH}/{first}")
    ask("c", previous_response_id=second)
    assert shown(engine).startswith("<user>a\n")


@pytest.mark.parametrize("id", ["resp_1", "x", "resp_" + "0" * 32, "resp_" + "0" * 31 + "%2F"])
def test_what_is_no_id_is_not_there(client, id):
    error_of(client.get(f"{PATH}/{id}"), 404)
    error_of(client.delete(f"{PATH}/{id}"), 404)
    error_of(client.get(f"{PATH}/{id}/input_items"), 404)


def test_another_tenants_response_is_not_there(client, ask, engine):
    response = ask("my secret")
    id, [item] = response["id"], response["output"]
    calls = len(engine.calls)
    for answer in (
        client.get(f"{PATH}/{id}", headers=OTHER_TENANT),
        client.get(f"{PATH}/{id}/input_items", headers=OTHER_TENANT),
        client.delete(f"{PATH}/{id}", headers=OTHER_TENANT),
        client.post(PATH, json=body(previous_response_id=id), headers=OTHER_TENANT),
        client.post(PATH, json=body([{"type": "item_reference", "id": item["id"]}]), headers=OTHER_TENANT),
    ):
        error_of(answer, 404)
        assert "secret" not in answer.text
    assert len(engine.calls) == calls
    assert client.get(f"{PATH}/{id}").status_code == 200


def test_a_session_of_the_same_name_is_another_thing(client, ask):
    error_of(client.get(f"/v1/sessions/{ask()['id']}"), 404)


def test_input_items_are_listed_by_pages(client, ask):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    given = [*({"role": "user", "content": f"{i}"} for i in range(4)), call]
    id = ask([*given, {"type": "function_call_output", "call_id": "c", "output": "3"}])["id"]
    url = f"{PATH}/{id}/input_items"
    newest = client.get(url).json()
    assert [item["type"] for item in newest["data"]] == ["function_call_output", "function_call", *["message"] * 4]
    assert newest["has_more"] is False
    oldest = client.get(url, params={"order": "asc", "limit": 2}).json()
    assert [item["content"][0]["text"] for item in oldest["data"]] == ["0", "1"]
    assert (oldest["has_more"], oldest["last_id"]) == (True, oldest["data"][1]["id"])
    rest = client.get(url, params={"order": "asc", "after": oldest["last_id"], "limit": 100}).json()
    assert oldest["data"] + rest["data"] == newest["data"][::-1]


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=msg_1", "before=1"])
def test_a_list_names_what_is_wrong_with_its_query(client, ask, query):
    error = error_of(client.get(f"{PATH}/{ask()['id']}/input_items?{query}"), 400)
    assert error["param"] == query.partition("=")[0]


def test_stored_responses_are_not_streamed(client, ask):
    assert error_of(client.get(f"{PATH}/{ask()['id']}?stream=true"), 400)["param"] == "stream"


def test_items_are_referred_to_by_their_ids(client, ask, engine):
    first = ask("Where?")
    [asked] = client.get(f"{PATH}/{first['id']}/input_items").json()["data"]
    references = [{"type": "item_reference", "id": asked["id"]}, {"id": first["output"][0]["id"]}]
    second = ask([*references, {"role": "user", "content": "When?"}])
    assert shown(engine) == "<user>Where?\n<assistant>Hello, world!\n<user>When?\n"
    listed = client.get(f"{PATH}/{second['id']}/input_items?order=asc").json()["data"]
    assert listed[:2] == [asked, first["output"][0]]


def test_a_reference_to_nothing_is_refused(client, ask, engine):
    hex = ask()["id"].removeprefix("resp_")
    for id in ("msg_1", f"msg_{hex}o0001", f"msg_{'0' * 32}o0000"):
        error = error_of(client.post(PATH, json=body([{"type": "item_reference", "id": id}])), 404)
        assert (error["param"], error["code"]) == ("input[0].id", "item_not_found")


def test_references_are_bounded(client, ask):
    ids = [ask()["output"][0]["id"] for _ in range(17)]
    references = [{"type": "item_reference", "id": id} for id in ids]
    assert client.post(PATH, json=body(references[:16])).status_code == 200
    assert error_of(client.post(PATH, json=body(references)), 400)["param"] == "input[16].id"


def test_a_key_needs_the_scope_of_chat(client, ask, authenticator):
    id = ask()["id"]
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], scopes=frozenset({KeyScope.COMPLETIONS}))
    assert error_of(client.post(PATH, json=body()), 403)["code"] == "scope_not_allowed"
    assert error_of(client.get(f"{PATH}/{id}"), 403)["code"] == "scope_not_allowed"
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], scopes=frozenset({KeyScope.CHAT}))
    assert client.post(PATH, json=body()).status_code == 200


class FlakyStore(MemorySessionStore):
    away = False

    async def begin(self, key, token):
        if self.away:
            raise SessionStoreAway("gone")
        return await super().begin(key, token)

    async def read(self, key):
        if self.away:
            raise SessionStoreAway("gone")
        return await super().read(key)


class TestWithTheStoreAway:
    @pytest.fixture
    def store(self):
        return FlakyStore()

    @pytest.fixture
    def sessions(self, store):
        return Sessions(store, wait_s=0.2)

    def test_answers_say_that_they_are_not_kept_and_going_on_is_refused(self, client, ask, watch, store, journal):
        first = ask()["id"]
        store.away = True
        response = client.post(PATH, json=body())
        assert (response.status_code, response.json()["store"]) == (200, False)
        assert response.headers["x-turnpike-response-kept"] == "false"
        assert watch()[-1]["response"]["store"] is False
        for refused in (client.post(PATH, json=body(previous_response_id=first)), client.get(f"{PATH}/{first}")):
            assert error_of(refused, 503)["code"] == "service_unavailable"
        store.away = False
        assert client.post(PATH, json=body(previous_response_id=first)).status_code == 200


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"response": {}}'])
async def test_one_that_cannot_be_read_is_a_fault_and_can_be_deleted(app, sessions, data):
    id = "resp_" + "1" * 32
    await sessions.responses.put("tenant-1", id, data)
    with TestClient(app, headers=AUTHORISED) as client:
        for answer in (client.get(f"{PATH}/{id}"), client.post(PATH, json=body(previous_response_id=id))):
            assert error_of(answer, 500)["code"] == "response_unreadable"
        assert client.delete(f"{PATH}/{id}").status_code == 200


def test_one_that_is_too_large_is_answered_and_not_kept(client, ask, monkeypatch):
    monkeypatch.setattr("gateway.sessions.records.MAX_RECORD_BYTES", 100)
    response = client.post(PATH, json=body())
    assert response.json()["store"] is False
    assert response.headers["x-turnpike-response-kept"] == "false"


def test_it_is_stored_before_the_last_byte_and_after_billing(client, sessions, journal, monkeypatch):
    seen = []
    put = sessions.responses.put

    async def watched(*arguments):
        seen.append(len(events_of(journal)))
        return await put(*arguments)

    monkeypatch.setattr(sessions.responses, "put", watched)
    text = client.post(PATH, json=body(stream=True)).text
    assert seen == [1]
    assert '"response.completed"' in text
