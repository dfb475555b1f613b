"""Memory that a model's weights take on this machine, from its headers, or from its config before it is downloaded."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.config import ModelConfig
from engine.models.expansion import TakesBlocks, weight_memory
from engine.models.layout import expected_tensors
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.process.host_memory import PROCESS_BYTES, host_need
from kernels import gpu_formats
from kernels.cpu.native import takes
from kernels.cpu.native_ops import computes_natively
from kernels.dispatch import takes_gpu
from kernels.gpu import missing_for_floats8

ROUNDED_BITS = {"int8": 8.5, "int4": 5.5}
"""Bits of a weight that `quantize` rounds, at most: with its share of a scale."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """`weights_bytes`: of the weights in memory. `kv_token_bytes`: of the keys and values of a token.

    `notice`: what expanding quantised weights costs, if any are expanded.
    """

    parameters: int
    weights_bytes: int
    kv_token_bytes: int
    notice: str | None = None

    def __str__(self) -> str:
        return f"{self.parameters / 1e9:.2f} billion parameters, {self.kv_token_bytes / 1024:.0f} KiB of KV a token"


def size_of(settings: Settings, path: Path) -> ModelSize:
    """Of a checkpoint, of which only headers are read.

    Raises:
        UnsupportedCheckpoint: it cannot be served.
        OSError: it cannot be read.
    """
    checkpoint = open_checkpoint(path)
    memory = weight_memory(checkpoint, _takes_blocks(settings), _number_bytes(settings))
    plain = _rounded(settings, memory.expanded + memory.plain)
    return _size(settings, checkpoint.config, memory.kept + plain, memory.notice)


def size_of_download(settings: Settings, config: ModelConfig, weights_bytes: int, *, quantized: bool) -> ModelSize:
    """Of weights that are not there yet. `weights_bytes`: of their files, the least that quantised weights take."""
    plain = _rounded(settings, _parameters(config) * _number_bytes(settings))
    return _size(settings, config, weights_bytes if quantized else plain)


def require_memory(settings: Settings, weights_bytes: int) -> tuple[str, bool]:
    """The memory of weights, KV and the process, in words, and whether this machine has it: if not, less KV would fit.
    The words are empty on a GPU, whose memory only the engine knows.

    Raises:
        OperatorError: the weights do not fit, whatever is left to KV.
    """
    if takes_gpu(settings.device):
        return "", True
    need = host_need(settings, weights_bytes, 1)
    if weights_bytes + PROCESS_BYTES > need.total_bytes:
        raise OperatorError(f"the model does not fit in memory: {need}")
    return str(need), need.fits


def _size(settings: Settings, config: ModelConfig, weights_bytes: int, notice: str | None = None) -> ModelSize:
    number = 1 if settings.kv_dtype in ("int8", "fp8") else _number_bytes(settings)
    kv_token_bytes = sum(heads.kv_numbers for heads in config.kv_heads) * number
    return ModelSize(_parameters(config), weights_bytes, kv_token_bytes, notice)


def _parameters(config: ModelConfig) -> int:
    return sum(math.prod(shape) for _, shape in expected_tensors(config))


def _rounded(settings: Settings, plain_bytes: int) -> int:
    """Bytes of plain weights after `quantize`."""
    bits = ROUNDED_BITS.get(settings.quantize)
    return plain_bytes if bits is None else int(plain_bytes / _number_bytes(settings) * bits / 8)


def _takes_blocks(settings: Settings) -> TakesBlocks:
    """Whether the backend that serves would pack a block format."""
    if takes_gpu(settings.device):
        return partial(gpu_formats.takes, floats8=missing_for_floats8() is None)
    if settings.dtype != "float32" and computes_natively():
        return takes
    return lambda format, in_features: False


def _number_bytes(settings: Settings) -> int:
    return 4 if settings.dtype == "float32" else 2
