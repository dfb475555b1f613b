"""Settings of the engine. Frozen, validated on construction, no behaviour."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernels.layout import BLOCK_TOKENS as BLOCK_TOKENS

DType = Literal["auto", "bfloat16", "float32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """`max_running` sequence slots; `step_tokens` computed at most a step, of which one request gets at most
    `chunk_tokens` of prefill."""

    max_running: int = 64
    step_tokens: int = 512
    chunk_tokens: int = 512

    def __post_init__(self) -> None:
        if min(self.max_running, self.step_tokens, self.chunk_tokens) < 1:
            raise ValueError("max_running, step_tokens and chunk_tokens must be at least 1")
        if self.step_tokens < self.max_running:
            raise ValueError("step_tokens must be at least max_running, or a decode could starve")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """`kv_cache_bytes` of KV memory a model (None: a share of what is free). `max_model_len` bounds prompt and
    answer together (None: the model's own window). `threads` None leaves the choice to the start-up probe."""

    scheduler: SchedulerConfig = SchedulerConfig()
    dtype: DType = "auto"
    kv_cache_bytes: int | None = None
    max_model_len: int | None = None
    prefix_cache: bool = True
    threads: int | None = None
    weight_cache: Path | None = None
    """A folder that keeps expanded weights of quantised files, so that the next start maps them; None keeps nothing."""
    salt_key: bytes | None = None
    """Key of the HMAC that turns a tenant into its prefix-cache salt; None draws one at start."""
