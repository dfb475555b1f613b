"""`turnpike models fetch OWNER/NAME`, and a server that finds what it fetched by the same name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub.utils import close_session

from engine.request import SamplingParams
from gateway.config.settings import load_settings
from gateway.errors import OperatorError
from gateway.process.catalog import find_model
from gateway.process.serve import load_engine
from tests.support.command_line import failure, turnpike
from tests.support.fake_hub import FakeHub, serving
from tests.support.tiny_models import make_checkpoint

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
        close_session()


def test_what_was_fetched_is_served_by_its_name(hub: FakeHub, tmp_path: Path) -> None:
    hub.add_folder("acme/tiny", make_checkpoint(tmp_path / "published", "llama"))
    result = turnpike("models", "fetch", "acme/tiny", "--revision", "main")
    path = tmp_path / "cache" / "turnpike" / "models" / "acme--tiny"
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    assert "fetching acme/tiny: " in result.stderr
    Path("turnpike.toml").write_text("dtype = 'float32'\nkv_cache_bytes = 4194304\n[models]\nchat = 'acme/tiny'\n")
    settings = load_settings()
    assert settings.models == {"chat": path}
    assert find_model("acme/tiny", {}, settings.models_dir, lambda *_: None) == path
    with load_engine(settings, lambda *_: None) as engine:
        ((completion,),) = engine.generate("chat", ["Hello"], SamplingParams(max_tokens=4, ignore_eos=True))
    assert completion.usage.completion_tokens == 4


def test_a_path_that_is_there_comes_first(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["acme/tiny"] = {"tiny.gguf": b"GGUF"}
    turnpike("models", "fetch", "acme/tiny", "--file", "tiny.gguf")
    fetched = tmp_path / "cache" / "turnpike" / "models" / "acme--tiny" / "tiny.gguf"
    assert load_settings(models={"chat": "acme/tiny"}).models == {"chat": fetched}
    Path("acme/tiny").mkdir(parents=True)
    assert load_settings(models={"chat": "acme/tiny"}).models == {"chat": Path.cwd() / "acme" / "tiny"}


def test_refusals_are_one_line(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no model acme/absent" in failure(1, "models", "fetch", "acme/absent")
    assert "--revision and --file are for" in failure(1, "models", "fetch", "smollm2", "--file", "x.gguf")
    assert "is not the name of a repository" in failure(1, "models", "fetch", "/models/tiny")
    monkeypatch.setattr("gateway.process.serve.configure_logging", lambda *_: None)
    message = failure(1, "serve", "--model", "a=acme/absent", "--port", "0")
    assert "turnpike models fetch OWNER/NAME" in message
    with pytest.raises(OperatorError, match=r"there is no acme/absent; .*turnpike models fetch"):
        find_model("acme/absent", {}, Path("models"), lambda *_: None)
