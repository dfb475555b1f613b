import os
import re
from pathlib import Path

import pytest

from gateway.config.settings import load_settings
from gateway.doctor import Finding, State, models
from kernels.cpu.native_ops import computes_natively
from tests.support.tiny_models import make_checkpoint

pytestmark = pytest.mark.usefixtures("no_settings")


def findings(**settings: object) -> dict[str, Finding]:
    return {each.what: each for each in models.models(load_settings(**settings))}


def test_none_is_fetched_yet(tmp_path: Path) -> None:
    (found,) = findings(data_dir=tmp_path, models_dir=tmp_path / "models").values()
    assert (found.state, found.remedy.startswith("turnpike models fetch smollm2")) == (State.WARNING, True)


def test_one_that_went_away_or_is_something_else(tmp_path: Path) -> None:
    settings = {"data_dir": tmp_path, "models": {"a": tmp_path / "a.gguf"}}
    found = findings(**settings)["models"]
    assert (found.state, str(tmp_path / "a.gguf") in found.detail) == (State.FAILURE, True)
    (tmp_path / "a.gguf").touch()
    found = findings(**settings)["models"]
    assert (found.state, found.detail.startswith("a: ")) == (State.FAILURE, True)


def test_whether_memory_holds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path / "tiny", "llama")
    settings = {"data_dir": tmp_path, "models": {"tiny": folder}, "device": "cpu", "kv_cache_bytes": "2GiB"}
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**20, "SC_AVPHYS_PAGES": 2**19}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert {name: each.state for name, each in findings(**settings).items()} == {"models": State.OK, "memory": State.OK}
    both = {"tiny": folder, "again": folder}
    found = findings(**settings | {"models": both})["memory"]  # 2 x 2 GiB of KV and a process, of 4 GiB
    assert (found.state, "4.0 of KV" in found.detail) == (State.FAILURE, True)


def test_weights_that_no_kernel_computes_with_are_named(tmp_path: Path) -> None:
    goldens = Path(__file__).parents[2] / "engine/models/quantization/data"
    settings = {
        "data_dir": tmp_path,
        "models": {"a": goldens / "gptq-v2-asym-desc-act"},
        "device": "cpu",
        "kv_cache_bytes": "1MiB",
    }
    found = findings(**settings)
    assert found["quantized weights"].state is State.WARNING
    assert "a: gptq, 4 bits" in found["quantized weights"].detail
    if computes_natively():
        found = findings(**settings | {"models": {"a": goldens / "w4a16"}})
        assert found.keys() == {"models", "memory"}


def test_the_classes(tmp_path: Path) -> None:
    (found,) = models.service_classes(load_settings(data_dir=tmp_path))
    assert re.search(r"premium .*\b0\b.*30%.*standard .*\b10\b.*0%", found.detail)
    stated = {"bulk": {"priority": 2}, "gold": {"priority": 1}}
    (found,) = models.service_classes(load_settings(data_dir=tmp_path, service_classes=stated))
    assert found.detail.index("gold") < found.detail.index("bulk")
