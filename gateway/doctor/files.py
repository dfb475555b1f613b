"""Checks the folders, the pepper and the port of the settings."""

import http.client
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gateway.config.pepper import load_pepper, pepper_path
from gateway.config.settings import Settings
from gateway.doctor.finding import Finding, failure, ok, warning
from gateway.errors import OperatorError
from gateway.process.listener import bind

AMPLE_DISKFULS = 4
"""Multiple of `journal_min_free` below which free space is a warning."""
_GIB = 2**30


def data_dir(settings: Settings) -> Iterator[Finding]:
    folder = _nearest(settings.data_dir)
    if _writable(folder):
        yield ok("data directory", str(settings.data_dir))
    else:
        yield failure("data directory", f"{folder} is not a writable folder", "pass --data-dir DIR")


def journal(settings: Settings) -> Iterator[Finding]:
    folder = _nearest(settings.journal_path.parent)
    if not _writable(folder):
        yield failure("journal", f"{folder} is not a writable folder", "set TURNPIKE_JOURNAL_PATH")
        return
    free, needed = shutil.disk_usage(folder).free, settings.journal_min_free
    detail = f"{settings.journal_path}, {free / _GIB:.1f} GiB free"
    if free < needed:
        detail += f", and nothing new is begun below {needed / _GIB:.2g}"
        yield failure("journal", detail, "make room, or set TURNPIKE_JOURNAL_PATH to another disk")
    elif free < AMPLE_DISKFULS * needed:
        detail += f"; below {needed / _GIB:.2g} nothing new is begun"
        yield warning("journal", detail, "make room, or set TURNPIKE_JOURNAL_PATH to another disk")
    else:
        yield ok("journal", detail)


def pepper(settings: Settings) -> Iterator[Finding]:
    path = pepper_path(settings)
    if settings.key_pepper is not None:
        yield ok("pepper", "from the settings")
        return
    if not path.exists():
        yield ok("pepper", f"made on first use, in {path}")
        return
    try:
        load_pepper(settings)
    except OperatorError as error:
        yield failure("pepper", str(error), "mend the file, or set TURNPIKE_KEY_PEPPER")
        return
    shared = settings.database_url.get_secret_value().startswith("postgresql") or settings.kafka_url is not None
    yield ok("pepper", f"{path}{'; other replicas and sinks need it in TURNPIKE_KEY_PEPPER' if shared else ''}")


def port(settings: Settings) -> Iterator[Finding]:
    try:
        bind(settings.host, settings.port).close()
    except OperatorError as error:
        if _a_gateway_answers(settings):
            yield ok("port", f"{settings.port} on {settings.host} is a running gateway's")
        else:
            yield failure("port", str(error), "pass --port to turnpike serve, or set TURNPIKE_PORT")
        return
    yield ok("port", f"{settings.port} on {settings.host} is free")


def _a_gateway_answers(settings: Settings) -> bool:
    """Whether a gateway answers, recognized by its header: other servers have /healthz, too."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    connection = http.client.HTTPConnection(host, settings.port, timeout=1.0)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        return answer.status == 200 and answer.getheader("x-request-id") is not None
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _nearest(folder: Path) -> Path:
    """The nearest existing parent folder; the rest is created on first use."""
    while not folder.exists():
        folder = folder.parent
    return folder


def _writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
