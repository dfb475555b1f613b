"""Addresses to listen on, and the certificates that listeners show."""

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict


class ListenAddress(NamedTuple):
    """A host and a port; port 0 selects a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "ListenAddress":
        """Of `host:port`, with an IPv6 address in brackets.

        Raises:
            ValueError: it has another form.
        """
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise ValueError(f"an address has the form host:port, got {text!r}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class StatedServerTLS(BaseModel):
    """The table `[grpc_tls]`: PEM files of a certificate chain and of its key."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    certificate: Path
    key: Path
