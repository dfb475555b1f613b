"""A model's config by folder, file or name; its weights are not needed."""

import json
from pathlib import Path

from engine.catalog.catalog import available
from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.huggingface.config import config_from_json
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from gateway.config.settings import Settings
from gateway.errors import OperatorError


def read_model_config(named: str, settings: Settings) -> ModelConfig:
    """Of a config.json, a folder with one, a GGUF file, a model of the settings, or a fetched one of the catalogue.

    Raises:
        OperatorError: it is none of these, or the model is not supported.
    """
    path = Path(named)
    if not path.exists():
        path = settings.models.get(named) or _of_catalogue(named, settings.models_dir)
    if (path / "config.json").is_file():
        path = path / "config.json"
    try:
        if path.suffix == ".json":
            return config_from_json(json.loads(path.read_text(encoding="utf-8")))
        return open_checkpoint(path).config
    except (UnsupportedCheckpoint, OSError, ValueError) as error:
        raise OperatorError(f"{path}: {error}") from None


def _of_catalogue(named: str, models_dir: Path) -> Path:
    for entry in available(models_dir):
        if entry.name == named:
            if not entry.fetched:
                raise OperatorError(f"{named} is not on this machine: turnpike models fetch {named}")
            return entry.path
    raise OperatorError(f"--model {named!r} is no folder with a config.json, no file, and no model by name here")
