"""A loaded model, as its callers and as the engine see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.memory.kv_memory import KVPool
from engine.memory.tiers import DiskStore
from engine.models.config import ModelConfig
from engine.models.host_model import HostModel
from engine.runtime.model_details import ModelDetails
from engine.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from engine.scheduling.plan import Executor
from engine.scheduling.scheduler import Scheduler
from engine.speculation.speculator import Speculator
from engine.text.processor import TextProcessor

if TYPE_CHECKING:
    from engine.grammar.compiler import GrammarCompiler
    from engine.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model as callers see it. `max_model_len`: bound on prompt plus answer, in tokens.

    `windows`: the same bound by name of service class. A class has less where KV memory is reserved above it and the
    pool is small. `version` identifies the checkpoint's content.
    """

    name: str
    text: TextProcessor
    max_model_len: int
    windows: Mapping[str, int]
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    created: int
    version: str
    grammars: "GrammarCompiler | None" = None
    """Compiles in this process; None: structured output is not supported, or another process compiles."""
    prefix_cache: bool = True
    sampling_defaults: SamplingDefaults = NO_DEFAULTS
    """The parameters of a request that does not state them."""
    details: ModelDetails | None = None
    """The model's files and memory."""
    adapter_slots: int = 0
    """Adapters that can be resident at once; 0: the model takes none."""
    is_remote: bool = False
    """Another process computes it, and compiles its grammars."""

    @property
    def takes_grammars(self) -> bool:
        """Whether structured output is supported."""
        return self.grammars is not None or self.is_remote


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with all that is needed to step it. `path`: its checkpoint. `model`: None if a GPU computes it, with
    `on_gpu`."""

    served: ServedModel
    path: Path
    model: HostModel | None
    scheduler: Scheduler
    runner: Executor
    pool: KVPool
    speculator: Speculator | None = None
    on_gpu: "Transformer | None" = None
    kv_store: DiskStore | None = None
    """The file for its KV blocks, if they are kept on disk."""

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        model = self.model or self.on_gpu
        assert model is not None, f"{self.served.name} has no network"
        return model.config
