"""The inference engine: scheduling, paged KV memory, models, sampling.

A library in its own right. `Engine` loads models and generates; the rest of the names here are what it takes and
gives. The engine has never heard of HTTP, money or API keys.
"""

from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig, SchedulerConfig
from engine.errors import EngineError, InvalidParameter, UnservableRequest
from engine.request import FinishReason, SamplingParams, ServiceClass, TextDelta, Usage

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
    "SamplingParams",
    "SchedulerConfig",
    "ServiceClass",
    "TextDelta",
    "UnservableRequest",
    "Usage",
]


def __getattr__(name: str) -> Any:
    """`Engine` brings much with it that the scheduler and the allocator do without, so it is imported on first use."""
    if name in ("Completion", "Engine"):
        from engine import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
