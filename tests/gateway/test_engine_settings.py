"""The engine is loaded with its settings."""

from pathlib import Path

import pytest

from engine.catalog.catalog import CatalogEntry
from engine.config import EngineConfig, StatedSizes
from engine.errors import EngineUnavailable
from engine.sampling_defaults import SamplingDefaults
from gateway.config.settings import load_settings
from gateway.errors import OperatorError
from gateway.process.engine_loading import load_engine, scheduler_config_of

pytestmark = pytest.mark.usefixtures("no_settings")

PAIRS = {"large": "small"}


class Loaded(Exception):
    """Instead of an engine."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def load(models: object, config: EngineConfig, progress: object) -> None:
        raise Loaded(config)

    monkeypatch.setattr("gateway.process.engine_loading.Engine.load", load)
    return tmp_path


def config_of(folder: Path, **settings: object) -> EngineConfig:
    models = dict.fromkeys(("large", "small"), folder)
    with pytest.raises(Loaded) as caught:
        load_engine(load_settings(models=models, small_models=PAIRS, **settings), lambda *_: None)
    return caught.value.config


def test_sampling_defaults(folder: Path) -> None:
    config = config_of(folder, sampling_defaults={"large": {"temperature": 0.6, "top_k": 20}}, generation_config="off")
    assert config.sampling_defaults == {"large": SamplingDefaults(temperature=0.6, top_k=20)}
    assert config.generation_config == "off"
    assert (config_of(folder).sampling_defaults, config_of(folder).generation_config) == ({}, "auto")


@pytest.mark.parametrize(("name", "target"), [("gpt-4o", "larg"), ("gpt-4o", "auto:small"), ("smollm2", "smollm2")])
def test_an_alias_that_leads_nowhere_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, target: str
) -> None:
    monkeypatch.setattr("gateway.process.engine_loading.default_models", lambda *_: {"smollm2": folder})
    with pytest.raises(OperatorError, match=f"^aliases: '{name}'"):
        load_engine(load_settings(aliases={name: target}), lambda *_: None)


def test_sampling_defaults_of_a_model_that_is_not_served(folder: Path) -> None:
    settings = load_settings(models={"large": folder}, sampling_defaults={"smal": {"temperature": 0.6}})
    with pytest.raises(OperatorError, match="sampling_defaults: the model 'smal' is not among the served ones"):
        load_engine(settings, lambda *_: None)


@pytest.mark.parametrize(
    ("speculation", "ngram", "drafts", "required"),
    [
        ("auto", True, PAIRS, False),
        ("off", False, {}, False),
        ("ngram", True, {}, False),
        ("draft", False, PAIRS, True),
    ],
)
def test_who_drafts(folder: Path, speculation: str, ngram: bool, drafts: dict[str, str], required: bool) -> None:
    config = config_of(folder, speculation=speculation)
    assert (config.ngram, config.drafts, config.require_drafts) == (ngram, drafts, required)


def test_a_model_that_makes_embeddings_is_a_served_one(folder: Path) -> None:
    assert config_of(folder, embeddings={"small": "mean"})
    settings = load_settings(models={"large": folder}, embeddings={"absent": "mean"})
    with pytest.raises(OperatorError, match=r"embeddings: .*'absent'"):
        load_engine(settings, lambda *_: None)


def test_how_much_is_drafted(folder: Path) -> None:
    config = config_of(folder, max_draft_tokens=5, speculate_below=7)
    assert (config.draft_depth, config.speculate_below) == (5, 7)
    config = config_of(folder)
    assert (config.draft_depth, config.speculate_below) == (EngineConfig().draft_depth, EngineConfig().speculate_below)


def test_what_weights_are_kept_as(folder: Path) -> None:
    assert [config_of(folder).quantize, config_of(folder, quantize="int8").quantize] == ["none", "int8"]


def test_without_a_named_model_the_default_ones_are_a_pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.process.catalog.fetch", lambda name, models_dir, progress: models_dir / name)
    for known, pairs in (({"smollm2", "smollm2-small"}, {"smollm2": "smollm2-small"}), ({"smollm2"}, {})):
        entries = [CatalogEntry(name, "", "", 1, folder / name, False) for name in sorted(known)]
        monkeypatch.setattr("gateway.process.catalog.available", lambda models_dir, entries=entries: entries)
        with pytest.raises(Loaded) as caught:
            load_engine(load_settings(), lambda *_: None)
        assert caught.value.config.drafts == pairs


@pytest.mark.parametrize(
    ("gpu_bytes", "stated", "sizes"),
    [
        (None, {}, (64, 512, 512)),
        (24 << 30, {}, (128, 1024, 1024)),
        (141 << 30, {}, (256, 2048, 2048)),
        (None, {"max_running": 600}, (600, 600, 512)),
        (141 << 30, {"step_tokens": 4096, "chunk_tokens": 1000}, (256, 4096, 1000)),
        (None, {"step_tokens": 100}, (64, 100, 100)),
    ],
)
def test_sizes_of_a_step_follow_from_the_device_unless_they_are_set(
    gpu_bytes: int | None, stated: dict[str, int], sizes: tuple[int, int, int]
) -> None:
    config = scheduler_config_of(load_settings(**stated), gpu_bytes)
    assert (config.max_running, config.step_tokens, config.chunk_tokens) == sizes


def test_a_step_has_room_for_a_token_of_each_running_sequence() -> None:
    with pytest.raises(OperatorError, match=r"^step_tokens: "):
        scheduler_config_of(load_settings(step_tokens=63), None)


@pytest.mark.parametrize(
    ("stated", "driver", "own"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"device": "cuda"}, False, True),
        ({"device": "cpu"}, True, False),
        ({"engine_process": False}, True, False),
        ({"engine_process": True}, False, True),
        ({"device": "cpu", "tensor_parallel": 2}, False, True),
        ({"device": "cpu", "pipeline_parallel": 2}, False, True),
        ({"device": "cpu", "tensor_parallel": 2, "engine_process": False}, False, False),
    ],
)
def test_an_engine_in_a_process_of_its_own_leaves_the_device_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stated: dict[str, object], driver: bool, own: bool
) -> None:
    asked: list[str] = []

    def gpu_memory_bytes(device: str) -> None:
        asked.append(device)

    def start(*_: object, sizes: StatedSizes, **__: object) -> None:
        assert sizes == StatedSizes(max_running=7)
        raise EngineUnavailable("its own process")

    def load(*_: object, **__: object) -> None:
        raise EngineUnavailable("this process")

    monkeypatch.setattr("gateway.process.engine_loading.has_cuda_driver", lambda: driver)
    monkeypatch.setattr("gateway.process.engine_loading.gpu_memory_bytes", gpu_memory_bytes)
    monkeypatch.setattr("gateway.process.engine_loading.WorkerEngine", start)
    monkeypatch.setattr("gateway.process.engine_loading.Engine.load", load)
    settings = load_settings(models={"m": tmp_path}, max_running=7, **stated)
    with pytest.raises(OperatorError, match="its own process" if own else "this process"):
        load_engine(settings, lambda *_: None)
    assert bool(asked) != own
