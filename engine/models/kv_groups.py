"""The grouping of layers whose KV shares a block: layers of one kind in each group, with equally many numbers in all.

A block has the same bytes in every group, so all take blocks from one pool (vLLM's hybrid KV cache manager does the
same). Where the numbers do not divide evenly, some groups have layers too few, and memory is left unused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import BLOCK_TOKENS
from engine.models.config import ModelConfig
from kernels.layout import HeadShape, MixedBlocks

MAX_GROUPS = 8
"""Bound on the block tables of a sequence."""
MAX_UNUSED = 1 / 8
"""Bound on the fraction of a model's KV memory that is left unused."""


@dataclass(frozen=True, slots=True)
class KVGroups:
    """`windows`: attention window of each group's layers in tokens; the first group has none. `layers`: layers of a
    block, at most. `places`: of each layer with KV, its group and its number there."""

    windows: tuple[int | None, ...]
    layers: int
    places: tuple[tuple[int, int], ...]


def one_group(layers: int) -> KVGroups:
    """All layers in one group, whose blocks are kept for the whole context."""
    return KVGroups((None,), layers, tuple((0, layer) for layer in range(layers)))


def group_layers(windows: Sequence[int | None], max_positions: int, layer_heads: Sequence[HeadShape] = ()) -> KVGroups:
    """The groups of a model's layers with KV, given the window of each, for contexts of up to `max_positions` tokens.
    `layer_heads`: the heads of each; all have the same if there are none.

    Of the possible sizes of a block, it takes the one with the least memory for a long context, then for a short one.
    One group where no block would ever be released, where each layer has a window, or where too much memory would be
    left unused.
    """
    sizes = [heads.kv_numbers for heads in layer_heads] or [1] * len(windows)
    kinds: dict[int | None, list[int]] = {None: []}
    for layer, window in enumerate(windows):
        wide = window is None or window + BLOCK_TOKENS >= max_positions
        kinds.setdefault(None if wide else window, []).append(layer)
    if len(kinds) == 1 or not kinds[None]:
        return one_group(len(windows))
    choices = []
    for block in _block_sizes(sizes, max(map(len, kinds.values()))):
        numbers = [len(_filled(layers, sizes, block)) for layers in kinds.values()]
        groups = sum(numbers)
        if groups <= MAX_GROUPS and groups * block - sum(sizes) <= MAX_UNUSED * groups * block:
            choices.append((numbers[0] * block, groups * block, groups, block))
    if not choices:
        return one_group(len(windows))
    block = min(choices)[-1]
    of_groups: list[int | None] = []
    places = [(0, 0)] * len(windows)
    for kind, layers in kinds.items():
        for group in _filled(layers, sizes, block):
            for number, layer in enumerate(group):
                places[layer] = len(of_groups), number
            of_groups.append(kind)
    return KVGroups(tuple(of_groups), 1 + max(number for _, number in places), tuple(places))


def mixed_blocks(config: ModelConfig, groups: KVGroups) -> MixedBlocks | None:
    """The blocks of a model whose layers have keys and values of different shapes, or store keys only; None for any
    other."""
    usual = (config.num_kv_heads, config.head_dim, False)
    if all((heads.kv_heads, heads.dim, heads.keys_only) == usual for heads in config.kv_heads):
        return None
    return MixedBlocks(config.kv_heads, tuple(group for group, _ in groups.places))


def _block_sizes(sizes: Sequence[int], most_layers: int) -> list[int]:
    """Sizes of a block to choose from: whole numbers of layers of one size."""
    multiples = {size * count for size in set(sizes) for count in range(1, most_layers + 1)}
    return sorted(multiple for multiple in multiples if multiple >= max(sizes))


def _filled(layers: Sequence[int], sizes: Sequence[int], block: int) -> list[list[int]]:
    """The layers in groups of at most `block` in size, in order."""
    groups: list[list[int]] = []
    room = 0
    for layer in layers:
        if not groups or sizes[layer] > room:
            groups.append([])
            room = block
        groups[-1].append(layer)
        room -= sizes[layer]
    return groups
