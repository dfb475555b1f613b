"""The Unix socket on which a gateway serves the admin API to commands on its own data directory.

Its file has mode 0600, so only the gateway's user and root can connect; the kernel tells who did. One gateway at a time
serves a data directory: it holds the lock of the socket, which the kernel releases at the end of the process, also
of one that was killed. So a socket file that is found under the lock is a former gateway's and can be removed.
"""

import asyncio
import fcntl
import socket
from pathlib import Path
from typing import IO, Any, Self

import structlog
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from gateway.common.unix_socket import SOCKET_NAME, bind, peer_uid
from gateway.http.drain import Drain
from gateway.management.http.peers import PEER_UID
from gateway.process.connection import Connection, server_config

_log = structlog.get_logger("turnpike.serve")


class AdminSocket:
    """The bound socket. `close` removes its file."""

    def __init__(self, path: Path, listener: socket.socket, lock: IO[bytes]) -> None:
        self.path = path
        self._listener = listener
        self._lock = lock

    @classmethod
    def bind(cls, data_dir: Path) -> Self | None:
        """The socket of a data directory. None, with a warning, if another gateway serves it, or if the file system
        takes no sockets: the gateway then serves without one."""
        path = data_dir / SOCKET_NAME
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = open(path.with_name(f"{SOCKET_NAME}.lock"), "ab")  # noqa: SIM115 open while the socket is
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                listener = bind(path)
            except OSError:
                lock.close()
                raise
        except BlockingIOError:
            _log.warning("another gateway serves the commands on this data directory", data_dir=str(data_dir))
            return None
        except OSError as error:
            _log.warning("no socket for commands on this machine", path=str(path), error=error.strerror)
            return None
        return cls(path, listener, lock)

    async def serve(self, app: ASGIApp, drain: Drain, state: ServerState) -> asyncio.Server:
        """Serve `app` on the socket. `state` is the server's, which waits for the socket's requests at its end, too."""
        config = server_config(app, drain, connection=PeerConnection)
        config.load()

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]
            return made

        return await asyncio.get_running_loop().create_unix_server(protocol, sock=self._listener)

    def close(self) -> None:
        """Remove the socket's file, and release its lock. Idempotent."""
        if self._lock.closed:
            return
        self.path.unlink(missing_ok=True)
        self._listener.close()
        self._lock.close()


class PeerConnection(Connection):
    """A connection whose requests carry the user of the process at its other end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._uid = -1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._uid = peer_uid(transport.get_extra_info("socket"))
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[PEER_UID] = self._uid  # type: ignore[literal-required]
