"""Details of an answer besides its text."""

import pytest

from tests.support.error_envelope import error_of
from tests.support.fake_model import BOS
from tests.support.gateway import CHAT, USER
from tests.support.sse import chunks

COMPLETIONS = "/v1/completions"
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
RENDERED = [BOS, *b"<user>hi\n<assistant>"]


def post(client, path: str, **fields):
    prompt = {"messages": [USER]} if path == CHAT else {"prompt": "ab"}
    response = client.post(path, json={"model": "tiny"} | prompt | fields)
    assert response.status_code == 200, response.text
    return response


def test_token_ids_of_a_chat(client, engine):
    engine.reply = "é!"
    body = post(client, CHAT, return_token_ids=True, n=2).json()
    assert body["prompt_token_ids"] == RENDERED
    assert [choice["token_ids"] for choice in body["choices"]] == [[0xC3, 0xA9, 0x21]] * 2
    first, *rest = chunks(post(client, CHAT, return_token_ids=True, n=2, stream=True))
    assert first["prompt_token_ids"] == RENDERED
    assert not any("prompt_token_ids" in chunk for chunk in rest)
    for index in range(2):
        mine = [c["choices"][0] for c in rest if c["choices"][0]["index"] == index]
        assert [token for each in mine for token in each.get("token_ids", [])] == [0xC3, 0xA9, 0x21]


def test_token_ids_of_completions(client):
    asked = {"prompt": ["ab", "c"], "n": 2, "max_tokens": 2, "return_token_ids": True, "echo": True}
    body = post(client, COMPLETIONS, **asked).json()
    assert [c["prompt_token_ids"] for c in body["choices"]] == [[BOS, 97, 98]] * 2 + [[BOS, 99]] * 2
    assert [c["token_ids"] for c in body["choices"]] == [list(b"He")] * 4
    seen = chunks(post(client, COMPLETIONS, stream=True, **asked))
    for expected in body["choices"]:
        first, *rest = (c["choices"][0] for c in seen if c["choices"][0]["index"] == expected["index"])
        assert first["prompt_token_ids"] == expected["prompt_token_ids"]
        assert not any("prompt_token_ids" in each for each in rest)
        assert [token for each in (first, *rest) for token in each["token_ids"]] == expected["token_ids"]


def test_nobody_is_told_who_does_not_ask(client):
    for path in (CHAT, COMPLETIONS):
        body = post(client, path).json()
        assert not {"prompt_token_ids", "prompt_logprobs"} & ({*body} | {*body["choices"][0]})
        assert "token_ids" not in body["choices"][0]


def entry(logprob: float, rank: int | None, token: str) -> dict:
    return {"logprob": logprob, "rank": rank, "decoded_token": token}


def test_logprobs_of_a_prompt(client, engine):
    body = post(client, COMPLETIONS, prompt=["ab", "c"], n=2, prompt_logprobs=2).json()
    scored = [
        None,
        {"97": entry(-0.5, 1, "a"), "98": entry(-1.5, 2, "b")},
        {"98": entry(-0.5, 1, "b"), "99": entry(-1.5, 2, "c")},
    ]
    other = [None, {"99": entry(-0.5, 1, "c"), "100": entry(-1.5, 2, "d")}]
    assert [c["prompt_logprobs"] for c in body["choices"]] == [scored, scored, other, other]
    assert body["choices"][0]["logprobs"] is None
    body = post(client, CHAT, prompt_logprobs=0).json()
    assert len(body["prompt_logprobs"]) == len(RENDERED)
    assert body["prompt_logprobs"][1] == {str(ord("<")): entry(-9999.0, None, "<")}


def test_an_echo_keeps_its_own_number_of_alternatives(client, engine):
    [choice] = post(client, COMPLETIONS, echo=True, logprobs=1, prompt_logprobs=3, max_tokens=1).json()["choices"]
    assert engine.calls[0].params.prompt_logprobs == 3
    assert choice["logprobs"]["top_logprobs"] == [None, {"a": -0.5}, {"b": -0.5}, {"H": -0.5}]
    assert [len(each) for each in choice["prompt_logprobs"][1:]] == [3, 3]


def test_logprobs_of_prompts_are_bounded(client, engine):
    asked = {"model": "tiny", "prompt": ["p" * 400] * 16, "prompt_logprobs": 10}
    assert error_of(client.post(COMPLETIONS, json=asked), 400)["param"] == "prompt_logprobs"
    assert engine.calls == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_usage_so_far(client, engine, path):
    engine.reply = "abc"
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    *seen, last = chunks(post(client, path, n=2, **options))
    prompt_tokens = last["usage"]["prompt_tokens"]
    for index in range(2):
        usages = [c["usage"] for c in seen if c["choices"][0]["index"] == index]
        assert all(usage["total_tokens"] == prompt_tokens + usage["completion_tokens"] for usage in usages)
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts == sorted(counts)
        assert (counts[0], counts[-1]) == (1, 3)
    assert last["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, b"fg"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, b"fg"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, b"abc"),
        ({"truncate_prompt_tokens": 600}, b"abcdefg"),
        ({"truncate_prompt_tokens": -1}, b"abcdefg"),
    ],
)
def test_a_prompt_may_be_cut(client, engine, fields, kept):
    body = post(client, COMPLETIONS, prompt=list(b"abcdefg"), echo=True, max_tokens=1, **fields).json()
    assert bytes(engine.calls[0].prompt) == kept
    assert body["choices"][0]["text"] == kept.decode() + "H"
    assert body["usage"]["prompt_tokens"] == len(kept)


def test_a_prompt_may_be_cut_to_what_the_window_has_room_for(client, engine):
    post(client, COMPLETIONS, prompt="p" * 600, truncate_prompt_tokens=-1, max_tokens=12)
    post(client, CHAT, messages=[USER | {"content": "p" * 600}], truncate_prompt_tokens=-1, max_tokens=12)
    assert [len(call.prompt) for call in engine.calls] == [500, 500]
    response = client.post(COMPLETIONS, json={"model": "tiny", "prompt": "ab", "truncate_prompt_tokens": 0})
    assert error_of(response, 400)["param"] == "prompt"


def test_a_prompt_without_special_tokens(client, engine):
    post(client, COMPLETIONS, add_special_tokens=False)
    assert bytes(engine.calls[0].prompt) == b"ab"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_how_the_text_is_shaped_reaches_the_engine(client, engine, path):
    post(client, path, allowed_token_ids=[65, 66], skip_special_tokens=False, include_stop_str_in_output=True)
    params = engine.calls[0].params
    assert (params.allowed_token_ids, params.skip_special_tokens, params.include_stop) == ({65, 66}, False, True)
    post(client, path, bad_words=["x"], spaces_between_special_tokens=True)
    assert engine.calls[1].params.grammar.param == "bad_words"
