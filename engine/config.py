"""Settings of the engine: frozen, validated on construction, without behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from engine.request import MAX_RESERVED_FRACTION, PREMIUM, STANDARD, ServiceClass
from engine.sampling_defaults import SamplingDefaults
from kernels.layout import BLOCK_TOKENS as BLOCK_TOKENS

MOST_DRAFTS = BLOCK_TOKENS
"""Maximum draft tokens of one request in one step."""

STEP_TIMEOUT_SECONDS = 60.0
STEPS_IN_TIMEOUT = 4
"""A step is planned to take at most this fraction (1/n) of the timeout after which the watchdog gives it up."""
LONGEST_STEP_NS = int(1e9 * STEP_TIMEOUT_SECONDS / STEPS_IN_TIMEOUT)

KV_DISK_BYTES = 8 << 30
KV_DISK_IDLE_SECONDS = 30.0

ADAPTER_SLOTS = 20
"""Adapters that a model on a CPU keeps resident unless stated."""
MAX_ADAPTER_RANK = 64
ADAPTER_CACHE_BYTES = 512 << 20
ADAPTER_WAIT_SECONDS = 30.0
ADAPTER_WAIT_NS = int(1e9 * ADAPTER_WAIT_SECONDS)

COLLECTIVE_TIMEOUT_SECONDS = 30.0
MAX_RANKS = 64
"""Bound on the processes of an engine."""

DType = Literal["auto", "bfloat16", "float32"]
Device = Literal["auto", "cpu", "cuda"]
KVDtype = Literal["auto", "fp8", "int8"]
Quantize = Literal["none", "int8", "int4", "fp8"]
GenerationConfig = Literal["auto", "off"]


class StepSizes(NamedTuple):
    """Sizes of a step: see `SchedulerConfig`."""

    max_running: int
    step_tokens: int
    chunk_tokens: int


CPU_SIZES = StepSizes(64, 512, 512)
GPU_SIZES = StepSizes(128, 1024, 1024)
LARGE_GPU_SIZES = StepSizes(256, 2048, 2048)
_LARGE_GPU_BYTES = 40 << 30


def step_sizes(gpu_bytes: int | None) -> StepSizes:
    """Default sizes for a GPU with this much memory; None: for a CPU.

    A GPU's matrix products reach their rate from about 2,048 rows on. A smaller card keeps its memory for KV.
    """
    if gpu_bytes is None:
        return CPU_SIZES
    return LARGE_GPU_SIZES if gpu_bytes >= _LARGE_GPU_BYTES else GPU_SIZES


class StatedSizes(NamedTuple):
    """Sizes of a step as an operator states them; None: by the device."""

    max_running: int | None = None
    step_tokens: int | None = None
    chunk_tokens: int | None = None

    def on(self, gpu_bytes: int | None) -> StepSizes:
        """The sizes for a GPU with this much memory; None: for a CPU."""
        sizes = step_sizes(gpu_bytes)
        max_running = self.max_running or sizes.max_running
        step_tokens = self.step_tokens or max(sizes.step_tokens, max_running)
        return StepSizes(max_running, step_tokens, min(self.chunk_tokens or sizes.chunk_tokens, step_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """`max_running`: sequence slots. `step_tokens`: tokens computed in a step at most, of which one request gets at
    most `chunk_tokens` of prefill. `classes`: the service classes that requests name.

    A tenant with more than `tenant_cache_fraction` of the KV blocks evicts its own cached ones before those of others.
    Waiting requests of one tenant may cause a burst of `tenant_preemptions` preemptions, refilled over
    `preemption_window_steps` steps.

    Raises:
        ValueError: a value is out of its range, or two classes share a name or priority.
    """

    max_running: int = CPU_SIZES.max_running
    step_tokens: int = CPU_SIZES.step_tokens
    chunk_tokens: int = CPU_SIZES.chunk_tokens
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
        names, priorities = [cls.name for cls in self.classes], [cls.priority for cls in self.classes]
        for values in (names, priorities):
            if len(set(values)) < len(values):
                raise ValueError(f"service classes must differ in name and in priority, got {values}")
        reserved = sum(cls.reserved_fraction for cls in self.classes)
        if reserved > MAX_RESERVED_FRACTION + 1e-9:
            raise ValueError(f"all classes together may reserve {MAX_RESERVED_FRACTION}, got {reserved}")
        if not 0.0 < self.tenant_cache_fraction <= 1.0:
            raise ValueError(f"tenant_cache_fraction must be in (0, 1], got {self.tenant_cache_fraction}")
        if self.tenant_preemptions < 0 or self.preemption_window_steps < 1:
            raise ValueError("tenant_preemptions must not be negative, preemption_window_steps at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """`kv_cache_bytes`: KV memory of each model in bytes (None: a share of the free memory). `max_model_len`: bound on
    prompt plus answer in tokens (None: the model's own). `device` auto: a GPU if one can be used, else the CPU, for
    which the start-up probe then chooses `threads` (None) and `dtype` (auto). `kv_dtype` fp8 is for GPUs. `quantize`:
    format of weight matrices, for those not already stored in fewer bits; fp8 is for GPUs.

    Raises:
        ValueError: a value is out of its range.
    """

    scheduler: SchedulerConfig = SchedulerConfig()
    device: Device = "auto"
    dtype: DType = "auto"
    kv_dtype: KVDtype = "auto"
    quantize: Quantize = "none"
    sampling_defaults: Mapping[str, SamplingDefaults] = field(default_factory=lambda: MappingProxyType({}))
    """Sampling parameters by model, for requests that do not state them. They override those of `generation_config`."""
    generation_config: GenerationConfig = "auto"
    """auto: a model has the sampling defaults of the catalogue and of its checkpoint. off: it has none of them."""
    kv_cache_bytes: int | None = None
    max_model_len: int | None = None
    prefix_cache: bool = True
    kv_disk_folder: Path | None = None
    """Folder for KV blocks on disk, of models on a CPU; None: none are kept. Needs the extra 'kvdisk'."""
    kv_disk_bytes: int = KV_DISK_BYTES
    """Maximum bytes in that folder, of all models together."""
    kv_disk_idle_seconds: float = KV_DISK_IDLE_SECONDS
    """Time without use after which a cached block is written there."""
    threads: int | None = None
    weight_cache: Path | None = None
    """Folder for expanded weights of quantised files, memory-mapped at the next start; None disables the cache."""
    salt_key: bytes | None = None
    """HMAC key that derives a tenant's prefix-cache salt; None: random at each start."""
    step_timeout_seconds: float = STEP_TIMEOUT_SECONDS
    """Time after which a step counts as hung: its requests fail and the engine is no longer ready."""
    ngram: bool = False
    """Enable drafts by n-gram lookup in the request's own text (prompt lookup decoding)."""
    drafts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Maps a model to its draft model; both are loaded."""
    require_drafts: bool = True
    """Whether a model whose draft model does not fit is refused; otherwise it is served without drafts."""
    draft_depth: int = 8
    """Maximum draft tokens of a request in a step. The actual number is chosen for each step by its measured gain."""
    speculate_below: int = 33
    """Drafting is disabled while a model has this many running requests or more."""
    adapter_slots: int | None = None
    """Adapters that each model keeps resident at once; 0: it takes none. None: 20 on a CPU, where they take memory when
    they are loaded, and 0 on a GPU, where their memory is reserved."""
    max_adapter_rank: int = MAX_ADAPTER_RANK
    """Maximum rank of an adapter. On a GPU memory is reserved for it."""
    adapter_cache_bytes: int = ADAPTER_CACHE_BYTES
    """Host memory of each model for adapters that have been read and have no slot."""
    adapter_wait_seconds: float = ADAPTER_WAIT_SECONDS
    """Time after which a request fails whose adapter is not resident."""
    tensor_parallel: int | Literal["auto"] = 1
    """Processes that compute each layer together, each with some of its heads and inner dimensions. auto: the fewest
    devices whose memory holds the models."""
    pipeline_parallel: int = 1
    """Stages of layers, one after the other, each of which as many processes as `tensor_parallel` compute."""
    collective_timeout_seconds: float = COLLECTIVE_TIMEOUT_SECONDS
    """Time after which the engine ends if one of these processes does not take part in a step."""

    def __post_init__(self) -> None:
        if not 1 <= self.draft_depth <= MOST_DRAFTS:
            raise ValueError(f"draft_depth must be in [1, {MOST_DRAFTS}], got {self.draft_depth}")
        if self.speculate_below < 0:
            raise ValueError(f"speculate_below must not be negative, got {self.speculate_below}")
        if self.adapter_slots is not None and not 0 <= self.adapter_slots <= 4096:
            raise ValueError(f"adapter_slots must be in [0, 4096], got {self.adapter_slots}")
        if not 1 <= self.max_adapter_rank <= 512:
            raise ValueError(f"max_adapter_rank must be in [1, 512], got {self.max_adapter_rank}")
        if self.adapter_cache_bytes < 0:
            raise ValueError(f"adapter_cache_bytes must not be negative, got {self.adapter_cache_bytes}")
        if not 0.0 < self.adapter_wait_seconds < float("inf"):
            raise ValueError(f"adapter_wait_seconds must be positive, got {self.adapter_wait_seconds}")
        if self.kv_disk_bytes < 1:
            raise ValueError(f"kv_disk_bytes must be positive, got {self.kv_disk_bytes}")
        if not 0.0 <= self.kv_disk_idle_seconds < float("inf"):
            raise ValueError(f"kv_disk_idle_seconds must not be negative, got {self.kv_disk_idle_seconds}")
        for model, draft in self.drafts.items():
            if draft in self.drafts:
                raise ValueError(f"{draft} cannot draft for {model}: it is drafted for itself")
        tensor = 1 if self.tensor_parallel == "auto" else self.tensor_parallel
        if min(tensor, self.pipeline_parallel) < 1 or tensor * self.pipeline_parallel > MAX_RANKS:
            ranks = f"tensor_parallel {self.tensor_parallel}, pipeline_parallel {self.pipeline_parallel}"
            raise ValueError(f"{ranks}: must be at least 1, and together at most {MAX_RANKS} processes")
        if not 0.0 < self.collective_timeout_seconds < float("inf"):
            raise ValueError(f"collective_timeout_seconds must be positive, got {self.collective_timeout_seconds}")
        if not 0.0 < self.step_timeout_seconds < float("inf"):
            raise ValueError(f"step_timeout_seconds must be positive, got {self.step_timeout_seconds}")

    @property
    def longest_step_ns(self) -> int:
        """Longest planned step, in nanoseconds."""
        return int(1e9 * self.step_timeout_seconds / STEPS_IN_TIMEOUT)
