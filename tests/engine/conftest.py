"""A tiny engine for tests of the public face."""

from pathlib import Path

import pytest

from tests.support.tiny_models import FAMILIES, make_checkpoint


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tiny checkpoint for each family."""
    root = tmp_path_factory.mktemp("tiny")
    return {family: make_checkpoint(root / family, family) for family in FAMILIES}
