"""A model's own sampling parameters: read from its checkpoint, overridden, and applied where a request is silent."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.catalog import catalog
from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import InvalidParameter
from engine.request import SamplingParams
from engine.sampling_defaults import NO_DEFAULTS, SAMPLING_DEFAULTS, SamplingDefaults
from tests.engine.models.tiny_gguf import make_gguf
from tests.support.tiny_models import TinyFolder

RECOMMENDED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


def folder_with(tmp_path: Path, source: Path, **generation_config: Any) -> Path:
    folder = Path(shutil.copytree(source, tmp_path / "folder"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **generation_config}))
    return folder


def test_a_folder_states_them_in_its_generation_config(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, tiny_folder("llama"), do_sample=True, max_new_tokens=9, **RECOMMENDED)
    assert open_checkpoint(folder).sampling_defaults.stated == RECOMMENDED
    (folder / "generation_config.json").unlink()
    assert open_checkpoint(folder).sampling_defaults == NO_DEFAULTS


@pytest.mark.parametrize("cached", [False, True])
def test_a_gguf_file_states_them_in_its_metadata(tiny_folder: TinyFolder, tmp_path: Path, cached: bool) -> None:
    keys = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_p": 0.95,
        "general.sampling.top_k": 20,
        "general.sampling.min_p": 0.05,
        "general.sampling.penalty_repeat": 1.1,
    }
    file = make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama"), keys=keys)
    assert open_checkpoint(file, tmp_path if cached else None).sampling_defaults.stated == RECOMMENDED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-1, 2.5, "0.5", True, [0.5], float("nan"), float("inf"), 10**40)),
        *(("top_p", value) for value in (0, 1.5)),
        *(("top_k", value) for value in (1.5, "20", float("nan"))),
        ("repetition_penalty", 0),
    ],
)
def test_a_value_that_cannot_be_used_is_left_out_and_logged(
    tiny_folder: TinyFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, value: Any
) -> None:
    folder = folder_with(tmp_path, tiny_folder("llama"), **{"min_p": 0.1, name: value})
    with caplog.at_level(logging.WARNING):
        assert open_checkpoint(folder).sampling_defaults == SamplingDefaults(min_p=0.1)
    assert f"generation_config.json: {name} is not used" in caplog.text


@pytest.mark.parametrize("off", [-1, 0])
def test_both_ways_to_write_no_top_k(tiny_folder: TinyFolder, tmp_path: Path, off: int) -> None:
    folder = folder_with(tmp_path, tiny_folder("llama"), top_k=off)
    assert open_checkpoint(folder).sampling_defaults == SamplingDefaults(top_k=0)


def test_only_what_a_request_does_not_state_is_filled_in() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_p=0.9)
    params = SamplingParams(temperature=1.0, seed=7)
    assert defaults.applied(params, {"top_p", "top_k"}) == SamplingParams(temperature=1.0, top_p=0.9, seed=7)
    assert defaults.applied(params, SAMPLING_DEFAULTS) == SamplingParams(temperature=0.6, top_p=0.9, seed=7)
    assert defaults.applied(params, ()) is params


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="top_p"):
        SamplingDefaults(top_p=0.0)


def test_the_effective_values_are_those_of_all_parameters() -> None:
    effective = SamplingDefaults(temperature=0.2).effective
    assert tuple(effective) == SAMPLING_DEFAULTS
    assert SamplingParams(**effective) == SamplingParams(temperature=0.2)


def loaded(path: Path, config: EngineConfig) -> SamplingDefaults:
    engine = Engine.load({"tiny": path}, config)
    engine.close()
    return engine.models["tiny"].sampling_defaults


def test_config_before_catalogue_before_checkpoint(
    tiny_folder: TinyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_gguf(
        tmp_path / "tiny.gguf",
        tiny_folder("llama"),
        keys={"general.sampling.temp": 0.1, "general.sampling.top_p": 0.2, "general.sampling.top_k": 3},
    )
    known = catalog._Source(
        "", "", "", "wheel/tiny.gguf", file.stat().st_size, "", 1, SamplingDefaults(temperature=0.5, top_p=0.6)
    )
    monkeypatch.setattr(catalog, "_SOURCES", {"known": known})
    small = {"kv_cache_bytes": 1 << 20}
    stated = {"tiny": SamplingDefaults(temperature=0.9, min_p=0.3)}
    assert loaded(file, EngineConfig(**small)) == SamplingDefaults(temperature=0.5, top_p=0.6, top_k=3)
    assert loaded(file, EngineConfig(sampling_defaults=stated, **small)) == SamplingDefaults(
        temperature=0.9, top_p=0.6, top_k=3, min_p=0.3
    )
    assert loaded(file, EngineConfig(generation_config="off", **small)) == NO_DEFAULTS
    assert loaded(file, EngineConfig(sampling_defaults=stated, generation_config="off", **small)) == stated["tiny"]
    renamed = file.rename(tmp_path / "other.gguf")
    assert loaded(renamed, EngineConfig(**small)) == SamplingDefaults(temperature=0.1, top_p=0.2, top_k=3)


def test_generate_without_parameters_uses_them(tiny_folder: TinyFolder) -> None:
    greedy = EngineConfig(
        kv_cache_bytes=1 << 20, max_model_len=64, sampling_defaults={"tiny": SamplingDefaults(temperature=0)}
    )
    with Engine.load({"tiny": tiny_folder("llama")}, greedy) as engine:
        [[silent]] = engine.generate("tiny", ["once"])
        [[stated]] = engine.generate("tiny", ["once"], SamplingParams(temperature=0))
    assert silent.token_ids == stated.token_ids
