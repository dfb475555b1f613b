"""Rules for the names and paths of models in the settings."""

import re
from pathlib import Path

from pydantic import ValidationInfo

from gateway.common.model_names import MODEL_NAME
from gateway.routing.names import is_reserved


def located(path: Path, models_dir: Path | None) -> Path:
    """An absolute path, or the checkpoint of a fetched repository `owner/name` where there is no such path here."""
    absolute = path.expanduser().absolute()
    if models_dir is None or path.is_absolute() or absolute.exists():
        return absolute
    from engine.catalog.hub import fetched  # most settings name paths, and do without

    return fetched(path.as_posix(), models_dir) or absolute


def served_so_far(known: ValidationInfo) -> set[str]:
    """Names of the models that are validated so far."""
    return {*known.data.get("models", {}), *known.data.get("upstreams", {})}


def require_model_name(name: str) -> None:
    """Raises: ValueError: no model may have this name."""
    if not re.fullmatch(MODEL_NAME, name) or is_reserved(name):
        raise ValueError(
            f"the model name {name!r} must be letters, digits and . _ : / -, "
            "starting with a letter or digit, at most 128 characters, and not auto"
        )
