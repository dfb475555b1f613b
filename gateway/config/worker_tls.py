"""Certificates between gateways and workers."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class StatedTLS(BaseModel):
    """The table `[worker_tls]`: PEM files. Each side shows a certificate of the authority `ca`; a worker's names its
    host."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    certificate: Path
    key: Path
    ca: Path
