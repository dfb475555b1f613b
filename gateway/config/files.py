"""The settings of tenants' files and of batches."""

from pathlib import Path

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator


class StatedFiles(BaseModel):
    """The table `[files]`.

    `folder`: where the contents of files are stored; gateways that share a database share it, on a file system with
    locks; None: `files` in `data_dir`. `max_bytes`: of one file. `tenant_files`, `tenant_bytes`: limits of each tenant.
    `min_free`: free space of the folder's disk below which uploads are refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    folder: Path | None = None
    max_bytes: ByteSize = Field(default=ByteSize(512 * 1024**2), ge=1)
    tenant_files: int = Field(default=1000, ge=0)
    tenant_bytes: ByteSize = Field(default=ByteSize(10 * 1024**3), ge=0)
    min_free: ByteSize = Field(default=ByteSize(256 * 1024**2), ge=0)

    @field_validator("folder")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()


class StatedBatches(BaseModel):
    """The table `[batches]`.

    `concurrency`: lines that a gateway process runs at a time; 0: it runs none, and other gateways do. `service_class`:
    the class in which lines run; None: the class named batch, or the lowest one. `max_lines`, `max_bytes`: of one input
    file. `tenant_batches`: batches of a tenant that have not ended. `lease_s`: time after which another gateway resumes
    the batches of one that has ended.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    concurrency: int = Field(default=64, ge=0, le=4096)
    service_class: str | None = None
    max_lines: int = Field(default=50_000, ge=1)
    max_bytes: ByteSize = Field(default=ByteSize(200 * 1024**2), ge=1)
    tenant_batches: int = Field(default=100, ge=0)
    lease_s: float = Field(default=15.0, ge=1, le=600)
