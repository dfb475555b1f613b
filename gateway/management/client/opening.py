"""Chooses where a command's operations run."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.common.unix_socket import SOCKET_NAME, connect, peer_uid
from gateway.errors import OperatorError
from gateway.management.client.admin_client import AdminClient
from gateway.management.client.over_http import CONNECT_S, OverHTTP, over_socket, over_tcp

if TYPE_CHECKING:
    from gateway.config.settings import Settings

Warn = Callable[[str], None]


def open_remote(url: str, key: str, warn: Warn) -> AdminClient:
    """The operations of the gateway at `url`, in the name of the administrator's key `key`.

    Raises:
        OperatorError: it is no URL of a gateway.
    """
    return AdminClient(over_tcp(url, key, warn))


def open_local(settings: "Settings", warn: Warn) -> AdminClient:
    """The operations of the gateway that serves the settings' data directory, or else of this process.

    Raises:
        OperatorError: the gateway's socket cannot be used.
    """
    gateway = _over_socket(settings, warn)
    if gateway is not None:
        return AdminClient(gateway)
    from gateway.management.client.in_process import InProcess  # slow to import

    return AdminClient(InProcess(settings))


def _over_socket(settings: "Settings", warn: Warn) -> OverHTTP | None:
    path = settings.data_dir / SOCKET_NAME
    try:
        connected = connect(path, CONNECT_S)
        if connected is None:
            return None
        if peer_uid(connected) not in (os.getuid(), 0, settings.data_dir.stat().st_uid):
            connected.close()
            raise OperatorError(f"{path} belongs to a process of another user")
    except OSError as error:
        reason = "timed out" if isinstance(error, TimeoutError) else (error.strerror or type(error).__name__).lower()
        raise OperatorError(f"the gateway at {path} does not answer: {reason}") from error
    return over_socket(path, connected, warn)
