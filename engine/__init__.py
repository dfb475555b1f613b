"""The inference engine: scheduling, paged KV memory, models, sampling.

A library of its own. `Engine` loads models and generates; the other names here are its arguments and results. The
engine knows nothing of HTTP, money or API keys.
"""

from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig, SchedulerConfig
from engine.errors import EngineError, InvalidParameter, UnservableRequest
from engine.request import FinishReason, SamplingParams, ServiceClass, TextDelta, Usage
from engine.sampling_defaults import SamplingDefaults

if TYPE_CHECKING:
    from engine.completion import Completion
    from engine.engine import Engine

__all__ = [
    "Completion",
    "Engine",
    "EngineConfig",
    "EngineError",
    "FinishReason",
    "InvalidParameter",
    "SamplingDefaults",
    "SamplingParams",
    "SchedulerConfig",
    "ServiceClass",
    "TextDelta",
    "UnservableRequest",
    "Usage",
]


def __getattr__(name: str) -> Any:
    """Imports `Engine` on first use: it needs many modules that the scheduler and the allocator do not."""
    if name in ("Completion", "Engine"):
        from engine import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
