"""Fetches models by name once it is known that they can be served: before their weights are downloaded."""

from collections.abc import Callable, Mapping
from pathlib import Path

from engine.catalog.catalog import available
from engine.checkpoints.huggingface.folder import read_configs
from engine.checkpoints.text import text_processor_from_folder
from engine.models.config import UnsupportedCheckpoint
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.process.catalog import fetch_model
from gateway.process.model_memory import require_memory, size_of_download
from gateway.process.progress import progress

Say = Callable[[str], None]
"""Called with a line for the operator."""

_MIB = 2**20


def fetch_servable(
    settings: Settings, model: str, say: Say, *, revision: str | None = None, file: str | None = None
) -> Path:
    """A model's file or folder, downloaded if missing: of the catalogue, or `OWNER/NAME[:FILE.gguf]` of the hub.

    `say` gets what is downloaded and the memory that it takes, before any weight is.

    Raises:
        OperatorError: the download fails, or the model cannot be served: its family, its tokenizer, its memory.
    """

    def before_weights(folder: Path, weights_bytes: int) -> None:
        say(f"{model}: {weights_bytes / _MIB:.0f} MiB to download")
        if not (folder / "config.json").is_file():  # a GGUF file: its own header says more, once it is there
            _say_memory(settings, model, weights_bytes, say)
            return
        try:
            config, format, _ = read_configs(folder)
            text_processor_from_folder(folder)
        except UnsupportedCheckpoint as error:
            raise OperatorError(f"{model} cannot be served: {error}") from error
        size = size_of_download(settings, config, weights_bytes, quantized=format is not None)
        say(f"{model}: {size}")
        _say_memory(settings, model, size.weights_bytes, say)

    entry = next((each for each in available(settings.models_dir) if each.name == model and not each.fetched), None)
    if entry is not None and revision is file is None:
        _say_memory(settings, model, entry.size_bytes, say)
    with progress() as report:
        return fetch_model(
            model, settings.models_dir, report, revision=revision, file=file, before_weights=before_weights
        )


def fetch_missing(settings: Settings, missing: Mapping[str, str], say: Say) -> Settings:
    """The settings with the paths of `missing` models, by served name, once they are fetched.

    Raises:
        OperatorError: as `fetch_servable`.
    """
    fetched = {name: fetch_servable(settings, model, say) for name, model in missing.items()}
    return settings.model_copy(update={"models": {**settings.models, **fetched}})


def _say_memory(settings: Settings, model: str, weights_bytes: int, say: Say) -> None:
    try:
        words, fits = require_memory(settings, weights_bytes)
    except OperatorError as error:
        raise OperatorError(f"{model}: {error}") from error
    if words:
        say(f"{model}: memory: {words}" if fits else f"{model}: set kv_cache_bytes lower: {words}")
