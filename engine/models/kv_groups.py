"""The grouping of layers whose KV shares a block: layers of one kind in each group, equally many in all.

A block has the same bytes in every group, so all take blocks from one pool (vLLM's hybrid KV cache manager does the
same). Where the numbers of layers do not divide evenly, some groups have layers too few, and memory is left unused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import BLOCK_TOKENS

MAX_GROUPS = 8
"""Bound on the block tables of a sequence."""
MAX_UNUSED = 1 / 8
"""Bound on the fraction of a model's KV memory that is left unused."""


@dataclass(frozen=True, slots=True)
class KVGroups:
    """`windows`: attention window of each group's layers in tokens; the first group has none. `layers`: layers of a
    block. `places`: of each layer with KV, its group and its number there."""

    windows: tuple[int | None, ...]
    layers: int
    places: tuple[tuple[int, int], ...]


def one_group(layers: int) -> KVGroups:
    """All layers in one group, whose blocks are kept for the whole context."""
    return KVGroups((None,), layers, tuple((0, layer) for layer in range(layers)))


def group_layers(windows: Sequence[int | None], max_positions: int) -> KVGroups:
    """The groups of a model's layers with KV, given the window of each, for contexts of up to `max_positions` tokens.

    Of the possible numbers of layers in a block, it takes the one with the least memory for a long context, then for a
    short one. One group where no block would ever be released, where each layer has a window, or where too much memory
    would be left unused.
    """
    kinds: dict[int | None, list[int]] = {None: []}
    for layer, window in enumerate(windows):
        wide = window is None or window + BLOCK_TOKENS >= max_positions
        kinds.setdefault(None if wide else window, []).append(layer)
    counts = [len(layers) for layers in kinds.values()]
    if len(kinds) == 1 or not kinds[None]:
        return one_group(len(windows))
    choices = []
    for each in range(1, max(counts) + 1):
        groups = sum(-(-count // each) for count in counts)
        if groups <= MAX_GROUPS and groups * each - len(windows) <= MAX_UNUSED * groups * each:
            choices.append((-(-len(kinds[None]) // each) * each, groups * each, groups, each))
    if not choices:
        return one_group(len(windows))
    each = min(choices)[-1]
    of_groups: list[int | None] = []
    places = [(0, 0)] * len(windows)
    for kind, layers in kinds.items():
        for number, layer in enumerate(layers):
            places[layer] = len(of_groups) + number // each, number % each
        of_groups += [kind] * -(-len(layers) // each)
    return KVGroups(tuple(of_groups), each, tuple(places))
