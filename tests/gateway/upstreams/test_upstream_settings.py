"""The settings of upstreams: what is refused, where keys come from, and that none is shown."""

import json

import pytest

from gateway.config.safety import readable_secrets, stores_without_tls
from gateway.config.setting_sources import SettingsError
from gateway.config.settings import load_settings
from gateway.config.shown import shown
from gateway.errors import OperatorError

URL = "http://vllm.internal:8000/v1"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def big(**stated):
    return load_settings(upstreams={"big": {"url": URL} | stated}).upstreams["big"]


@pytest.mark.parametrize(("stated", "words"), [
    ({"url": "ftp://host/v1"}, "http"),
    ({"url": "http://user:secret@host/v1"}, "api_key"),
    ({"url": "http://host/v1?key=secret"}, "http"),
    ({"url": "http://ho st/v1"}, "characters"),
    ({"url": "http://host:99999/v1"}, "[Pp]ort"),
    ({"api_key": "a", "api_key_env": "B"}, "exclude one another"),
    ({"max_concurrent": 0}, "greater than or equal"),
    ({"nonsense": 1}, "unknown key"),
])  # fmt: skip
def test_what_is_refused(stated, words):
    with pytest.raises(SettingsError, match=words) as raised:
        big(**stated)
    assert "secret" not in str(raised.value)


def test_a_name_is_of_one_model():
    with pytest.raises(SettingsError, match="another name"):
        load_settings(models={"big": "somewhere"}, upstreams={"big": {"url": URL}})


@pytest.mark.parametrize("stated", [
    {"small_models": {"big": "tiny"}},
    {"small_models": {"tiny": "big"}},
    {"model_versions": {"both": {"big": 1, "tiny": 1}}},
    {"aliases": {"gpt-4o": "big"}},
])  # fmt: skip
def test_it_is_named_as_a_model_of_the_process(stated):
    load_settings(models={"tiny": "somewhere"}, upstreams={"big": {"url": URL}}, **stated)


def test_the_end_of_the_url_does_not_matter():
    assert big(url=URL + "/").url == URL


def test_a_key_from_each_source(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_KEY", "from-env")
    (tmp_path / "key").write_text("from-file\n")
    assert big().secret() is None
    assert big(api_key="stated").secret() == "stated"
    assert big(api_key_env="VLLM_KEY").secret() == "from-env"
    assert big(api_key_file=tmp_path / "key").secret() == "from-file"


@pytest.mark.parametrize("stated", [
    {"api_key_env": "NOT_SET"},
    {"api_key_file": "no/such/file"},
    {"api_key": "two\nlines"},
])  # fmt: skip
def test_a_key_that_cannot_be_read(stated):
    upstream = big(**stated)
    with pytest.raises(OperatorError, match="upstreams"):
        upstream.secret()
    assert upstream.readable_secret() is None


def test_no_key_is_shown_and_all_are_redacted(monkeypatch):
    monkeypatch.setenv("VLLM_KEY", "from-env")
    monkeypatch.setenv("TURNPIKE_UPSTREAMS", json.dumps({"a": {"url": URL, "api_key": "sk-stated"}}))
    settings = load_settings()
    assert "sk-stated" not in str([each.value for each in shown(settings)])
    assert "sk-stated" not in repr(settings)
    assert "sk-stated" in settings.secret_values()
    assert "from-env" in load_settings(upstreams={"b": {"url": URL, "api_key_env": "VLLM_KEY"}}).secret_values()


def test_what_serve_warns_of(tmp_path):
    file = tmp_path / "turnpike.toml"
    file.write_text(f'[upstreams.big]\nurl = "{URL}"\napi_key = "sk-stated"\n')
    file.chmod(0o644)
    settings = load_settings()
    assert readable_secrets(settings) == [file]
    assert stores_without_tls(settings) == ["upstreams.big"]
    assert not stores_without_tls(load_settings(upstreams={"big": {"url": "https://host/v1"}}))
    assert not stores_without_tls(load_settings(upstreams={"big": {"url": "http://127.0.0.1:8000/v1"}}))
