"""Slots and logits for the tests of sampling, and what the reference makes of them."""

import math

import torch

from kernels import reference
from kernels.noise import noise_key
from kernels.ops import SamplingColumns, SlotSampling
from tests.support.kernel_tensors import DEVICE

VOCABULARIES = [1, 31, 1000, 1025, 5003]
"""None but the third is a multiple of anything; the last is wider than a tile."""

MARGIN = 1e-4
"""Float32 distinguishes two scores that are further apart than this, whatever the order of its roundings."""


def slot_columns(slots: int, vocab_size: int, **changes: list[float] | list[int]) -> SlotSampling:
    """Columns that sample from the softmax, with these changes."""
    one, zero = torch.ones(slots), torch.zeros(slots)
    columns = {
        "inverse_temperature": one,
        "noise_scale": one,
        "top_k": torch.full((slots,), vocab_size, dtype=torch.int32),
        "top_p": one,
        "min_p": zero,
        "seeds": torch.arange(slots) * 1_000_003 - 7,
        "repetition_penalty": one,
        "presence_penalty": zero,
        "frequency_penalty": zero,
        "counts": torch.zeros((slots, vocab_size), dtype=torch.int32),
    }
    columns |= {name: torch.tensor(values, dtype=columns[name].dtype) for name, values in changes.items()}
    return SlotSampling(**{name: column.to(DEVICE) for name, column in columns.items()})


def every_kind(vocab_size: int) -> SlotSampling:
    """Eight slots that use, between them, all there is."""
    few, half = min(5, vocab_size), max(vocab_size // 2, 1)
    columns = slot_columns(
        8,
        vocab_size,
        inverse_temperature=[1.0, 1 / 0.7, 2.0, 1.0, 1 / 1.3, 1.0, 1.0, 0.5],
        noise_scale=[0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0],
        top_k=[vocab_size, few, vocab_size, vocab_size, half, vocab_size, few, few],
        top_p=[1.0, 1.0, 0.9, 1.0, 0.8, 1.0, 0.5, 0.6],
        min_p=[0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.1],
        seeds=[0, 1, -1, 2**63 - 1, -(2**63), 5, 6, 7],
        repetition_penalty=[1.0, 1.3, 1.0, 1.0, 0.8, 1.0, 1.1, 1.0],
        presence_penalty=[0.0, 0.0, 0.7, 0.0, -0.5, 0.0, 0.0, 0.0],
        frequency_penalty=[0.0, 0.0, 0.0, 0.4, 0.2, 0.0, 0.0, 0.0],
    )
    columns.counts.copy_(random_counts(8, vocab_size))
    return columns


def random_counts(slots: int, vocab_size: int) -> torch.Tensor:
    """Of each slot: most tokens never came, some in the prompt, some in the output, some in both."""
    generator = torch.Generator().manual_seed(slots * vocab_size)
    counts = torch.randint(1, 8, (slots, vocab_size), generator=generator, dtype=torch.int32)
    return counts.where(torch.rand((slots, vocab_size), generator=generator) < 0.3, 0).to(DEVICE)


def random_bitmask(rows: int, vocab_size: int) -> torch.Tensor:
    """About half of the tokens allowed, the first one always."""
    generator = torch.Generator().manual_seed(vocab_size)
    words = torch.randint(-(2**31), 2**31, (rows, math.ceil(vocab_size / 32)), generator=generator, dtype=torch.int64)
    return (words | 1).int().to(DEVICE)


def random_logits(rows: int, vocab_size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab_size + seed)
    return (torch.randn((rows, vocab_size), generator=generator) * 3).to(DEVICE, dtype)


def by_rows(columns: SlotSampling, row_slots: torch.Tensor, positions: torch.Tensor) -> SamplingColumns:
    """The columns of each row, as the op table has them."""
    slots = row_slots.long()
    keys = [noise_key(*pair) for pair in zip(columns.seeds[slots].tolist(), positions.tolist(), strict=True)]
    return SamplingColumns(
        inverse_temperature=columns.inverse_temperature[slots],
        noise_scale=columns.noise_scale[slots],
        top_k=columns.top_k[slots].long(),
        top_p=columns.top_p[slots],
        min_p=columns.min_p[slots],
        keys=torch.tensor(keys, device=DEVICE),
    )


def margins(logits: torch.Tensor, columns: SamplingColumns) -> torch.Tensor:
    """How far the best score of each row of edited logits [R, V] is above the second best one."""
    scaled = logits.float() * columns.inverse_temperature[:, None]
    noise = reference.gumbel_noise(columns.keys, logits.shape[1]) * columns.noise_scale[:, None]
    scores = (scaled + noise).masked_fill(scaled < reference.threshold(scaled, columns), -math.inf)
    if scores.shape[1] == 1:
        return torch.full((scores.shape[0],), math.inf)
    best = scores.topk(2, dim=-1).values
    return best[:, 0] - best[:, 1]
