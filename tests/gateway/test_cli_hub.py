"""`turnpike models fetch OWNER/NAME`, and a server that finds what it fetched by the same name."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub.utils import close_session

from engine.request import SamplingParams
from gateway.config.settings import Settings, load_settings
from gateway.errors import OperatorError
from gateway.management.cli.options import parse_models
from gateway.process.catalog import find_model
from gateway.process.engine_loading import load_engine
from tests.support.command_line import failure, ok, turnpike
from tests.support.fake_hub import FakeHub, Refusal, serving
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
    assert "names another file than b.gguf" in failure(1, "models", "fetch", "acme/x:a.gguf", "--file", "b.gguf")
    with pytest.raises(OperatorError, match=r"there is no acme/absent; .*turnpike models fetch"):
        find_model("acme/absent", {}, Path("models"), lambda *_: None)


def test_one_gguf_file_of_several_is_fetched_by_its_name(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["acme/tiny"] = {"tiny.Q4_0.gguf": b"GGUF4", "sub/tiny.Q8_0.gguf": b"GGUF8"}
    result = turnpike("models", "fetch", "acme/tiny:sub/tiny.Q8_0.gguf")
    path = tmp_path / "cache" / "turnpike" / "models" / "acme--tiny" / "sub" / "tiny.Q8_0.gguf"
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    assert path.read_bytes() == b"GGUF8"
    stated = {"a": "acme/tiny:sub/tiny.Q8_0.gguf", "b": "acme/tiny:tiny.Q4_0.gguf"}
    models = load_settings(models=stated).models
    assert models["a"] == path
    assert not models["b"].exists()


def test_memory_and_download_are_said_before_a_weight_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    hub.add_folder("acme/tiny", make_checkpoint(tmp_path / "published", "llama"))
    hub.refusals["acme/tiny/model.safetensors"] = Refusal(503)
    result = turnpike("models", "fetch", "acme/tiny")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    for line, words in zip(
        lines, ("MiB to download", "KiB of KV a token", "memory: ", "fetching ", "answers 503"), strict=True
    ):
        assert "acme/tiny" in line
        assert words in line


def test_what_cannot_be_served_is_refused_before_a_weight_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "published", "llama")
    config = json.loads((folder / "config.json").read_text())
    hub.add_folder("acme/odd", folder)
    hub.repositories["acme/odd"]["config.json"] = json.dumps({**config, "model_type": "mamba"}).encode()
    hub.add_folder("acme/mute", folder)
    hub.repositories["acme/mute"]["tokenizer.json"] = b"{}"
    assert "acme/odd cannot be served: " in (refused := turnpike("models", "fetch", "acme/odd").stderr)
    assert "mamba" in refused
    assert "acme/mute cannot be served: tokenizer.json" in turnpike("models", "fetch", "acme/mute").stderr
    assert not any(path.endswith(".safetensors") for path, _ in hub.requests)


class TestServe:
    """`turnpike serve --model`, up to the load."""

    @pytest.fixture(autouse=True)
    def _loads_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load_engine(settings: Settings, report: object) -> None:
            raise OperatorError(f"would load {settings.models}")

        monkeypatch.setattr("gateway.process.serve.load_engine", load_engine)
        monkeypatch.setattr("gateway.process.serve.configure_logging", lambda *_: None)
        monkeypatch.setattr("gateway.process.serve.preload", lambda *_: None)

    def test_a_repository_is_fetched_and_served_by_its_own_name(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.add_folder("acme/tiny", make_checkpoint(tmp_path / "published", "llama"))
        path = tmp_path / "cache" / "turnpike" / "models" / "acme--tiny"
        for _ in range(2):
            result = turnpike("serve", "--free", "--port", "0", "--model", "acme/tiny")
            assert (result.exit_code, result.stderr.splitlines()[-1]) == (
                1,
                f"turnpike: would load {{'tiny': {path!r}}}",
            )
        (price,) = json.loads(ok("price", "list", "--json"))
        assert (price["model"], price["output_dollars_per_million"]) == ("tiny", "0.00")

    def test_nothing_is_fetched_for_a_model_without_a_price(self, hub: FakeHub) -> None:
        assert "the model mine has no price" in failure(1, "serve", "--port", "0", "--model", "mine=acme/tiny")
        assert hub.requests == []

    def test_the_hubs_refusal_names_the_model(self, hub: FakeHub) -> None:
        message = turnpike("serve", "--free", "--port", "0", "--model", "acme/absent").stderr
        assert "has no model acme/absent" in message.splitlines()[-1]

    def test_a_price_that_is_set_stays(self, tmp_path: Path) -> None:
        folder = make_checkpoint(tmp_path / "published", "llama")
        ok("price", "set", "published", "--input", "1", "--output", "2")
        turnpike("serve", "--free", "--port", "0", "--model", str(folder))
        assert [each["output_dollars_per_million"] for each in json.loads(ok("price", "list", "--json"))] == ["2.00"]


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("acme/tiny-GGUF:sub/tiny.Q4_0.gguf", "tiny-GGUF"),
        ("/models/tiny.Q4_0.gguf", "tiny.Q4_0"),
        ("/models/a=b/tiny", "tiny"),
        ("smollm2", "smollm2"),
        ("mine=acme/tiny", "mine"),
        ("acme/tiny=/models/tiny", "acme/tiny"),
    ],
)
def test_the_name_that_a_model_is_served_under(stated: str, name: str) -> None:
    assert list(parse_models([stated])) == [name]
