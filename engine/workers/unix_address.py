"""Unix sockets of workers, for clients of the same user on this machine."""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_SCHEME = "unix:"
_MAX_PATH_BYTES = 107
"""Linux: 108 bytes of `sun_path`, with the zero at its end."""

OnClient = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The socket file that a worker listens on."""

    path: Path

    @classmethod
    def parse(cls, text: str) -> "UnixAddress":
        """Of `unix:/path` or `unix:///path`.

        Raises:
            ValueError: it has another form.
        """
        path = text.removeprefix(_SCHEME)
        if path.startswith("//"):
            path = path.removeprefix("//")
        if not text.startswith(_SCHEME) or not path.startswith("/") or path.endswith("/"):
            raise ValueError(f"a worker's socket has the form unix:/path/of/file, got {text!r}")
        return cls(Path(path))

    def __str__(self) -> str:
        return f"{_SCHEME}{self.path}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return True

    async def connect(
        self, context: ssl.SSLContext | None, server_name: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the worker. The arguments are of workers on other machines: a socket file needs no TLS.

        Raises:
            OSError: no worker listens.
        """
        with _short(self.path) as address:
            return await asyncio.open_unix_connection(address)

    async def listen(self, on_client: OnClient) -> asyncio.Server:
        """Start to listen. The file has mode 0600 from the start, as Linux takes it from the unbound socket. A file
        that is there is a former worker's, and is replaced.

        Raises:
            OSError: the address cannot be used.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listener.fileno(), 0o600)
            with suppress(FileNotFoundError):
                self.path.unlink()
            with _short(self.path) as address:
                listener.bind(address)
            return await asyncio.start_unix_server(on_client, sock=listener)
        except OSError:
            listener.close()
            raise


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """As `gateway.common.unix_socket.short_path`, which commands import, and the engine is slow to import."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
