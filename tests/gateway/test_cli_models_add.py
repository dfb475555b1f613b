"""`turnpike models add`: a model, its price and its entry in the settings in one step."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub.utils import close_session

from engine.memory.kv_memory import KVBudget
from gateway.config.settings import load_settings
from gateway.config.toml_edit import set_in_table
from gateway.errors import OperatorError
from gateway.process.engine_loading import load_engine
from tests.support.command_line import failure, ok, turnpike
from tests.support.fake_hub import FakeHub, serving
from tests.support.tiny_models import make_checkpoint

pytestmark = pytest.mark.usefixtures("no_settings")

PRICE = ("--input", "0.15", "--output", "0.60")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
        close_session()


def prices() -> dict[str, str]:
    return {each["model"]: each["output_dollars_per_million"] for each in json.loads(ok("price", "list", "--json"))}


def test_a_repository_is_fetched_priced_and_entered(hub: FakeHub, tmp_path: Path) -> None:
    hub.add_folder("acme/tiny", make_checkpoint(tmp_path / "published", "llama"))
    result = turnpike("models", "add", "acme/tiny", *PRICE)
    assert result.exit_code == 0, result.output
    assert "acme/tiny: " in result.stdout
    assert "MiB to download" in result.stdout
    assert result.stdout.index("to download") < result.stdout.index("memory: ")
    path = tmp_path / "cache" / "turnpike" / "models" / "acme--tiny"
    assert load_settings().models == {"tiny": path}
    assert prices() == {"tiny": "0.60"}
    (entry,) = json.loads(ok("audit", "list", "--json"))
    assert (entry["action"], entry["resource"]) == ("create", "price")


def test_a_model_that_does_not_fit_is_not_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_folder("acme/tiny", make_checkpoint(tmp_path / "published", "llama"))
    monkeypatch.setattr("os.sysconf", lambda _: 1024)
    monkeypatch.setattr("gateway.process.host_memory.host_budget", lambda *_: KVBudget(0, ""))
    result = turnpike("models", "add", "acme/tiny", *PRICE)
    assert result.exit_code == 1
    assert "does not fit in memory" in result.stderr
    assert not any(path.endswith(".safetensors") for path, _ in hub.requests)
    assert not (tmp_path / "share").exists()


def test_a_folder_for_free_under_another_name(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "published", "llama")
    ok("models", "add", str(path), "--free", "--name", "mine")
    assert load_settings().models == {"mine": path}
    assert prices() == {"mine": "0.00"}
    assert "have a model mine" in failure(1, "models", "add", str(path), "--free", "--name", "mine")


@pytest.mark.parametrize(
    "prices", [(), ("--input", "1"), ("--free", "--input", "1", "--output", "2"), ("--input", "x", "--output", "1")]
)
def test_a_price_is_needed_or_none(prices: tuple[str, ...], tmp_path: Path) -> None:
    failure(2, "models", "add", str(tmp_path), *prices)


def test_a_file_that_is_no_model_is_named_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("hello, hello")
    assert f"{tmp_path}/notes.gguf: not a GGUF file" in failure(1, "models", "add", f"{tmp_path}/notes.gguf", *PRICE)
    assert "there is no /nowhere" in failure(1, "models", "add", "/nowhere", *PRICE)
    assert not (tmp_path / "share").exists()


def test_a_model_that_cannot_be_loaded_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "b.gguf"
    path.write_text("hello, hello")
    with pytest.raises(OperatorError, match=f"model b: {path}: not a GGUF file"):
        load_engine(load_settings(models={"b": path}, device="cpu"), lambda *_: None)


class TestSettingsFile:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "port = 1 # mine\n",
            "[models] # ours\na = '/a'\n\n[prices]\na = [1, 2]\n",
            "# [models]\n[service_classes.gold]\npriority = 1",
        ],
    )
    def test_the_other_lines_stay(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "turnpike.toml"
        path.write_text(text)
        before = tomllib.loads(text)
        set_in_table(path, "models", "b.c", '/b "quoted"')
        after = tomllib.loads(path.read_text())
        assert after["models"].pop("b.c") == '/b "quoted"'
        assert {name: value for name, value in after.items() if value} == before
        assert set(text.splitlines()) <= set(path.read_text().splitlines())

    @pytest.mark.parametrize("text", ["models = { a = '/a' }\n", "models.a = '/a'\n", "models = 1\n", "= nonsense"])
    def test_a_form_that_is_not_edited_is_left(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "turnpike.toml"
        path.write_text(text)
        with pytest.raises(OperatorError, match=r"add this line below \[models\]: \"b\" = \"/b\""):
            set_in_table(path, "models", "b", "/b")
        assert path.read_text() == text
        assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]
