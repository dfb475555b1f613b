from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import TinyFolder, make_checkpoint


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> TinyFolder:
    """`tiny_folder(family, **overrides)`: a tiny checkpoint, made once a session. Copy it before changing it."""
    made: dict[str, Path] = {}

    def make(family: TinyFamily, **overrides: Any) -> Path:
        key = repr((family, sorted(overrides.items())))
        if key not in made:
            made[key] = make_checkpoint(tmp_path_factory.mktemp(family) / family, family, **overrides)
        return made[key]

    return make
