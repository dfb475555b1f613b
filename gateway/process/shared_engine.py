"""The engine process of several gateway processes."""

import logging
from collections.abc import Callable
from pathlib import Path

import structlog

from engine.workers.messages import FromWorker, Ready
from engine.workers.supervisor import PROCESS, LoadFailed, Supervisor
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.process.engine_loading import shared_engine_start
from gateway.process.progress import progress

SOCKET_NAME = "engine.sock"
"""In the data directory."""

_log = structlog.get_logger("turnpike.serve")


def start_engine(settings: Settings, module: str = PROCESS) -> Supervisor | None:
    """Start the engine process, and wait until its models are loaded. It listens on `SOCKET_NAME`, is started again
    where it ends, and ends with this process. None: the settings have no models for it. `module`: its program.

    Raises:
        OperatorError: a model is missing, unsupported or too large, or the device is unavailable.
    """
    with progress() as report:
        level = logging.getLogger("engine").getEffectiveLevel()
        start = shared_engine_start(settings, report, engine_socket(settings.data_dir), level)
        if start is None:
            return None
        engine = Supervisor(start, _Events(lambda name, done, total: report(f"loading {name}", done, total)), module)
        try:
            engine.start()
        except LoadFailed as error:
            raise OperatorError(str(error)) from error
    return engine


def engine_socket(data_dir: Path) -> Path:
    """The file on which the engine process of a data directory listens."""
    return data_dir / SOCKET_NAME


class _Events:
    """Implements `WorkerEvents`. The supervisor submits nothing: the requests are those of the gateway processes."""

    def __init__(self, report: Callable[[str, int, int], None]) -> None:
        self._report: Callable[[str, int, int], None] | None = report

    def on_loading(self, model: str, done: int, total: int) -> None:
        """See `WorkerEvents`."""
        if self._report is not None:
            self._report(model, done, total)

    def on_ready(self, ready: Ready) -> None:
        """See `WorkerEvents`."""
        self._report = None
        _log.info("the engine is ready", models=[facts.name for facts in ready.models])

    def on_message(self, message: FromWorker) -> None:
        """See `WorkerEvents`."""

    def on_ended(self) -> None:
        """See `WorkerEvents`. The supervisor has logged it."""

    def on_start_failed(self) -> None:
        """See `WorkerEvents`."""
        _log.error("the engine process could not be started again; another is tried")

    def on_given_up(self, reason: str) -> None:
        """See `WorkerEvents`."""
