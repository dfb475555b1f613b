"""Tokens counted by the model's tokenizer, where the server does not report them."""

import pytest
from starlette.testclient import TestClient

from gateway.errors import OperatorError
from gateway.generation.remote_prompt import UNKNOWN_TOKEN, bytes_of, token_for
from gateway.upstreams.text import upstream_text
from tests.support.error_envelope import error_of
from tests.support.fake_upstream import CUT, Reply, chat_chunk, chat_reply
from tests.support.gateway import AUTHORISED, CHAT, limit
from tests.support.tiny_tokenizer import write_tokenizer
from tests.support.upstream_app import BIG
from tests.support.usage_events import event_of

TEXT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    write_tokenizer(folder)
    return folder


@pytest.fixture
def counted(big, folder):
    big.stated["tokenizer"] = folder
    with TestClient(big.build(), headers=AUTHORISED) as client:
        yield client


def test_an_answer_without_usage_is_counted(counted, upstream, journal, big):
    words = TEXT.split(" ")
    upstream.reply = chat_reply(*(f"{word} " for word in words), usage=None)
    answer = counted.post(CHAT, json=BIG).json()
    assert "estimated" not in answer["usage"]
    text = big.model.text.counting
    prompt = text.encode_chat(BIG["messages"])
    event = event_of(journal)
    assert event.prompt_tokens == len(prompt)
    assert event.completion_tokens == sum(len(text.encode(f"{word} ", add_special_tokens=False)) for word in words)
    assert big.model.estimated_total == 0


def test_a_part_of_an_answer_is_counted(counted, upstream, journal, big):
    upstream.reply = Reply([chat_chunk(TEXT), 0.05, CUT])
    counted.post(CHAT, json=BIG | {"stream": True})
    text = big.model.text.counting
    assert event_of(journal).completion_tokens == len(text.encode(TEXT, add_special_tokens=False))


def test_a_prompt_over_the_window_is_not_sent(big, folder, upstream):
    big.stated |= {"tokenizer": folder, "max_model_len": 8}
    with TestClient(big.build(), headers=AUTHORISED) as client:
        error = error_of(client.post(CHAT, json=BIG), 400)
    assert error["code"] == "context_length_exceeded"
    assert not upstream.received


def test_a_budget_is_held_by_the_exact_count(counted, upstream, big, authenticator):
    prompt = len(big.model.text.counting.encode_chat(BIG["messages"]))
    limit(authenticator, tokens_per_day=prompt + 3)
    counted.post(CHAT, json=BIG)
    assert upstream.bodies[0]["max_tokens"] == 3


def test_tokenize_and_back(counted):
    tokens = counted.post("/v1/tokenize", json={"model": "big", "prompt": TEXT}).json()["tokens"]
    assert counted.post("/v1/detokenize", json={"model": "big", "tokens": tokens}).json()["prompt"] == TEXT


def test_a_file_in_the_folder_will_do(folder):
    assert upstream_text("big", folder / "tokenizer.json").count(TEXT) == upstream_text("big", folder).count(TEXT)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(OperatorError, match=r"upstreams\.big: tokenizer"):
        upstream_text("big", tmp_path)


@pytest.mark.parametrize("label", [b"", b"a", "é".encode(), b"\x00\xff", b"x" * 40])
def test_a_tokens_text_is_in_its_id(label):
    token = token_for(label)
    assert token < 0
    assert bytes_of(token) == label
    assert upstream_text("big", None).tokenizer.token_bytes(token) == label


def test_the_id_of_an_unknown_token_has_no_text():
    assert token_for(b"") == UNKNOWN_TOKEN
