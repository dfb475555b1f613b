"""Adapters in a GPU's memory: slots at fixed addresses, filled on a stream of their own while steps run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.adapter_sizes import LayerSizes, ProductSize, check_adapter
from kernels.adapters import AdaptedProduct, AdapterWeights, Parts
from kernels.exchange import tensor_of
from kernels.reference_experts import ExpertTiles
from kernels.step import ROW_WORDS
from kernels.triton.adapters import expand_kernel, shrink_kernel, token_adapters_kernel
from kernels.triton.dependent_launch import launch_options
from kernels.triton.routing import align
from kernels.triton.tiles import require_contiguous
from kernels.triton.tuning_adapters import (
    SPLIT_INPUTS,
    TOKEN_TILE,
    adapter_tile,
    rank_bucket,
    rank_tile,
    shrink_inputs,
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A product's place in a slot: its number among all, and its `base`: see `kernels.triton.adapters`."""

    number: int
    base: int
    size: ProductSize

    @property
    def aligned(self) -> int:
        """The largest power of two up to 16 that divides the outputs of all parts."""
        return next(each for each in (16, 8, 4, 2, 1) if not any(outputs % each for outputs in self.size.parts))


@dataclass(frozen=True, slots=True)
class PinnedAdapter:
    """numbers: the products as they lie in a slot. ranks: int32 [products]. Both on the host, pinned for a GPU."""

    numbers: Tensor
    ranks: Tensor

    @property
    def bytes(self) -> int:
        """Size of both."""
        return self.numbers.nbytes + self.ranks.nbytes


class TritonAdapters:
    """A `kernels.device_adapters.DeviceAdapters`."""

    def __init__(
        self, layers: Sequence[LayerSizes], slots: int, max_rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises:
        ValueError: adapters of `max_rank` are not taken."""
        self._layers, self._places, base = layers, dict[tuple[int, AdaptedProduct], _Place](), 0
        for index, sizes in enumerate(layers):
            for product, size in sizes.items():
                self._places[index, product] = _Place(len(self._places), base, size)
                base += len(size.parts) * size.inputs + size.outputs
        self._rank_numbers, self.max_rank = base, rank_bucket(max_rank)
        self._on_gpu, self._device, self._dtype = device.type == "cuda", device, dtype
        self.memory = torch.zeros((slots, self.max_rank * base), dtype=dtype, device=device)
        self.ranks = torch.zeros((slots, len(self._places)), dtype=torch.int32, device=device)
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None
        self._sent: dict[int, tuple[PinnedAdapter, torch.cuda.Event | None]] = {}
        """By slot, what was put there last, and the event after its copies."""

    @property
    def slots(self) -> int:
        return len(self.memory)

    def pack(self, weights: AdapterWeights) -> PinnedAdapter:
        """See `DeviceAdapters`."""
        check_adapter(weights, self._layers)
        rank = rank_bucket(max((self._rank_of(key, weights) for key in self._places), default=1))
        if rank > self.max_rank:
            raise ValueError(f"an adapter of rank {rank} in slots of rank {self.max_rank}")
        numbers = torch.zeros(rank * self._rank_numbers, dtype=self._dtype, pin_memory=self._on_gpu)
        ranks = torch.zeros(len(self._places), dtype=torch.int32, pin_memory=self._on_gpu)
        for (index, product), place in self._places.items():
            if parts := weights.layers[index].parts(product):
                size = place.size
                downs = len(size.parts) * rank * size.inputs
                of_product = numbers[rank * place.base :][: downs + size.outputs * rank]
                down = of_product[:downs].view(len(size.parts), rank, size.inputs)
                _fill(down, of_product[downs:].view(size.outputs, rank), size, parts)
                ranks[place.number] = rank
        return PinnedAdapter(numbers, ranks)

    def put(self, slot: int, packed: PinnedAdapter | None) -> None:
        """See `DeviceAdapters`."""
        assert 0 <= slot < self.slots, f"slot {slot} of {self.slots}"
        self._sent.pop(slot, None)
        if packed is None:
            return
        target = self.memory[slot, : len(packed.numbers)]
        if self._stream is None:
            target.copy_(packed.numbers)
            self.ranks[slot].copy_(packed.ranks)
            self._sent[slot] = packed, None
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(packed.numbers, non_blocking=True)
            self.ranks[slot].copy_(packed.ranks, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._sent[slot] = packed, event

    def is_resident(self, slot: int) -> bool:
        """See `DeviceAdapters`."""
        sent = self._sent.get(slot)
        return sent is not None and (sent[1] is None or bool(sent[1].query()))

    def of_step(self, rows: Tensor, token_rows: Tensor, slot_mapping: Tensor, adapters: Tensor) -> "AdaptedStep":
        """See `DeviceAdapters`."""
        tokens = len(token_rows)
        chosen = torch.empty((tokens, 1), dtype=torch.int32, device=self._device)
        token_adapters_kernel[(triton.cdiv(tokens, TOKEN_TILE),)](
            rows,
            token_rows,
            slot_mapping,
            adapters,
            chosen,
            tokens,
            ROW=ROW_WORDS,
            TILE=TOKEN_TILE,
            **launch_options(),
        )
        return AdaptedStep(self, align(chosen, self.slots, adapter_tile(tokens).row_tile), tokens)

    def place(self, layer: int, product: AdaptedProduct) -> _Place | None:
        """The place of a product in the slots; None: adapters cannot change it."""
        return self._places.get((layer, product))

    def _rank_of(self, key: tuple[int, AdaptedProduct], weights: AdapterWeights) -> int:
        """The largest sum of the ranks of the parts that add to one part of a product."""
        size, parts, first, ranks = self._places[key].size, weights.layers[key[0]].parts(key[1]), 0, [1]
        for outputs in size.parts:
            overlapping = (part for part in parts if part.first < first + outputs and first < _end(part.up, part.first))
            ranks.append(sum(part.rank for part in overlapping))
            first += outputs
        return max(ranks)


class AdaptedStep:
    """The adapters of a step's tokens, a `StepAdapters`. `tiles`: of tokens, by slot."""

    def __init__(self, memory: TritonAdapters, tiles: ExpertTiles, tokens: int) -> None:
        self._memory, self._tiles, self._tokens = memory, tiles, tokens

    def add(self, layer: int, product: AdaptedProduct, y: Tensor, x: Tensor) -> Tensor:
        """See `StepAdapters`; y is overwritten."""
        memory, tiles, place = self._memory, self._tiles, self._memory.place(layer, product)
        if place is None:
            return y
        require_contiguous(x, y)
        tile, size = adapter_tile(self._tokens), place.size
        count, parts, ranks = len(tiles.experts), len(size.parts), rank_tile(memory.max_rank)
        splits = triton.cdiv(size.inputs, SPLIT_INPUTS)
        partials = torch.empty((splits, count, parts, tile.row_tile, ranks), dtype=torch.float32, device=y.device)
        slots = (memory.memory, memory.ranks, tiles.experts, tiles.assignments, partials, count)
        at = (memory.ranks.shape[1], place.number, memory.memory.shape[1], place.base, size.inputs)
        sizes = {"PARTS": parts, "RANK_TILE": ranks, "ROW_TILE": tile.row_tile}
        shrink_kernel[parts * splits, count](
            x,
            *slots,
            *at,
            **sizes,
            INPUT_TILE=shrink_inputs(x.element_size()),
            SPLIT_INPUTS=SPLIT_INPUTS,
            num_warps=tile.shrink_warps,
            num_stages=tile.shrink_stages,
            **launch_options(),
        )
        ends = [sum(size.parts[: each + 1]) for each in range(parts)]
        expand_kernel[sum(triton.cdiv(outputs, tile.output_tile) for outputs in size.parts), count](
            y,
            *slots,
            *at,
            size.outputs,
            ends[0],
            ends[min(1, parts - 1)],
            splits,
            **sizes,
            ALIGNED=place.aligned,
            OUTPUT_TILE=tile.output_tile,
            num_warps=tile.expand_warps,
            **launch_options(),
        )
        return y


def adapter_bytes(layers: Sequence[LayerSizes], slots: int, max_rank: int, dtype: torch.dtype) -> int:
    """Bytes of the slots' numbers."""
    of_rank = sum(len(size.parts) * size.inputs + size.outputs for sizes in layers for size in sizes.values())
    return slots * rank_bucket(max_rank) * of_rank * dtype.itemsize


def _fill(down: Tensor, up: Tensor, size: ProductSize, parts: Parts) -> None:
    """Copy the parts into down [parts, R, K] and up [N, R]. One that adds to several parts of the product has a copy of
    its `down` in each."""
    first = 0
    for number, outputs in enumerate(size.parts):
        end, line = first + outputs, 0
        for part in parts:
            low, high = max(first, part.first), min(end, _end(part.up, part.first))
            if low < high:
                down[number, line : line + part.rank] = tensor_of(part.down)
                up[low:high, line : line + part.rank] = tensor_of(part.up)[low - part.first : high - part.first]
                line += part.rank
        first = end


def _end(up: object, first: int) -> int:
    return first + len(up)  # type: ignore[arg-type]
