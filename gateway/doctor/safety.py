"""Checks for unsafe settings, which `turnpike serve` rejects or warns of."""

import socket
from collections.abc import Iterator

from gateway.config.pepper import UnusablePepper, load_pepper, pepper_path
from gateway.config.safety import UnsafeSettings, readable_secrets, refuse_unsafe, refuse_unshared, stores_without_tls
from gateway.config.settings import Settings
from gateway.doctor.finding import Finding, failure, ok, warning
from gateway.errors import OperatorError


def address(settings: Settings) -> Iterator[Finding]:
    """Whether the address may be served on with this pepper."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        pepper = _pepper(settings)
        if pepper is not None:
            refuse_unsafe(str(found[0][4][0]), pepper, demo=False)
    except UnsafeSettings as error:
        detail, _, remedy = str(error).partition(": ")
        yield failure("address", detail, remedy)
    except (OSError, UnusablePepper):
        return  # reported by the checks of port and pepper
    else:
        yield ok("address", f"{settings.host} may be served on with this pepper")


def processes(settings: Settings) -> Iterator[Finding]:
    """Whether several gateway processes share what they must."""
    try:
        refuse_unshared(settings, demo=False)
    except OperatorError as error:
        detail, _, remedy = str(error).partition(": ")
        yield failure("gateway processes", detail, remedy)
    else:
        yield ok("gateway processes", f"{settings.gateway_processes}")


def encryption(settings: Settings) -> Iterator[Finding]:
    open_urls = stores_without_tls(settings)
    if open_urls:
        detail = f"{', '.join(open_urls)}: data leaves this machine as it is"
        yield warning("encryption", detail, "use TLS: postgresql://...?ssl=require, rediss://, kafkas://, https://")
    else:
        yield ok("encryption", "nothing goes to the stores for others to read on its way")


def secret_files(settings: Settings) -> Iterator[Finding]:
    files = " ".join(str(path) for path in readable_secrets(settings))
    if files:
        yield warning("secret files", f"every user of this machine may read {files}", f"chmod 600 {files}")
    else:
        yield ok("secret files", "none that others may read")


def _pepper(settings: Settings) -> bytes | None:
    """The pepper; None if it does not exist yet and will be generated."""
    if settings.key_pepper is None and not pepper_path(settings).exists():
        return None
    return load_pepper(settings)
