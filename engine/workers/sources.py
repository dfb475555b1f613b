"""The workers of a fleet that changes: where their addresses come from.

| form | source |
|---|---|
| `tcp://host:port`, `unix:/path` | one worker |
| `tcp+dns://name:port` | every address of the name, such as a headless Service of Kubernetes |
| `file:///path/fleet.json` | the workers of a file that an orchestrator replaces |
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from engine.workers.remote_link import Address, parse_address

DNS_SECONDS = 5.0
FILE_SECONDS = 0.5


class SourceFailed(Exception):
    """A source cannot state its workers at the moment."""


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of a fleet. `server_name`: the name in its certificate; None: the host of its address."""

    address: str
    server_name: str | None = None


class FleetSource(Protocol):
    """States workers."""

    @property
    def interval_seconds(self) -> float | None:
        """Time between two reads; None: its workers never change."""
        ...

    def read(self) -> frozenset[Member]:
        """The workers as of now. May block.

        Raises:
            SourceFailed: they are unknown at the moment.
        """
        ...


class StaticSource:
    """One worker, for ever."""

    interval_seconds = None

    def __init__(self, address: str) -> None:
        """Raises: ValueError: it is no worker's address."""
        self._members = frozenset({Member(str(parse_address(address)))})

    def read(self) -> frozenset[Member]:
        return self._members


def _resolve(host: str) -> Sequence[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


class DNSSource:
    """A worker at each address that a name resolves to: of IPv4, or of IPv6 where there are no others, since a worker
    has one of each in a network with both. Their certificates name that name.

    A name without addresses counts as a failure: resolvers answer alike where a Service has no pod that is ready, and
    where it is gone. Connections say which workers are alive.
    """

    interval_seconds = DNS_SECONDS

    def __init__(self, name: str, port: int, resolve: Callable[[str], Sequence[str]] = _resolve) -> None:
        self._name = name
        self._port = port
        self._resolve = resolve

    def read(self) -> frozenset[Member]:
        try:
            hosts = self._resolve(self._name)
        except OSError as error:
            raise SourceFailed(f"{self._name}: {error.strerror or error}") from error
        except UnicodeError as error:  # a label is empty or too long
            raise SourceFailed(f"{self._name!r} is no name of a host: {error}") from error
        if not hosts:
            raise SourceFailed(f"{self._name} has no addresses")
        of_one_family = [host for host in hosts if ":" not in host] or hosts
        return frozenset(Member(str(Address(host, self._port)), self._name) for host in of_one_family)


class _StatedWorker(msgspec.Struct):
    """Other keys are its writer's."""

    address: str
    server_name: str | None = None
    state: str = "ready"


class _StatedFleet(msgspec.Struct):
    workers: list[_StatedWorker]


class FileSource:
    """The workers of a JSON file, `{"workers": [{"address": "tcp://host:port"}]}`.

    A worker may have a `server_name`, and a `state`: only those of the state `ready`, the default, are members. Its
    writer replaces the file atomically.
    """

    interval_seconds = FILE_SECONDS

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._members: frozenset[Member] = frozenset()

    def read(self) -> frozenset[Member]:
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen != self._seen:
                self._members = members_of(self._path.read_bytes())
                self._seen = seen
        except OSError as error:
            raise SourceFailed(f"{self._path}: {error.strerror or error}") from error
        except (ValueError, msgspec.MsgspecError) as error:
            raise SourceFailed(f"{self._path}: {error}") from error
        return self._members


def members_of(text: bytes) -> frozenset[Member]:
    """The workers that a fleet file names as ready.

    Raises:
        ValueError, msgspec.MsgspecError: it is no fleet file.
    """
    stated = msgspec.json.decode(text, type=_StatedFleet)
    ready = [each for each in stated.workers if each.state == "ready"]
    return frozenset(Member(str(parse_address(each.address)), each.server_name) for each in ready)


def parse_source(text: str) -> FleetSource:
    """The source that an entry of `[replicas]` states.

    Raises:
        ValueError: it has none of the forms of this module.
    """
    scheme, _, rest = text.partition("://")
    if scheme == "tcp+dns":
        address = Address.parse(f"tcp://{rest}")
        return DNSSource(address.host, address.port)
    if scheme == "file":
        parts: Any = urlsplit(text)
        if parts.netloc or not parts.path or parts.path == "/":
            raise ValueError(f"a fleet file has the form file:///path/fleet.json, got {text!r}")
        return FileSource(Path(unquote(parts.path)))
    return StaticSource(text)
