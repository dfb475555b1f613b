"""The definition of a mixture of experts, in plain torch (Shazeer et al., arXiv 1701.06538; Mixtral, arXiv 2401.04088).

An assignment is a token and one of its experts: number t k + r for rank r of token t, with k experts for each token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kernels.ops import MlpWeights

UNUSED = -1
"""The expert of a token that is padding or of a tile without assignments, and the assignment of a place that is filled
up."""


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Assignments sorted by expert, in tiles of one expert each.

    experts: int32 [tiles], the expert of each tile; assignments: int32 [tiles x tile], in ascending order within an
    expert. The number of tiles depends on the number of tokens alone; unused ones are last.
    """

    tile: int
    experts: Tensor
    assignments: Tensor


def without_padding(chosen: Tensor, slot_mapping: Tensor) -> Tensor:
    """The chosen experts [T, k]; tokens with a negative slot (int64 [T]) have none: UNUSED."""
    return chosen.masked_fill((slot_mapping < 0)[:, None], UNUSED)


def most_tiles(assignments: int, experts: int, tile: int) -> int:
    """Tiles that hold any distribution of the assignments among the experts."""
    return assignments // tile + min(assignments, experts)


def align(chosen: Tensor, experts: int, tile: int) -> ExpertTiles:
    """Sort the assignments of chosen experts, an integer [T, per_token]."""
    of = chosen.flatten()
    tiles, places = [], []
    for expert in range(experts):
        mine = (of == expert).nonzero().flatten().tolist()
        for first in range(0, len(mine), tile):
            part = mine[first : first + tile]
            tiles.append(expert)
            places += part + [UNUSED] * (tile - len(part))
    unused = most_tiles(len(of), experts, tile) - len(tiles)
    return ExpertTiles(
        tile,
        torch.tensor(tiles + [UNUSED] * unused, dtype=torch.int32, device=chosen.device),
        torch.tensor(places + [UNUSED] * (unused * tile), dtype=torch.int32, device=chosen.device),
    )


def weighted_sum(outputs: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Sum of the outputs of each token's assignments [T k, H], weighted by float32 [T, k], in the order of their rank:
    added in float32, rounded once, to [T, H]. Assignments without an expert count as 0."""
    by_rank = outputs.view(*chosen.shape, -1).float()
    total = torch.zeros_like(by_rank[:, 0])
    for rank in range(chosen.shape[1]):
        used = (chosen[:, rank] >= 0)[:, None]
        total += torch.where(used, by_rank[:, rank] * weights[:, rank, None], 0.0)
    return total.to(outputs.dtype)


def mixture(
    chosen: Tensor,
    shares: Tensor,
    experts: Sequence["MlpWeights"],
    x: Tensor,
    multiply: Callable[[Tensor], Tensor],
    expert_tokens: Tensor,
) -> Tensor:
    """[T, H] from normed inputs x [T, H]: the sum of each token's chosen experts, an integer [T, k] or UNUSED, times
    their shares float32 [T, k].

    multiply: the gated activation of [T, 2F]. expert_tokens: int64 [experts], to which the tokens of each are added.
    Only chosen experts are computed, each for its tokens at once.
    """
    counts = chosen[chosen >= 0].bincount(minlength=len(experts))
    expert_tokens += counts
    outputs = x.new_zeros((chosen.numel(), x.shape[1]))
    for expert in counts.nonzero().flatten().tolist():
        tokens, ranks = (chosen == expert).nonzero(as_tuple=True)
        mlp = experts[expert]
        outputs[tokens * chosen.shape[1] + ranks] = mlp.down(multiply(mlp.gate_up(x[tokens])))
    return weighted_sum(outputs, chosen, shares)
