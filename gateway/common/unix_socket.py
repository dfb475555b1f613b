"""Unix sockets in a gateway's data directory: their paths, and who is at their other end."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET_NAME = "admin.sock"
"""The socket of the admin API in a data directory."""

MAX_PATH_BYTES = 107
"""Linux: 108 bytes of `sun_path`, with the zero at its end."""

_CREDENTIALS = struct.Struct("iII")
"""Linux's `struct ucred`: process, user, group."""


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """An address of `path` that fits into `sun_path`: the path itself or, if it is longer, its name below
    `/proc/self/fd/N`, where N is its open folder. Valid inside the block.

    Raises:
        OSError: the folder cannot be opened.
    """
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def bind(path: Path) -> socket.socket:
    """A socket at `path` for its own user, not listening yet. A file that is there is replaced: the caller knows that
    no process serves it. Linux takes the file's mode from the unbound socket, so it has it from the start.

    Raises:
        OSError: the file system takes no sockets, or the folder cannot be written.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)
        with suppress(FileNotFoundError):
            path.unlink()
        with short_path(path) as address:
            listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def connect(path: Path, timeout_s: float) -> socket.socket | None:
    """A connection to the socket at `path`; None if there is no socket, or no process that serves it.

    Raises:
        OSError: the socket belongs to another user, or its process does not answer.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout_s)
    try:
        with short_path(path) as address:
            client.connect(address)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        client.close()
        return None
    except OSError:
        client.close()
        raise
    return client


def peer_uid(connected: socket.socket) -> int:
    """The user of the process at the other end when it connected (`SO_PEERCRED`; see unix(7)). The kernel says it, so
    no process can state another user."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return int(uid)
