"""How many ranks models need: from their bytes and the devices' memory. Arithmetic only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.memory.kv_memory import DEVICE_SHARE, InsufficientMemory
from engine.models.config import ModelConfig
from engine.models.expansion import weight_memory
from engine.models.sources import WeightSource

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """Bytes that a model needs on all ranks together: its weights, and the KV of one `window` of tokens.
    `num_heads`: of queries, which a number of ranks must divide."""

    name: str
    weights: int
    window_kv: int
    window: int
    num_heads: int

    def __str__(self) -> str:
        return f"{self.name}: {_gib(self.weights)} of weights, {_gib(self.window_kv)} of KV for {self.window} tokens"


def model_bytes(name: str, source: WeightSource, window: int, number_bytes: int) -> ModelBytes:
    """`number_bytes`: of a number in the compute dtype. Quantised matrices count as expanded."""
    config = source.config
    weights = weight_memory(source, lambda *_: False, number_bytes).total
    return ModelBytes(name, weights, window * _token_numbers(config) * number_bytes, window, config.num_heads)


def _token_numbers(config: ModelConfig) -> int:
    """Numbers of KV of a token in all layers."""
    return sum(heads.kv_numbers for heads in config.kv_heads)


def tensor_size(models: Sequence[ModelBytes], device_bytes: Sequence[int], say: Callable[[str], None]) -> int:
    """The smallest number of devices, a power of two, whose memory holds the models, each with one window of KV.
    `device_bytes`: memory of each. `say`: gets the arithmetic.

    Raises:
        InsufficientMemory: all devices together do not; the message has the arithmetic.
    """
    needed = sum(model.weights + model.window_kv for model in models)
    stated = "; ".join(map(str, models))
    size = 1
    while size <= len(device_bytes):
        usable = int(DEVICE_SHARE * min(device_bytes[:size]))
        fits = needed <= size * usable and all(model.num_heads % size == 0 for model in models)
        if fits:
            say(
                f"tensor_parallel auto: {size}. {stated}: {_gib(needed)} on {size} of {len(device_bytes)} devices, of "
                f"which each has {DEVICE_SHARE:.0%} of {_gib(min(device_bytes[:size]))}"
            )
            return size
        size *= 2
    raise InsufficientMemory(
        f"tensor_parallel auto: {stated}: {_gib(needed)} do not fit in {DEVICE_SHARE:.0%} of "
        f"{len(device_bytes)} devices of {_gib(min(device_bytes))}"
    )


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
