"""The fleet file: the workers for gateways, and for the next `turnpike up`."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gateway.errors import OperatorError


class FleetWorker(msgspec.Struct, frozen=True):
    """A worker. Gateways read `address`, `server_name` and `state` (see `engine.workers.sources`)."""

    address: str
    id: str
    group: str
    state: str
    attempt: int = 1
    node: str | None = None
    pid: int | None = None
    server_name: str | None = None


class _File(msgspec.Struct):
    workers: list[FleetWorker]


def read_fleet(path: Path) -> list[FleetWorker]:
    """The workers of a file; none without it.

    Raises:
        OperatorError: it is no fleet file of `turnpike up`.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).workers
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise OperatorError(f"{path}: is no fleet file of turnpike up: {error}") from error


def write_fleet(path: Path, workers: Sequence[FleetWorker]) -> None:
    """Replace the file atomically.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(_File(list(workers))), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Exclude another `turnpike up` of the same fleet file.

    Raises:
        OperatorError: there is one, or the folder cannot be written.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        file = lock.open("wb")
    except OSError as error:
        raise OperatorError(f"{lock}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OperatorError(f"{path}: another turnpike up keeps this fleet file") from None
        yield
