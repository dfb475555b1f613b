"""POST /v1/completions."""

import math

import pytest

from tests.support.error_envelope import error_of
from tests.support.fake_model import BOS, FakeInfilling
from tests.support.sse import chunks
from tests.support.usage_events import events_of


def complete(client, **fields):
    return client.post("/v1/completions", json={"model": "tiny", "prompt": "ab"} | fields)


def choices(client, **fields) -> list:
    response = complete(client, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def test_whole_answer(client):
    body = complete(client).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "Hello, world!", "logprobs": None, "finish_reason": "stop"}]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 13)


def test_sixteen_tokens_by_default_or_what_the_window_has_left(client, engine):
    engine.reply = "x" * 1000
    assert len(choices(client)[0]["text"]) == 16
    assert len(choices(client, prompt="p" * 505)[0]["text"]) == 512 - 506


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(BOS, 97, 98)]),
        (["ab", "c"], [(BOS, 97, 98), (BOS, 99)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ],
)
def test_forms_of_a_prompt(client, engine, prompt, expected):
    assert len(choices(client, prompt=prompt)) == len(expected)
    assert [call.prompt for call in engine.calls] == expected
    assert len({call.request_id for call in engine.calls}) == len(expected)


def test_choices_of_a_batch_are_numbered_prompt_by_prompt(client):
    body = complete(client, prompt=["a", "bb"], n=2, echo=True, max_tokens=2).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in body["choices"]] == ["aHe", "aHe", "bbHe", "bbHe"]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (2 + 3, 8)


def test_a_streamed_batch_says_the_same(client):
    fields = {"prompt": ["a", "bb"], "n": 2, "echo": True, "max_tokens": 3, "logprobs": 1}
    whole = complete(client, **fields).json()
    *seen, last = chunks(complete(client, stream=True, stream_options={"include_usage": True}, **fields))
    assert last["usage"] == whole["usage"]
    for expected in whole["choices"]:
        mine = [c["choices"][0] for c in seen if c["choices"][0]["index"] == expected["index"]]
        assert "".join(c["text"] for c in mine) == expected["text"]
        assert [c["finish_reason"] for c in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
        for field, values in expected["logprobs"].items():
            assert [value for c in mine if c["logprobs"] for value in c["logprobs"][field]] == values


def test_echo_with_logprobs_scores_the_prompt(client):
    [choice] = choices(client, prompt="ab", echo=True, logprobs=1, max_tokens=1)
    assert choice["text"] == "abH"
    assert choice["logprobs"] == {
        "tokens": ["<s>", "a", "b", "H"],
        "token_logprobs": [None, -0.5, -0.5, -0.5],
        "top_logprobs": [None, {"a": -0.5}, {"b": -0.5}, {"H": -0.5}],
        "text_offset": [0, 3, 4, 5],
    }


def test_echo_may_ask_for_no_answer(client, engine):
    [choice] = choices(client, prompt=[97, 98], echo=True, logprobs=0, max_tokens=0)
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab", ["a", "b"])
    assert choice["finish_reason"] == "length"
    assert engine.calls[0].params.prompt_logprobs == 0
    [choice] = choices(client, prompt="p" * 511, echo=True, max_tokens=0)
    assert choice["text"] == "p" * 511


def test_logprobs_have_the_drawn_token_among_the_top(client):
    [choice] = choices(client, logprobs=0, max_tokens=1)
    assert choice["logprobs"]["top_logprobs"] == [{"H": -9999.0}]


def test_offsets_count_characters_not_bytes(client, engine):
    engine.reply = "é!"
    [choice] = choices(client, logprobs=0)
    assert choice["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1]


def test_the_likeliest_of_best_of_choices_are_told_and_all_are_billed(client, engine, journal):
    engine.sure_of = {0: 0.2, 1: 0.9, 2: 0.5}
    asked = {"prompt": ["ab", "c"], "n": 2, "best_of": 3, "max_tokens": 4}
    body = complete(client, logprobs=0, **asked).json()
    assert [(c["index"], math.exp(c["logprobs"]["token_logprobs"][0])) for c in body["choices"]] == [
        (i, pytest.approx(sure)) for i, sure in enumerate([0.9, 0.5, 0.9, 0.5])
    ]
    assert body["usage"]["completion_tokens"] == 2 * 3 * 4
    (event,) = events_of(journal)
    assert (event.prompt_tokens, event.completion_tokens) == (3 + 2, 24)
    assert [choice["logprobs"] for choice in choices(client, **asked)] == [None] * 4


def test_best_of_may_equal_n(client, engine):
    assert len(choices(client, n=2, best_of=2, stream=False)) == 2
    assert (engine.calls[0].params.n, engine.calls[0].params.logprobs) == (2, None)
    for fields, code in (
        ({"n": 3, "best_of": 2}, "invalid_value"),
        ({"best_of": 2, "stream": True}, "unsupported_parameter"),
    ):
        error = error_of(complete(client, **fields), 400)
        assert (error["param"], error["code"]) == ("best_of", code)


def test_what_stands_between_a_prompt_and_its_suffix(client, engine):
    engine.models["tiny"].text.infilling = FakeInfilling()
    body = complete(client, prompt=["ab", ""], suffix="yz", stop_token_ids=[5]).json()
    assert [choice["text"] for choice in body["choices"]] == ["Hello, world!"] * 2
    assert [bytes(call.prompt[1:]) for call in engine.calls] == [b"[ab|yz]", b"[|yz]"]
    assert engine.calls[0].params.stop_token_ids == (5, ord("~"))
    assert body["usage"]["prompt_tokens"] == 8 + 6
    complete(client, suffix="yz", ignore_eos=True)
    assert engine.calls[-1].params.stop_token_ids == ()
    complete(client, suffix="")
    assert engine.calls[-1].prompt == (BOS, 97, 98)


def test_a_prompt_that_does_not_fit_stops_the_batch_before_it_starts(client, engine):
    response = complete(client, prompt=["a", "p" * 600])
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "prompt", "context_length_exceeded")
    assert engine.calls == []


def test_a_token_outside_the_vocabulary(client, engine):
    response = complete(client, prompt=[[97], [100_000]])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert engine.live == set()
