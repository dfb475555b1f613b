"""Fetching a model by name, for the command line and for a server that was told no model."""

from collections.abc import Collection, Mapping
from decimal import Decimal
from pathlib import Path

from engine.catalog.catalog import FetchError, available, fetch
from gateway.errors import OperatorError
from gateway.process.progress import Report

DEFAULT_MODEL = "smollm2"
"""What is served when no model is named: small enough for any machine."""
DEFAULT_SMALL_MODEL = "smollm2-small"
"""What is served beside it, where this installation has its part."""
DEFAULT_PRICES: Mapping[str, tuple[Decimal, Decimal, Decimal]] = {
    DEFAULT_MODEL: (Decimal("0.05"), Decimal("0.025"), Decimal("0.1")),
    DEFAULT_SMALL_MODEL: (Decimal("0.01"), Decimal("0.005"), Decimal("0.02")),
}
"""What they cost where nobody stated that: dollars per million tokens of input, of cached input and of output."""


def default_models(models_dir: Path, report: Report) -> dict[str, Path]:
    """What is served when no model is named, fetched where it is not there yet.

    Raises:
        OperatorError: it cannot be had.
    """
    known = {entry.name for entry in available(models_dir)}
    names = (name for name in (DEFAULT_MODEL, DEFAULT_SMALL_MODEL) if name in known)
    return {name: fetch_model(name, models_dir, report) for name in names}


def default_pairs(models: Collection[str]) -> dict[str, str]:
    """Large model -> the small one beside it, of the models that are served by default."""
    return {DEFAULT_MODEL: DEFAULT_SMALL_MODEL} if {DEFAULT_MODEL, DEFAULT_SMALL_MODEL} <= set(models) else {}


def fetch_model(name: str, models_dir: Path, report: Report) -> Path:
    """A model's file, downloaded where it is not there yet.

    Raises:
        OperatorError: it cannot be had; the message says what to do instead.
    """
    try:
        return fetch(name, models_dir, lambda done, total: report(f"fetching {name}", done, total))
    except FetchError as error:
        raise OperatorError(str(error)) from error


def find_model(named: str, served: Mapping[str, Path], models_dir: Path, report: Report) -> Path:
    """What a command line means by a model: a path that is there, a served name, or one that can be fetched.

    Raises:
        OperatorError: it is none of them.
    """
    path = Path(named)
    if path.exists():
        return path.absolute()
    return served[named] if named in served else fetch_model(named, models_dir, report)
