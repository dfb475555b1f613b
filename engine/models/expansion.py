"""Which quantised matrices a backend computes with as they are, and what the others cost: they are expanded to plain
numbers."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from engine.models.layout import expected_tensors, is_by_head
from engine.models.sources import BlockSource, WeightSource

TakesBlocks = Callable[[str, int], bool]
"""Whether the backend packs a block format of that many inputs: `kernels.weights.Packer.takes_blocks`."""


@dataclass(frozen=True, slots=True)
class WeightMemory:
    """The memory of a model's weights, in bytes.

    kept: of matrices that stay quantised; expanded: of quantised matrices that are expanded, which take `stored` in the
    checkpoint; plain: of all others. formats: descriptions of those that are expanded. spared: what those that stay
    quantised would take more if they were expanded; kept_formats: their descriptions.
    """

    kept: int
    expanded: int
    stored: int
    plain: int
    formats: tuple[str, ...]
    spared: int
    kept_formats: tuple[str, ...]

    @property
    def total(self) -> int:
        return self.kept + self.expanded + self.plain

    @property
    def notice(self) -> str | None:
        """The cost of the expansion, for operators; None if nothing is expanded."""
        if not self.formats:
            return None
        return (
            f"{'; '.join(self.formats)}: no kernel computes with these weights, expanded from {_mib(self.stored)} to "
            f"{_mib(self.expanded)}"
        )

    @property
    def saving(self) -> str | None:
        """The memory that is saved by computing with quantised weights, for operators; None if none is kept."""
        if not self.kept_formats:
            return None
        return (
            f"{'; '.join(self.kept_formats)}: computed with as stored, in {_mib(self.kept)} instead of "
            f"{_mib(self.kept + self.spared)}"
        )


def kept_matrices(source: WeightSource, takes: TakesBlocks) -> Collection[str]:
    """The quantised matrices that the backend packs without expanding them."""
    if not isinstance(source, BlockSource):
        return ()
    shapes = dict(expected_tensors(source.config))
    return {
        name
        for name, matrix in source.quantized.items()
        if matrix.block_format is not None and not is_by_head(name) and takes(matrix.block_format, shapes[name][1])
    }


def weight_memory(source: WeightSource, takes: TakesBlocks, number_bytes: int) -> WeightMemory:
    """`number_bytes`: of a number that is not quantised."""
    quantized = source.quantized if isinstance(source, BlockSource) else {}
    kept = kept_matrices(source, takes)
    expanded = plain = unkept = 0
    for name, shape in expected_tensors(source.config):
        size = math.prod(shape) * number_bytes
        if name not in quantized:
            plain += size
        elif name not in kept:
            expanded += size
        else:
            unkept += size
    kept_bytes = sum(quantized[name].bytes for name in kept)
    others = [matrix for name, matrix in quantized.items() if name not in kept]
    return WeightMemory(
        kept=kept_bytes,
        expanded=expanded,
        stored=sum(matrix.bytes for matrix in others),
        plain=plain,
        formats=tuple(dict.fromkeys(matrix.description for matrix in others)),
        spared=unkept - kept_bytes,
        kept_formats=tuple(dict.fromkeys(matrix.description for name, matrix in quantized.items() if name in kept)),
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
