"""Torch's ops behind the interface of CPU backends."""

from dataclasses import fields
from typing import TypeVar

import torch

from kernels import ops as torch_ops
from kernels.arrays import FLOAT32, Array, Dtype, Flags, Floats, Ints, Words
from kernels.cpu import native
from kernels.cpu.memory import lazy_zeros
from kernels.cpu.penalties import penalise
from kernels.exchange import array_of, numpy_dtype, tensor_of
from kernels.host import HostColumns, HostEdits, HostPenalties, HostProduct
from kernels.ops import Ops

_Torch = TypeVar("_Torch", torch_ops.SamplingColumns, torch_ops.LogitEdits)


class TorchHost:
    """A `kernels.host.HostOps` over torch. Ops on logits use the native library where it is installed: they need no
    bfloat16."""

    def __init__(self, ops: Ops) -> None:
        assert not ops.on_gpu, "the host's ops are on the host"
        self._ops = ops
        self._sampling = None if native.level() is None else native.NativeSampling()

    @property
    def dtype(self) -> Dtype:
        return numpy_dtype(self._ops.dtype)

    @torch.inference_mode()
    def pack_rows(self, rows: Array) -> HostProduct:
        packed = self._ops.pack_linear(tensor_of(rows), None)

        @torch.inference_mode()
        def product(x: Array) -> Floats:
            return array_of(packed.wide(tensor_of(x)))

        return product

    def allocate_states(self, num_slots: int, num_layers: int, words: int) -> Floats:
        """float32 [slots, layers, words] of recurrent states."""
        return lazy_zeros((num_slots, num_layers, words), FLOAT32)

    @torch.inference_mode()
    def clear_blocks(self, kv: Array, block_ids: Ints) -> None:
        self._ops.clear_blocks(tensor_of(kv), tensor_of(block_ids))

    @torch.inference_mode()
    def copy_blocks(self, kv: Array, sources: Ints, targets: Ints) -> None:
        self._ops.copy_blocks(tensor_of(kv), tensor_of(sources), tensor_of(targets))

    @torch.inference_mode()
    def edit_logits(self, logits: Floats, edits: HostEdits) -> None:
        self._ops.edit_logits(tensor_of(logits), _in_torch(torch_ops.LogitEdits, edits))

    def penalise(self, logits: Floats, penalties: HostPenalties, token_columns: Words | None = None) -> None:
        if self._sampling is not None:
            self._sampling.penalise(logits, penalties, token_columns)
        else:
            penalise(logits, penalties, token_columns)

    @torch.inference_mode()
    def mask_logits(self, logits: Floats, bitmask: Words) -> None:
        if self._sampling is not None:
            self._sampling.mask_logits(logits, bitmask)
        else:
            self._ops.mask_logits(tensor_of(logits), tensor_of(bitmask))

    @torch.inference_mode()
    def sample(self, logits: Floats, columns: HostColumns) -> Ints:
        if self._sampling is not None:
            return self._sampling.sample(logits, columns)
        return array_of(self._ops.sample(tensor_of(logits), _in_torch(torch_ops.SamplingColumns, columns)))

    @torch.inference_mode()
    def sample_among(self, logits: Floats, token_ids: Ints, columns: HostColumns) -> Ints:
        if self._sampling is not None:
            return self._sampling.sample_among(logits, token_ids, columns)
        in_torch = _in_torch(torch_ops.SamplingColumns, columns)
        return array_of(self._ops.sample_among(tensor_of(logits), tensor_of(token_ids), in_torch))

    @torch.inference_mode()
    def finite_rows(self, logits: Floats) -> Flags:
        if self._sampling is not None:
            return self._sampling.finite_rows(logits)
        return array_of(self._ops.finite_rows(tensor_of(logits)))

    @torch.inference_mode()
    def token_logprobs(self, logits: Floats, tokens: Ints) -> tuple[Floats, Floats, Ints]:
        if self._sampling is not None:
            return self._sampling.token_logprobs(logits, tokens)
        normalisers, logprobs, ranks = self._ops.token_logprobs(tensor_of(logits), tensor_of(tokens))
        return array_of(normalisers), array_of(logprobs), array_of(ranks)


def _in_torch(kind: type[_Torch], columns: HostColumns | HostEdits) -> _Torch:
    return kind(*(tensor_of(getattr(columns, field.name)) for field in fields(columns)))
