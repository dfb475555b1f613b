"""Sampling parameters of each slot on the device, one column each; see `kernels.ops.SlotSampling`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.execution.device.arena import float_word, long_words
from engine.execution.slots import inverse_temperature
from engine.request import Request
from kernels.ops import SlotSampling

_DTYPES = {
    "inverse_temperature": torch.float32,
    "noise_scale": torch.float32,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seeds": torch.int64,
    "repetition_penalty": torch.float32,
    "presence_penalty": torch.float32,
    "frequency_penalty": torch.float32,
}

COLUMN_WORDS: Mapping[str, int] = {name: dtype.itemsize // 4 for name, dtype in _DTYPES.items()}
"""Words of a slot in each column."""


def view_columns(tables: Mapping[str, Tensor], counts: Tensor) -> SlotSampling:
    """The columns in their tables int32 [S, words], with counts int32 [S, V]. Initialised to neutral values, which
    padding rows read."""
    columns = {name: table.view(_DTYPES[name]).squeeze(1) for name, table in tables.items()}
    for name in ("inverse_temperature", "top_p", "repetition_penalty"):
        columns[name].fill_(1.0)
    columns["top_k"].fill_(counts.shape[1])
    return SlotSampling(**columns, counts=counts)


def request_words(request: Request, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """A request's words of each column."""
    params = request.params
    return {
        "inverse_temperature": (float_word(inverse_temperature(params)),),
        "noise_scale": (float_word(0.0 if params.temperature == 0 else 1.0),),
        "top_k": (min(params.top_k or vocab_size, vocab_size),),
        "top_p": (float_word(params.top_p),),
        "min_p": (float_word(params.min_p),),
        "seeds": long_words(request.seed),
        "repetition_penalty": (float_word(params.repetition_penalty),),
        "presence_penalty": (float_word(params.presence_penalty),),
        "frequency_penalty": (float_word(params.frequency_penalty),),
    }
