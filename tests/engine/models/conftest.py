import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.models.catalog import DownloadError, fetch
from tests.engine.models.tiny import TinyFamily, make_checkpoint

TinyFolder = Callable[..., Path]


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


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The real SmolLM2-135M-Instruct file, fetched once a machine."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    models_dir = Path(os.environ.get("TURNPIKE_MODELS_DIR") or Path(cache) / "turnpike" / "models")
    try:
        return fetch("smollm2", models_dir)
    except DownloadError as error:
        pytest.skip(f"no network: {error}")
