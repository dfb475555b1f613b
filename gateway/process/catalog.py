"""Models by name, and the default models of a server without configured models."""

from collections.abc import Collection, Mapping
from decimal import Decimal
from pathlib import Path

from engine.catalog import hub
from engine.catalog.catalog import FetchError, available, fetch
from gateway.errors import OperatorError
from gateway.process.progress import Report

FETCH_FIRST = "a model of the Hugging Face Hub is fetched first: turnpike models fetch OWNER/NAME"

DEFAULT_MODEL = "smollm2"
"""The default model: small enough for any machine."""
DEFAULT_SMALL_MODEL = "smollm2-small"
"""The default model's small model, where the installation includes it."""
DEFAULT_PRICES: Mapping[str, tuple[Decimal, Decimal, Decimal]] = {
    DEFAULT_MODEL: (Decimal("0.05"), Decimal("0.025"), Decimal("0.1")),
    DEFAULT_SMALL_MODEL: (Decimal("0.01"), Decimal("0.005"), Decimal("0.02")),
}
"""Default prices: dollars per million tokens of input, cached input and output."""


def default_models(models_dir: Path, report: Report) -> dict[str, Path]:
    """The default models, downloaded if missing.

    Raises:
        OperatorError: a download failed.
    """
    known = {entry.name for entry in available(models_dir)}
    names = (name for name in (DEFAULT_MODEL, DEFAULT_SMALL_MODEL) if name in known)
    return {name: fetch_model(name, models_dir, report) for name in names}


def default_pairs(models: Collection[str]) -> dict[str, str]:
    """Large model -> small model, of the default models."""
    return {DEFAULT_MODEL: DEFAULT_SMALL_MODEL} if {DEFAULT_MODEL, DEFAULT_SMALL_MODEL} <= set(models) else {}


def fetch_model(
    name: str,
    models_dir: Path,
    report: Report,
    *,
    revision: str | None = None,
    file: str | None = None,
    before_weights: hub.BeforeWeights | None = None,
) -> Path:
    """A model's file or folder, downloaded if missing. `revision`, `file`, `before_weights`: of a repository
    `owner/name` of the Hugging Face Hub, as `engine.catalog.hub.fetch` takes them.

    Raises:
        OperatorError: the download failed. The message names a remedy.
    """

    def progress(done: int, total: int) -> None:
        report(f"fetching {name}", done, total)

    try:
        if "/" in name:
            return hub.fetch(name, models_dir, progress, revision=revision, file=file, before_weights=before_weights)
        if revision is not None or file is not None:
            raise OperatorError(
                f"--revision and --file are for models of the Hugging Face Hub, OWNER/NAME, not {name!r}"
            )
        return fetch(name, models_dir, progress)
    except FetchError as error:
        raise OperatorError(str(error)) from error


def is_fetchable(model: str, models_dir: Path) -> bool:
    """Whether a model that is no path here can be a name to fetch: `OWNER/NAME[:FILE.gguf]`, or of the catalogue."""
    repository, colon, file = model.partition(":")
    if hub.is_repository(repository):
        return file.endswith(".gguf") if colon else not model.endswith(".gguf")
    return any(entry.name == model for entry in available(models_dir))


def find_model(named: str, served: Mapping[str, Path], models_dir: Path, report: Report) -> Path:
    """Resolve a model on the command line: an existing path, a served name, a fetched repository `owner/name`, or a
    name of the catalogue, which is downloaded.

    Raises:
        OperatorError: none of these.
    """
    path = Path(named)
    if path.exists():
        return path.absolute()
    if named in served:
        return served[named]
    if "/" not in named:
        return fetch_model(named, models_dir, report)
    if (checkpoint := hub.fetched(named, models_dir)) is None:
        raise OperatorError(f"there is no {named}; {FETCH_FIRST}")
    return checkpoint
