"""The definition of a product with adapters: see `kernels.adapters`."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernels.adapters import NO_ADAPTER, Parts


def add_low_rank(y: Tensor, x: Tensor, adapters: Mapping[int, Parts], slots: Sequence[int]) -> Tensor:
    """y [T, N] plus what the adapter of each token adds, in the dtype of y.

    x: [T, K], the product's inputs. adapters: by slot. slots: of each token, or `NO_ADAPTER`. Each token's sum is
    computed in float32, added to its y in float32, and rounded once. It depends on that token alone: a token has the
    same bits in any step. Backends may round `down @ x` to their compute dtype, within `reference`'s tolerances.
    """
    out = y.to(torch.float32, copy=True)
    for token, slot in enumerate(slots):
        if slot == NO_ADAPTER:
            continue
        for part in adapters[slot]:
            down, up = (torch.from_numpy(weight).float() for weight in (part.down, part.up))
            added = up @ (down @ x[token].float())
            out[token, part.first : part.first + len(added)] += added
    return out.to(y.dtype)
