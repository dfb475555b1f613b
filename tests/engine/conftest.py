"""A tiny engine for tests of the public face."""

from pathlib import Path

import pytest

from engine.speculation.policy import FixedDepth
from tests.support.tiny_families import FAMILIES
from tests.support.tiny_models import make_checkpoint


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tiny checkpoint for each family."""
    root = tmp_path_factory.mktemp("tiny")
    return {family: make_checkpoint(root / family, family) for family in FAMILIES}


@pytest.fixture
def always_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculate whatever it costs: on a tiny model it never pays."""
    monkeypatch.setattr(
        "engine.runtime.model_loading.DepthController", lambda *_, max_depth, below: FixedDepth(max_depth)
    )
