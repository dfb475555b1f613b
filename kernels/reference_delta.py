"""The definition of a gated delta net (Yang et al., arXiv 2412.06464), in plain torch: the oracle of every backend, and
what torch computes. Letters in shapes are those of `kernels.delta`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.delta import DeltaShape
from kernels.device_states import DeviceStates
from kernels.step import Row, RowSave
from kernels.weights import DeltaVectors

L2_EPS = 1e-6
"""Added to the sum of squares in the norms of queries and keys."""


@dataclass(frozen=True, slots=True)
class DeltaState:
    """The state of a layer and sequence, float32. kept: the last inputs of the convolution [W - 1, C], oldest first.
    memory: [Hv, Dk, Dv]."""

    kept: Tensor
    memory: Tensor

    @classmethod
    def of(cls, words: Tensor, shape: DeltaShape) -> "DeltaState":
        """Views of float32 [words]."""
        kept, memory = words[: shape.kept_words], words[shape.kept_words :]
        return cls(
            kept.view(shape.taps - 1, shape.channels),
            memory.view(shape.value_heads, shape.key_dim, shape.value_dim),
        )


def convolve(mixed: Tensor, kept: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Causal depthwise convolution of mixed [T, C] after the inputs kept [W - 1, C], with weight [W, C], then SiLU.

    Returns [T, C], and the last W - 1 inputs.
    """
    inputs = torch.cat((kept, mixed))
    taps = len(weight)
    total = sum((weight[tap] * inputs[tap : tap + len(mixed)] for tap in range(taps)), torch.zeros_like(mixed))
    return functional.silu(total), inputs[len(mixed) :]


def l2_norm(x: Tensor) -> Tensor:
    """x [..., D] over its Euclidean norm."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule over the tokens of a sequence, one at a time.

    query, key: [T, Hv, Dk]; value: [T, Hv, Dv]; decay, beta: [T, Hv]; memory: [Hv, Dk, Dv]; all float32. A token decays
    the memory, corrects what it returns for the key towards the value, by the fraction beta, and reads it with the
    query.

    Returns [T, Hv, Dv], and the memory after the last token.
    """
    read = []
    for token in range(len(query)):
        memory = memory * decay[token, :, None, None]
        found = (memory * key[token, :, :, None]).sum(1)
        change = (value[token] - found) * beta[token, :, None]
        memory = memory + key[token, :, :, None] * change[:, None]
        read.append((memory * query[token, :, :, None]).sum(1))
    return torch.stack(read), memory


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of x [..., Dv] times SiLU of the gate, in float32."""
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed * weight * functional.silu(gate)


def gated_delta(
    mixed: Tensor,
    gates: Tensor,
    state: DeltaState,
    shape: DeltaShape,
    vectors: DeltaVectors[Tensor],
    eps: float,
) -> tuple[Tensor, DeltaState]:
    """A gated delta net between its projections, for the tokens of one sequence.

    mixed: [T, C + Hv Dv], queries, keys, values and output gates; gates: [T, 2 Hv], beta and decay of each value head.
    Computed in float32. Returns [T, Hv Dv] in the dtype of `mixed`, and the state after the last token.
    """
    dtype, tokens = mixed.dtype, len(mixed)
    mixed, gates = mixed.float(), gates.float()
    convolved, kept = convolve(mixed[:, : shape.channels], state.kept, vectors.convolution.float())
    keys = shape.key_heads * shape.key_dim
    query, key, value = torch.split(convolved, [keys, keys, shape.values], dim=1)
    value_heads = torch.arange(shape.value_heads, device=mixed.device)
    key_head = value_heads % shape.key_heads if shape.tiled else value_heads * shape.key_heads // shape.value_heads
    query, key = (l2_norm(part.reshape(tokens, shape.key_heads, shape.key_dim))[:, key_head] for part in (query, key))
    beta, step = gates.chunk(2, dim=1)
    rate, bias = vectors.decay_rate.float(), vectors.step_bias.float()
    read, memory = delta_rule(
        query * shape.key_dim**-0.5,
        key,
        value.reshape(tokens, shape.value_heads, shape.value_dim),
        torch.exp(rate * functional.softplus(step + bias)),
        beta.sigmoid(),
        state.memory,
    )
    gate = mixed[:, shape.channels :].reshape(read.shape)
    normed = gated_norm(read, gate, vectors.norm.float(), eps)
    return normed.flatten(1).to(dtype), DeltaState(kept, memory)


class DeltaRow(NamedTuple):
    """A row of a step: its state slot, its first position, its saves, and whether its state is advanced and saved."""

    slot: int
    start: int
    saves: Sequence[RowSave]
    keep: bool


def advance_row(
    mixed: Tensor,
    gates: Tensor,
    memory: Tensor,
    row: DeltaRow,
    shape: DeltaShape,
    vectors: DeltaVectors[Tensor],
    eps: float,
) -> Tensor:
    """`gated_delta` [T, Hv Dv] of the tokens of a row, from the state in its slot of memory [slots, words]. Saves past
    these tokens are not made."""
    words = memory[row.slot] if row.start else torch.zeros(shape.words, device=memory.device)
    state = DeltaState.of(words, shape)
    ends = [*row.saves, RowSave(len(mixed), row.slot)] if row.keep else [RowSave(len(mixed), row.slot)]
    out, first = [], 0
    for end, slot in ends:
        if end > len(mixed):
            continue
        if end > first:
            piece, state = gated_delta(mixed[first:end], gates[first:end], state, shape, vectors, eps)
            out.append(piece)
        if row.keep:
            target = DeltaState.of(memory[slot], shape)
            target.kept.copy_(state.kept)
            target.memory.copy_(state.memory)
        first = end
    return torch.cat(out)


def advance_rows(
    mixed: Tensor,
    gates: Tensor,
    place: int,
    states: DeviceStates,
    shape: DeltaShape,
    vectors: DeltaVectors[Tensor],
    eps: float,
    settled: Tensor | None = None,
) -> Tensor:
    """`gated_delta` [T, Hv Dv] of the rows of a step on a device, in layer `place` of those with states; 0 for padding.

    Advances the states of the rows without drafts. With `settled`, int32 [R], those of the other rows instead, by their
    first `settled` tokens, from the same inputs; the result is then of no use.
    """
    memory = states.memory[:, place]
    out = mixed.new_zeros(len(mixed), shape.values)
    rows = [Row(*line[: len(Row._fields)]) for line in states.rows.tolist()]
    saves = [RowSave(*line) for line in states.saves.tolist()]
    first_save = 0
    for index, row in enumerate(rows):
        own, first_save = saves[first_save : row.saves], row.saves
        if row.state < 0 or (settled is not None and not row.drafts):
            continue
        count = row.tokens if settled is None else int(settled[index])
        keep = not row.drafts or settled is not None
        tokens = slice(row.first, row.first + count)
        of_row = DeltaRow(row.state, row.start, own, keep)
        out[tokens] = advance_row(mixed[tokens], gates[tokens], memory, of_row, shape, vectors, eps)
    return out
