"""The socket that the server listens on."""

import socket

from gateway.errors import OperatorError

SEND_BUFFER_BYTES = 32 * 1024
"""Of each connection; Linux grants twice that, and keeps its books in it. Enough for some 400 kB a second to a client
that is 100 ms away; small, as what lies in it when the client hangs up counts as sent."""


def bind(host: str, port: int) -> socket.socket:
    """A socket on the address, not listening yet.

    Raises:
        OperatorError: the address is taken or not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            # Connections of a server that was here before may linger; another that listens is still refused.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Its connections have what it has.
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
    """Where a client on this machine finds the server."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
