"""The socket that the server listens on."""

import socket

from gateway.errors import OperatorError

SEND_BUFFER_BYTES = 32 * 1024
"""Send buffer of each connection; Linux doubles it for bookkeeping. Enough for 400 kB/s at a round trip of 100 ms, and
small, since bytes in it count as sent when the client disconnects."""


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket on the address, not listening yet. `shared`: other processes of this user may listen there, too, and
    the kernel spreads connections over all that do (`SO_REUSEPORT`).

    Raises:
        OperatorError: the address is in use or not local.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            # Allows lingering connections of a former server; a second listener still fails.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Connections inherit it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OperatorError(f"cannot listen on {host} port {port}: {reason.lower()}") from error
    return listener


def local_url(listener: socket.socket) -> str:
    """The server's URL for clients on this machine."""
    return url_of(*listener.getsockname()[:2])


def url_of(host: str, port: int) -> str:
    """The URL, for clients on this machine, of a server that listens on an address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
