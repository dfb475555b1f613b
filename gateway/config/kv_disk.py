"""Settings of KV blocks on disk."""

from pathlib import Path

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator


class StatedKVDisk(BaseModel):
    """The table `[kv_disk]`.

    `folder`: where cached KV blocks of models on a CPU are kept, encrypted, also across restarts; None: nowhere. Each
    process needs its own. `bytes`: maximum size of the folder, of all models together. `idle_s`: time without use after
    which a cached block is written there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    folder: Path | None = None
    bytes: ByteSize = Field(default=ByteSize(8 * 1024**3), ge=1024**2)
    idle_s: float = Field(default=30.0, ge=0, le=86_400)

    @field_validator("folder")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()
