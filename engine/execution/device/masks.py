"""Bitmasks of the draws that a grammar constrains, filled on the host and uploaded."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.device.staging import on_device
from engine.execution.masks import bitmask_words, follow_grammars
from engine.execution.sampler import Draw
from engine.grammar.matcher import GrammarMatcher
from engine.scheduling.plan import ScheduledRow


@dataclass(frozen=True, slots=True)
class DrawMasks:
    """The allowed tokens of M draws.

    draws: int64 [M], their indices in the step. bits: int32 [M, ceil(V / 32)]; see `kernels.reference.mask_rows`.
    masked: the indices on the host. failed: indices of draws whose grammar failed; they have no mask and are discarded.
    """

    draws: Tensor
    bits: Tensor
    masked: frozenset[int]
    failed: frozenset[int]


def grammar_masks(
    rows: Sequence[ScheduledRow], draw_starts: Sequence[int], vocab_size: int, device: torch.device
) -> DrawMasks:
    """The masks of a step's rows, in kernel order, after the tokens that their requests have by now. `draw_starts`:
    index of each row's first draw.

    Called once all steps before this one are committed. A request that ended with one of them is not masked, as its
    row is dropped.
    """
    draws: list[Draw] = []
    places: list[int] = []
    for row, first in zip(rows, draw_starts, strict=True):
        count = 1 + len(row.drafts)
        if row.samples and row.request.matcher is not None and row.request.slot is not None:
            draws += [Draw(row.request, row.drafts[:taken]) for taken in range(count)]
            places += range(first, first + count)
    host = torch.empty((len(draws), bitmask_words(vocab_size)), dtype=torch.int32, pin_memory=device.type == "cuda")
    words, masked = host.numpy(), list[int]()

    def mask(index: int, matcher: GrammarMatcher) -> None:
        matcher.fill_bitmask(words[len(masked)])
        masked.append(places[index])

    failed = follow_grammars(draws, mask)
    return DrawMasks(
        on_device(masked, torch.int64, device),
        host[: len(masked)].to(device, non_blocking=True),
        frozenset(masked),
        frozenset(places[index] for index in failed),
    )
