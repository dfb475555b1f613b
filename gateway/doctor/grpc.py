"""Checks the gRPC listener: its packages, its address, its certificate."""

import ssl
from collections.abc import Iterator

from gateway.config.listen_address import ListenAddress, StatedServerTLS
from gateway.config.settings import Settings
from gateway.doctor.finding import Finding, failure, ok
from gateway.errors import OperatorError
from gateway.extras import install, is_installed

_WHAT = "gRPC"


def grpc(settings: Settings) -> Iterator[Finding]:
    """A finding where the settings have a listener."""
    if settings.grpc_listen is None:
        return
    if not is_installed("grpc"):
        yield failure(_WHAT, "the extra 'grpc' is not installed", install("grpc"))
        return
    from gateway.grpc.addresses import gateway_credentials  # imports the extra

    address = ListenAddress.parse(settings.grpc_listen)
    try:
        gateway_credentials(settings, address)
        if isinstance(settings.grpc_tls, StatedServerTLS):
            files = settings.grpc_tls
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)
    except OperatorError as error:
        yield failure(_WHAT, str(error), "correct grpc_listen or [grpc_tls] in turnpike.toml")
    except ssl.SSLError as error:
        detail = f"the files of grpc_tls are no certificate and its key ({error.reason or error.strerror})"
        yield failure(_WHAT, detail, "correct [grpc_tls] in turnpike.toml")
    else:
        encrypted = isinstance(settings.grpc_tls, StatedServerTLS)
        yield ok(_WHAT, f"{address}, {'TLS' if encrypted else 'plain text'}")
