"""Where gRPC servers listen, and with which certificates."""

from pathlib import Path

import grpc

from engine.workers.remote_link import is_loopback
from gateway.config.listen_address import ListenAddress, StatedServerTLS
from gateway.config.settings import Settings
from gateway.errors import OperatorError


def gateway_credentials(settings: Settings, address: ListenAddress) -> grpc.ServerCredentials | None:
    """Of the gateway's listener. None: plain text, on loopback or because a proxy in front has the certificates.

    Raises:
        OperatorError: others could read keys on the way, or a certificate cannot be read.
    """
    match settings.grpc_tls:
        case StatedServerTLS(certificate=certificate, key=key):
            return grpc.ssl_server_credentials([(_read("grpc_tls", key), _read("grpc_tls", certificate))])
        case None if not is_loopback(address.host):
            raise OperatorError(
                f"grpc_listen: keys could be read on the way to {address}: set grpc_tls, "
                'or grpc_tls = "off" where a proxy in front has the certificates'
            )
        case _:
            return None


def worker_credentials(settings: Settings, address: ListenAddress) -> grpc.ServerCredentials | None:
    """Of a worker's listener: the certificates of `worker_tls`, for clients with one of its authority. None: plain
    text, on loopback.

    Raises:
        OperatorError: the address is not of this machine alone and there is no TLS, or a certificate cannot be read.
    """
    if settings.worker_tls is None:
        if not is_loopback(address.host):
            raise OperatorError(f"--grpc {address}: all that reach it could use the models; set worker_tls")
        return None
    files = settings.worker_tls
    pair = (_read("worker_tls", files.key), _read("worker_tls", files.certificate))
    return grpc.ssl_server_credentials([pair], _read("worker_tls", files.ca), require_client_auth=True)


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OperatorError(f"{setting}: {error}") from error
