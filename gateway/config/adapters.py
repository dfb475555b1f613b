"""The settings of tenants' adapters."""

from pathlib import Path

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator


class StatedAdapters(BaseModel):
    """The table `[adapters]`.

    `slots`: adapters that each model keeps resident; 0: models take none; None: 20 on a CPU, and none on a GPU, where
    their memory is reserved. `cache_bytes`: host memory of each model for adapters that have been read and are not
    resident. `wait_s`: time after which a request fails whose adapter is not resident. `folder`: where
    files of adapters are stored; replicas that share a database share it; None: `adapters` in
    `data_dir`. `roots`: folders from which an administrator may load adapters by path; empty: none. `max_rank`,
    `max_bytes`: of one adapter. `tenant_adapters`, `tenant_bytes`: limits of a tenant that has none of its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    slots: int | None = Field(default=None, ge=0, le=4096)
    cache_bytes: ByteSize = Field(default=ByteSize(512 * 1024**2), ge=0)
    wait_s: float = Field(default=30.0, gt=0, le=600)
    folder: Path | None = None
    roots: tuple[Path, ...] = ()
    max_rank: int = Field(default=64, ge=1, le=512)
    max_bytes: ByteSize = Field(default=ByteSize(1024**3), ge=1)
    tenant_adapters: int = Field(default=100, ge=0)
    tenant_bytes: ByteSize = Field(default=ByteSize(20 * 1024**3), ge=0)

    @field_validator("folder")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @field_validator("roots")
    @classmethod
    def _all_absolute(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(path.expanduser().absolute() for path in paths)
