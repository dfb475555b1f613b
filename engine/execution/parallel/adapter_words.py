"""An adapter as words and bytes, for the ranks that compute with parts of it."""

from collections.abc import Sequence

import numpy as np

from kernels.adapters import ADAPTED_PRODUCTS, AdapterWeights, LayerAdapter, LowRankPart
from kernels.arrays import FLOAT32, Ints

_EMPTY = -1


def adapter_words(weights: AdapterWeights | None) -> tuple[Ints, bytes]:
    """Words int64: the number of layers, and of each product of each layer the number of its parts, then of each part
    its rank, inputs, outputs and first output. Bytes: `down` and `up` of each, float32. None: no adapter."""
    if weights is None:
        return np.array([_EMPTY]), b""
    words, numbers = [len(weights.layers)], []
    for layer in weights.layers:
        for product in ADAPTED_PRODUCTS:
            parts = layer.parts(product)
            words.append(len(parts))
            for part in parts:
                words += [part.rank, part.down.shape[1], len(part.up), part.first]
                numbers += [np.ascontiguousarray(each, dtype=FLOAT32).tobytes() for each in (part.down, part.up)]
    return np.array(words, dtype=np.int64), b"".join(numbers)


def adapter_of(words: Ints, data: bytes) -> AdapterWeights | None:
    """The adapter of some words and bytes."""
    numbers, values = iter(words.tolist()), np.frombuffer(data, dtype=FLOAT32)
    layers = next(numbers)
    if layers == _EMPTY:
        return None
    at = 0

    def take(rows: int, columns: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
        nonlocal at
        at += rows * columns
        return values[at - rows * columns : at].reshape(rows, columns)

    def part() -> LowRankPart:
        rank, inputs, outputs, first = (next(numbers) for _ in range(4))
        return LowRankPart(take(rank, inputs), take(outputs, rank), first)

    def parts() -> Sequence[LowRankPart]:
        return [part() for _ in range(next(numbers))]

    return AdapterWeights([LayerAdapter(*(tuple(parts()) for _ in ADAPTED_PRODUCTS)) for _ in range(layers)])
