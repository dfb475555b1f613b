"""Mutual TLS between clients and workers: each side has a certificate of an authority that both trust."""

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """PEM files: a certificate chain, its private key, and the certificates of the authority of the other side."""

    certificate: Path
    key: Path
    authority: Path


def server_context(files: TLSFiles) -> ssl.SSLContext:
    """Of a worker: it talks to clients with a certificate of the authority alone.

    Raises:
        OSError: a file cannot be read, or is not PEM (`ssl.SSLError`).
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(files: TLSFiles) -> ssl.SSLContext:
    """Of a client: it talks to workers whose certificate names their host.

    Raises:
        OSError: as `server_context`.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, files)


def _context(protocol: int, files: TLSFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    return context
