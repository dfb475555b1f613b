"""The quantised formats by their name in `quantization_config`."""

from collections.abc import Callable, Mapping
from typing import Any

from engine.checkpoints.json_keys import Keys
from engine.checkpoints.quantization.awq import AWQFormat
from engine.checkpoints.quantization.bitsandbytes import BitsAndBytesFormat
from engine.checkpoints.quantization.compressed_tensors import CompressedTensorsFormat
from engine.checkpoints.quantization.float8 import FP8Format
from engine.checkpoints.quantization.gptq import GPTQFormat
from engine.checkpoints.quantization.mxfp4 import MXFP4Format
from engine.checkpoints.quantization.scheme import WeightFormat

FORMATS: Mapping[str, Callable[[Keys], WeightFormat]] = {
    "gptq": GPTQFormat,
    "awq": AWQFormat,
    "compressed-tensors": CompressedTensorsFormat,
    "fp8": FP8Format,
    "mxfp4": MXFP4Format,
    "bitsandbytes": BitsAndBytesFormat,
}

_KEYS = ("quantization_config", "compression_config")
"""The second is the name that compressed-tensors had."""


def read_format(config: Mapping[str, Any]) -> WeightFormat | None:
    """The format that a parsed config.json states; None if the checkpoint is not quantised.

    Raises:
        UnsupportedCheckpoint: the format, or a key of it, is not understood; the message names the key.
    """
    keys = Keys(config, "config.json: ")
    stated = [key for key in _KEYS if keys.mapping(key)]
    if not stated:
        return None
    own = Keys(keys.mapping(stated[0]), f"config.json: {stated[0]}.")
    method = own.text("quant_method")
    if method not in FORMATS:
        raise own.refuse("quant_method", f"{method!r:.80} is not one of {', '.join(FORMATS)}")
    return FORMATS[method](own)
