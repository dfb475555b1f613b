"""Authorities and certificates of tests, made by openssl."""

import subprocess
from pathlib import Path

from engine.workers.tls import TLSFiles


def make_authority(folder: Path) -> TLSFiles:
    """An authority, and a certificate of it for 127.0.0.1."""
    folder.mkdir()
    authority, key = folder / "ca.pem", folder / "ca.key"
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority",
            "-keyout", str(key), "-out", str(authority))  # fmt: skip
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=worker", "-keyout", str(folder / "own.key"),
            "-out", str(folder / "own.csr"))  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    openssl("x509", "-req", "-days", "2", "-in", str(folder / "own.csr"), "-CA", str(authority), "-CAkey", str(key),
            "-CAcreateserial", "-extfile", str(folder / "names"), "-out", str(folder / "own.pem"))  # fmt: skip
    return TLSFiles(folder / "own.pem", folder / "own.key", authority)


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
