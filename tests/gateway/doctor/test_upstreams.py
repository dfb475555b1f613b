"""The findings of `turnpike doctor` on servers that run models."""

import json

import pytest

from gateway.config.settings import Settings
from gateway.doctor.finding import State
from gateway.doctor.models import models, served
from gateway.doctor.upstreams import upstreams
from tests.support.fake_upstream import FakeUpstream, Reply, error_reply, models_reply


@pytest.fixture
def upstream():
    with FakeUpstream().serving() as served:
        yield served


def found(tmp_path, **stated):
    (finding,) = upstreams(Settings(data_dir=tmp_path, upstreams={"big": {"model": "there"} | stated}))
    return finding


def test_a_server_that_has_the_model(tmp_path, upstream):
    finding = found(tmp_path, url=upstream.url)
    assert (finding.state, finding.what) == (State.OK, "upstream big")
    assert "there at" in finding.detail


@pytest.mark.parametrize(("reply", "state", "words"), [
    (error_reply(401), State.FAILURE, "refuses the API key"),
    (error_reply(404), State.WARNING, "answers 404"),
    (models_reply("other", "vllm", 10), State.FAILURE, "no model there, but other"),
    (Reply([b"<html>"], content_type="text/html"), State.OK, "there at"),
])  # fmt: skip
def test_what_a_server_may_answer(tmp_path, upstream, reply, state, words):
    upstream.models = reply
    finding = found(tmp_path, url=upstream.url, api_key="sk-hidden")
    assert finding.state is state
    assert words in finding.detail
    assert "sk-hidden" not in json.dumps([finding.detail, finding.remedy])


def test_a_server_that_is_not_there(tmp_path):
    finding = found(tmp_path, url="http://127.0.0.1:9/v1")
    assert finding.state is State.WARNING, "the gateway starts all the same"
    assert "does not answer" in finding.detail


@pytest.mark.parametrize("stated", [{"api_key_env": "NOT_SET"}, {"tokenizer": "/no/such/folder"}])
def test_settings_that_do_not_start(tmp_path, stated):
    assert found(tmp_path, url="http://127.0.0.1:9/v1", **stated).state is State.FAILURE


def test_a_gateway_without_models_of_its_own_is_well(tmp_path):
    settings = Settings(data_dir=tmp_path, models_dir=tmp_path, upstreams={"big": {"url": "http://127.0.0.1:9/v1"}})
    (finding,) = models(settings)
    assert finding.state is State.OK
    assert served(settings) == ("big",)
