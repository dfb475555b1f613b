"""Settings of the engine. Frozen, validated on construction, no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from engine.request import MAX_RESERVED_FRACTION, PREMIUM, STANDARD, ServiceClass
from kernels.layout import BLOCK_TOKENS as BLOCK_TOKENS

MOST_DRAFTS = BLOCK_TOKENS
"""Of one request in one step."""

STEP_TIMEOUT_SECONDS = 60.0
STEPS_IN_TIMEOUT = 4
"""No step is planned to take more than one of so many parts of the time after which it is taken for a hang."""
LONGEST_STEP_NS = int(1e9 * STEP_TIMEOUT_SECONDS / STEPS_IN_TIMEOUT)

DType = Literal["auto", "bfloat16", "float32"]
Device = Literal["auto", "cpu", "cuda"]
KVDtype = Literal["auto", "fp8", "int8"]
Quantize = Literal["none", "int8", "int4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """`max_running` sequence slots; `step_tokens` computed at most a step, of which one request gets at most
    `chunk_tokens` of prefill. A request names one of `classes`.

    A tenant with more than `tenant_cache_fraction` of the KV blocks evicts cached ones of its own before another's.
    Waiting requests of one tenant may cause `tenant_preemptions` preemptions at once, and as many again in
    `preemption_window_steps` steps.
    """

    max_running: int = 64
    step_tokens: int = 512
    chunk_tokens: int = 512
    classes: tuple[ServiceClass, ...] = (PREMIUM, STANDARD)
    tenant_cache_fraction: float = 0.5
    tenant_preemptions: int = 32
    preemption_window_steps: int = 1000

    def __post_init__(self) -> None:
        if min(self.max_running, self.step_tokens, self.chunk_tokens) < 1:
            raise ValueError("max_running, step_tokens and chunk_tokens must be at least 1")
        if self.step_tokens < self.max_running:
            raise ValueError("step_tokens must be at least max_running, or a decode could starve")
        if not self.classes:
            raise ValueError("there must be a service class")
        for values in ([each.name for each in self.classes], [each.priority for each in self.classes]):
            if len(set(values)) < len(values):
                raise ValueError(f"service classes must differ in name and in priority, got {values}")
        reserved = sum(each.reserved_fraction for each in self.classes)
        if reserved > MAX_RESERVED_FRACTION + 1e-9:
            raise ValueError(f"all classes together may reserve {MAX_RESERVED_FRACTION}, got {reserved}")
        if not 0.0 < self.tenant_cache_fraction <= 1.0:
            raise ValueError(f"tenant_cache_fraction must be in (0, 1], got {self.tenant_cache_fraction}")
        if self.tenant_preemptions < 0 or self.preemption_window_steps < 1:
            raise ValueError("tenant_preemptions must not be negative, preemption_window_steps at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """`kv_cache_bytes` of KV memory a model (None: a share of what is free). `max_model_len` bounds prompt and
    answer together (None: the model's own window). `device` auto is a GPU where one can be used, else the CPU, whose
    `threads` (None) and `dtype` (auto) the start-up probe then chooses. `kv_dtype` fp8 is for GPUs, int8 and `quantize`
    for CPUs: what matrices are kept as that are not in blocks of fewer bits already."""

    scheduler: SchedulerConfig = SchedulerConfig()
    device: Device = "auto"
    dtype: DType = "auto"
    kv_dtype: KVDtype = "auto"
    quantize: Quantize = "none"
    kv_cache_bytes: int | None = None
    max_model_len: int | None = None
    prefix_cache: bool = True
    threads: int | None = None
    weight_cache: Path | None = None
    """A folder that keeps expanded weights of quantised files, so that the next start maps them; None keeps nothing."""
    salt_key: bytes | None = None
    """Key of the HMAC that turns a tenant into its prefix-cache salt; None draws one at start."""
    step_timeout_seconds: float = STEP_TIMEOUT_SECONDS
    """A step that takes longer hangs: its requests fail, and the engine is not ready any more."""
    ngram: bool = False
    """Draft what followed the same tokens before, in the request's own text."""
    drafts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Model -> the small one that drafts for it; both are loaded. On a GPU none does."""
    require_drafts: bool = True
    """Whether a model is refused where the one named in `drafts` cannot draft for it, or served without."""
    draft_depth: int = 8
    """Most drafts of a request in a step. How many there are is decided from step to step, by what they bring."""
    speculate_below: int = 33
    """There are no drafts where a model has so many running requests, or more."""

    def __post_init__(self) -> None:
        if not 1 <= self.draft_depth <= MOST_DRAFTS:
            raise ValueError(f"draft_depth must be in [1, {MOST_DRAFTS}], got {self.draft_depth}")
        if self.speculate_below < 0:
            raise ValueError(f"speculate_below must not be negative, got {self.speculate_below}")
        for model, draft in self.drafts.items():
            if draft in self.drafts:
                raise ValueError(f"{draft} cannot draft for {model}: it is drafted for itself")
        if not 0.0 < self.step_timeout_seconds < float("inf"):
            raise ValueError(f"step_timeout_seconds must be positive, got {self.step_timeout_seconds}")

    @property
    def longest_step_ns(self) -> int:
        """The longest that a step is planned to take."""
        return int(1e9 * self.step_timeout_seconds / STEPS_IN_TIMEOUT)
