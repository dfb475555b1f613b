"""One log for the process: each line of structlog's and the standard library's loggers, in one format.

A request's id and tenant come from `structlog.contextvars.bind_contextvars(request_id=..., tenant=...)`.
"""

import logging
import sys
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import orjson
import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from gateway.telemetry.redaction import Redactor, without_secret_fields

LogFormat = Literal["auto", "json", "console"]

_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure_logging(level: str, log_format: LogFormat, secrets: Iterable[str] = ()) -> None:
    """Send every logger's lines to standard error, redacted. `log_format`: `auto` is `console` on a terminal, otherwise
    `json`. `secrets`: values to redact wherever they occur.

    Replaces the former configuration.
    """
    if log_format == "auto":
        log_format = "console" if sys.stderr.isatty() else "json"
    redactor = Redactor(secrets)
    renderers = _renderers(log_format)
    # The standard library's processing of a record would cost more than the rest of the line.
    structlog.configure(
        processors=[*_SHARED, _add_name, _drop_secret_fields, *renderers, partial(_redact, redactor)],
        logger_factory=_LineLogger,
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_RedactingFormatter(redactor, [structlog.stdlib.add_logger_name, *_SHARED], renderers))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for chatty in ("alembic", "aiosqlite", "httpcore2", "httpx2", "kafka"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


class _LineLogger:
    """Writes the lines of one structlog logger to standard error, each in one call."""

    _lock = threading.Lock()

    def __init__(self, name: str = "turnpike") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        with self._lock:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = msg


class _RedactingFormatter(ProcessorFormatter):
    """Redacts the finished line of a standard library logger, tracebacks included."""

    def __init__(self, redactor: Redactor, foreign: list[Processor], renderers: list[Processor]) -> None:
        super().__init__(
            foreign_pre_chain=foreign,
            processors=[ProcessorFormatter.remove_processors_meta, _drop_secret_fields, *renderers],
        )
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


def _renderers(log_format: LogFormat) -> list[Processor]:
    """Renderers of a format. Tracebacks show no values of local variables, unlike structlog's and rich's defaults."""
    if log_format == "console":
        return [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(serializer=_to_json),
    ]


def _add_name(logger: WrappedLogger, _: str, event: EventDict) -> EventDict:
    event["logger"] = logger.name
    return event


def _redact(redactor: Redactor, _: WrappedLogger, __: str, line: str) -> str:
    return redactor.text(line)


def _drop_secret_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return without_secret_fields(event)


def _to_json(event: Any, **_: Any) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
