"""What reads logits, in native code: draws, masks, log-probabilities. Meanings: `kernels.reference`."""

import ctypes

import torch
from torch import Tensor

from kernels.cpu.native.abi import Sampling
from kernels.cpu.native.library import load
from kernels.ops import SamplingColumns

_COLUMNS = {
    "inverse_temperature": torch.float32,
    "noise_scale": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "keys": torch.int64,
}
"""Fields of TpSampling, in its order."""


class NativeSampling:
    """Draws and measures on logits float32 [R, V], whose rows lie anywhere, each contiguous.

    A row's draw depends on its own logits and columns alone, to the bit: not on the rows beside it or on threads.
    """

    def __init__(self) -> None:
        library = load()
        assert library is not None, "there is no native library"
        self._library = library
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Tensor:
        return self._draw(logits, None, columns)

    def sample_among(self, logits: Tensor, token_ids: Tensor, columns: SamplingColumns) -> Tensor:
        token_ids = token_ids.contiguous()
        assert token_ids.dtype == torch.int64, f"token ids of {token_ids.dtype}"
        assert len(token_ids) == logits.shape[1], f"{len(token_ids)} tokens for {logits.shape[1]} columns"
        return self._draw(logits, token_ids.data_ptr(), columns)

    def mask_logits(self, logits: Tensor, bitmask: Tensor) -> None:
        _check(logits)
        assert bitmask.dtype == torch.int32, f"a bitmask of {bitmask.dtype}"
        assert len(bitmask) == len(logits), f"{len(bitmask)} masks for {len(logits)} rows"
        assert bitmask.shape[1] * 32 >= logits.shape[1], f"{bitmask.shape[1]} words for {logits.shape[1]} tokens"
        bitmask = bitmask.contiguous()
        self._library.tp_mask_logits(*_where(logits), bitmask.data_ptr(), bitmask.stride(0))

    def finite_rows(self, logits: Tensor) -> Tensor:
        _check(logits)
        finite = torch.empty(len(logits), dtype=torch.bool)
        self._library.tp_finite_rows(*_where(logits), finite.data_ptr())
        return finite

    def token_logprobs(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _check(logits)
        rows, vocab_size = logits.shape
        assert tokens.dtype == torch.int64, f"tokens of {tokens.dtype}"
        assert len(tokens) == rows, f"{len(tokens)} tokens for {rows} rows"
        tokens = tokens.contiguous()
        if rows:
            least, most = torch.aminmax(tokens)
            assert 0 <= int(least) <= int(most) < vocab_size, f"a token that is none of {vocab_size}"
        normalisers, logprobs = torch.empty(rows), torch.empty(rows)
        ranks = torch.empty(rows, dtype=torch.int64)
        outputs = (each.data_ptr() for each in (tokens, normalisers, logprobs, ranks))
        self._library.tp_token_logprobs(*_where(logits), *outputs)
        return normalisers, logprobs, ranks

    def _draw(self, logits: Tensor, token_ids_at: int | None, columns: SamplingColumns) -> Tensor:
        _check(logits)
        rows, vocab_size = logits.shape
        assert vocab_size > 0, "nothing to draw from"
        held = [getattr(columns, name).contiguous() for name in _COLUMNS]
        for name, column in zip(_COLUMNS, held, strict=True):
            assert len(column) == rows, f"{name} of {len(column)} rows for {rows}"
            assert column.dtype == _COLUMNS[name], f"{name} of {column.dtype}"
        sampling = Sampling(*(column.data_ptr() for column in held))
        tokens = torch.empty(rows, dtype=torch.int64)
        size = self._library.tp_sample_scratch_bytes(rows, vocab_size)
        if len(self._scratch) < size:
            self._scratch = torch.empty(size, dtype=torch.uint8)
        self._library.tp_sample(
            *_where(logits), token_ids_at, ctypes.byref(sampling), tokens.data_ptr(), self._scratch.data_ptr()
        )
        return tokens


def _check(logits: Tensor) -> None:
    assert logits.dtype == torch.float32, f"logits of {logits.dtype}"
    assert logits.shape[1] <= 1 or logits.stride(1) == 1, "logits whose rows are not contiguous"


def _where(logits: Tensor) -> tuple[int, int, int, int]:
    return logits.data_ptr(), logits.stride(0), *logits.shape
