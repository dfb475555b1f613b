"""Native ops on logits: sampling, masks, log-probabilities. Defined by `kernels.reference`."""

import ctypes

import numpy as np

from kernels.arrays import FLOAT32, Dtype, Flags, Floats, Ints, Words, address, aligned_bytes
from kernels.cpu.native.abi import Penalties, Sampling
from kernels.cpu.native.library import load
from kernels.host import HostColumns, HostPenalties

_INT64: Dtype = np.dtype(np.int64)
_INT32: Dtype = np.dtype(np.int32)
_COLUMNS = {
    "inverse_temperature": FLOAT32,
    "noise_scale": FLOAT32,
    "top_k": _INT64,
    "top_p": FLOAT32,
    "min_p": FLOAT32,
    "keys": _INT64,
}
"""Fields of TpSampling, in order."""
_OF_PENALTIES = {
    "lines": _INT64,
    "lengths": _INT64,
    "repetition": FLOAT32,
    "presence": FLOAT32,
    "frequency": FLOAT32,
    "draft_rows": _INT64,
    "draft_tokens": _INT64,
    "draft_times": _INT32,
}
"""Arrays of TpPenalties besides its lines."""


class NativeSampling:
    """Ops on logits float32 [R, V] with contiguous rows at any stride.

    A row's token depends on its own logits and columns alone, to the bit: not on other rows or on threads.
    """

    def __init__(self) -> None:
        library = load()
        assert library is not None, "there is no native library"
        self._library = library
        self._scratch = aligned_bytes(0)

    def sample(self, logits: Floats, columns: HostColumns) -> Ints:
        return self._draw(logits, None, columns)

    def sample_among(self, logits: Floats, token_ids: Ints, columns: HostColumns) -> Ints:
        assert token_ids.dtype == _INT64, f"token ids of {token_ids.dtype}"
        assert len(token_ids) == logits.shape[1], f"{len(token_ids)} tokens for {logits.shape[1]} columns"
        token_ids = np.ascontiguousarray(token_ids)
        return self._draw(logits, address(token_ids), columns)

    def mask_logits(self, logits: Floats, bitmask: Words) -> None:
        _check(logits)
        assert bitmask.dtype == np.int32, f"a bitmask of {bitmask.dtype}"
        assert len(bitmask) == len(logits), f"{len(bitmask)} masks for {len(logits)} rows"
        assert bitmask.shape[1] * 32 >= logits.shape[1], f"{bitmask.shape[1]} words for {logits.shape[1]} tokens"
        bitmask = np.ascontiguousarray(bitmask)
        self._library.tp_mask_logits(*_where(logits), address(bitmask), bitmask.shape[1])

    def penalise(self, logits: Floats, penalties: HostPenalties, token_columns: Words | None = None) -> None:
        _check(logits)
        assert penalties.tokens.strides == penalties.times.strides, (
            "lines of tokens that lie otherwise than their times"
        )
        assert len(penalties.lines) == len(penalties.lengths) == len(logits), "penalties of other rows"
        held = {name: np.ascontiguousarray(getattr(penalties, name)) for name in _OF_PENALTIES}
        for name, dtype in _OF_PENALTIES.items():
            assert held[name].dtype == dtype, f"{name} of {held[name].dtype}"
        columns = None if token_columns is None else np.ascontiguousarray(token_columns)
        assert columns is None or columns.dtype == _INT32, f"token columns of {columns.dtype}"
        at = {name: address(array) for name, array in held.items()}
        drafts = len(penalties.draft_rows)
        struct = Penalties(
            address(penalties.tokens),
            address(penalties.times),
            penalties.tokens.strides[0] // _INT32.itemsize,
            *(at[name] for name in ("lines", "lengths", "repetition", "presence", "frequency")),
            drafts,
            *(at[name] for name in ("draft_rows", "draft_tokens", "draft_times")),
            None if columns is None else address(columns),
        )
        draft_logits = np.empty(drafts, FLOAT32)
        self._library.tp_penalise(*_where(logits), ctypes.byref(struct), address(draft_logits))

    def finite_rows(self, logits: Floats) -> Flags:
        _check(logits)
        finite: Flags = np.empty(len(logits), np.bool_)
        self._library.tp_finite_rows(*_where(logits), address(finite))
        return finite

    def token_logprobs(self, logits: Floats, tokens: Ints) -> tuple[Floats, Floats, Ints]:
        _check(logits)
        rows, vocab_size = logits.shape
        assert tokens.dtype == _INT64, f"tokens of {tokens.dtype}"
        assert len(tokens) == rows, f"{len(tokens)} tokens for {rows} rows"
        tokens = np.ascontiguousarray(tokens)
        if rows:
            assert 0 <= tokens.min() <= tokens.max() < vocab_size, f"a token that is none of {vocab_size}"
        normalisers, logprobs = np.empty((2, rows), FLOAT32)
        ranks: Ints = np.empty(rows, _INT64)
        outputs = (address(output) for output in (tokens, normalisers, logprobs, ranks))
        self._library.tp_token_logprobs(*_where(logits), *outputs)
        return normalisers, logprobs, ranks

    def _draw(self, logits: Floats, token_ids_at: int | None, columns: HostColumns) -> Ints:
        _check(logits)
        rows, vocab_size = logits.shape
        assert vocab_size > 0, "nothing to draw from"
        held = [np.ascontiguousarray(getattr(columns, name)) for name in _COLUMNS]
        for (name, dtype), column in zip(_COLUMNS.items(), held, strict=True):
            assert len(column) == rows, f"{name} of {len(column)} rows for {rows}"
            assert column.dtype == dtype, f"{name} of {column.dtype}"
        sampling = Sampling(*(address(column) for column in held))
        tokens: Ints = np.empty(rows, _INT64)
        size = self._library.tp_sample_scratch_bytes(rows, vocab_size)
        if len(self._scratch) < size:
            self._scratch = aligned_bytes(size)
        self._library.tp_sample(
            *_where(logits), token_ids_at, ctypes.byref(sampling), address(tokens), address(self._scratch)
        )
        return tokens


def _check(logits: Floats) -> None:
    assert logits.dtype == FLOAT32, f"logits of {logits.dtype}"
    # numpy says nothing of how an array without numbers lies
    assert logits.shape[1] <= 1 or not len(logits) or logits.strides[1] == 4, "logits whose rows are not contiguous"


def _where(logits: Floats) -> tuple[int, int, int, int]:
    return address(logits), logits.strides[0] // 4, *logits.shape
