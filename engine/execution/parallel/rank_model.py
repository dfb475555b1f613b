"""The part of a model on one rank, with its memory: what every rank runs of a call, rank 0 among them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.execution.parallel.collectives import RankCollective, Tag
from engine.execution.parallel.shards import Place, stage_groups
from engine.execution.parallel.sources import ShardedSource
from engine.models.kv_groups import KVGroups
from engine.models.loader import Progress, load_model
from engine.models.sources import WeightSource
from engine.models.torch_model import TorchModel
from engine.models.transformer import Transformer
from kernels.adapters import AdapterWeights
from kernels.arrays import Array, Flags, Floats, Ints
from kernels.exchange import array_of, tensor_of
from kernels.host import HostColumns, StepRows
from kernels.ops import Ops

T = TypeVar("T")
Result = Callable[[], T]
"""Waits for a result of a step."""


@dataclass(frozen=True, slots=True)
class PartToLoad:
    """A rank's part of a model. source: of the whole. groups: of the KV of its layers."""

    source: WeightSource
    place: Place
    groups: KVGroups
    max_positions: int


class RankModel:
    """A rank's part of a model. All ranks have the same blocks, slots and step at any time."""

    def __init__(self, transformer: Transformer, collective: RankCollective, place: Place) -> None:
        self.place = place
        self.model = TorchModel(transformer)
        self._transformer = transformer
        self._collective = collective
        self._kv: Array = np.empty(0, np.float32)
        self._states: Floats | None = None
        self._expert_tokens = array_of(transformer.expert_tokens).copy()
        self._rows: StepRows | None = None
        """Of the last step."""
        self._held, self._held_rows = torch.empty(0), 0
        """Of the last step: the hidden states of the last stage, and how many they are."""

    @classmethod
    def load(
        cls, part: PartToLoad, ops: Ops, collective: RankCollective, progress: Progress | None = None
    ) -> "RankModel":
        """Raises:
        UnsupportedCheckpoint: the model cannot be cut so, or its checkpoint cannot be served."""
        source = ShardedSource(part.source, part.place)
        groups = stage_groups(part.source.config, part.groups, part.place)
        model = load_model(source, ops, part.max_positions, progress, "none", groups, collective)
        assert isinstance(model, Transformer), "torch computes parts of models"
        return cls(model, collective, part.place)

    @property
    def expert_tokens(self) -> Ints:
        """As in `HostModel`, of all stages; on rank 0 up to the last step that is complete."""
        return self._expert_tokens

    @property
    def vocab_size(self) -> int:
        """Of the whole model."""
        return self.model.config.vocab_size

    def allocate_kv(self, num_blocks: int) -> Array:
        self._kv = self.model.allocate_kv(num_blocks)
        return self._kv

    def allocate_states(self, num_slots: int) -> Floats:
        self._states = self.model.allocate_states(num_slots)
        return self._states

    def allocate_adapters(self, slots: int) -> None:
        self.model.allocate_adapters(slots)

    def put_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """Fill a slot with this rank's part of an adapter, or empty it."""
        self.model.put_adapter(slot, None if weights is None else self.model.pack_adapter(weights))

    def clear_blocks(self, block_ids: Ints) -> None:
        self.model.ops.clear_blocks(self._kv, block_ids)

    def copy_blocks(self, sources: Ints, targets: Ints) -> None:
        self.model.ops.copy_blocks(self._kv, sources, targets)

    def embed(self, token_ids: Ints) -> Array:
        return self.model.embed(token_ids)

    @torch.inference_mode()
    def begin_forward(self, token_ids: Ints, rows: StepRows, wanted: Ints | None) -> Result[Array]:
        """Compute this rank's layers. The result on rank 0 is as in `HostModel.forward`; it arrives when the last stage
        has computed the step. The ranks of that stage keep the hidden states for `draw_held` and `logits_held`."""
        self._rows = rows = self._with_states(rows)
        hidden = tensor_of(self.model.forward(token_ids, rows, self._kv, wanted))
        self._held, self._held_rows = hidden, len(hidden)
        arrival = self._collective.to_first(hidden, Tag.HIDDEN)
        counts = None
        if len(self._expert_tokens):
            counts = self._collective.sum_counts(self._transformer.expert_tokens.clone())

        def result() -> Array:
            arrived = array_of(arrival.wait())
            if counts is not None:
                self._expert_tokens = array_of(counts.wait())
            return arrived

        return result

    def forward(self, token_ids: Ints, rows: StepRows, wanted: Ints | None) -> Array:
        """As in `HostModel`, on rank 0; on others, what they have of it."""
        result = self.begin_forward(token_ids, rows, wanted)
        return result() if self.place.rank == 0 else array_of(self._held)

    def settle_drafts(self, accepted: Ints) -> None:
        assert self._rows is not None, "no step was computed"
        self.model.settle_drafts(self._rows, accepted)

    @torch.inference_mode()
    def logits(self, hidden: Array) -> Floats | None:
        """As in `HostModel`, on rank 0, whose `hidden` all get that have a part of the head; None on the others."""
        result = self._logits_of(self._collective.to_last(tensor_of(np.ascontiguousarray(hidden))))
        return None if result is None else result()

    @torch.inference_mode()
    def draw(self, hidden: Array, columns: HostColumns) -> tuple[Ints, Flags] | None:
        """As in `DrawsTokens`, on rank 0, whose `hidden` all get that have a part of the head; None on the others."""
        result = self._draw_from(self._collective.to_last(tensor_of(np.ascontiguousarray(hidden))), columns)
        return None if result is None else result()

    @torch.inference_mode()
    def logits_held(self, indices: Ints) -> Result[Floats] | None:
        """The logits of hidden states int64 [D] of the last step, on rank 0, where they arrive; None on the others."""
        return self._logits_of(self._held_states(indices))

    @torch.inference_mode()
    def draw_held(self, indices: Ints, columns: HostColumns) -> Result[tuple[Ints, Flags]] | None:
        """Tokens drawn from hidden states int64 [D] of the last step, on rank 0, where they arrive; None on the
        others."""
        return self._draw_from(self._held_states(indices), columns)

    def _held_states(self, indices: Ints) -> Tensor:
        """On ranks before the last stage, as many rows of no use."""
        return self._held[tensor_of(indices)] if len(indices) < self._held_rows else self._held

    def _logits_of(self, states: Tensor) -> Result[Floats] | None:
        collective = self._collective
        logits = None
        if collective.is_last:
            logits = collective.gather_logits(self._transformer.logits(states).float())
        if collective.is_first_of_last or self.place.rank == 0:
            memory = torch.empty((len(states), collective.vocab_size)) if logits is None else logits
            arrival = collective.to_first(memory, Tag.LOGITS)
            if self.place.rank == 0:
                return lambda: array_of(arrival.wait())
        return None

    def _draw_from(self, states: Tensor, columns: HostColumns) -> Result[tuple[Ints, Flags]] | None:
        """Each rank of the last stage draws from its own logits, with the noise of their token ids. The one whose sum
        of logit and noise is the largest has the token that would be drawn from all, so a rank sends one token and its
        logit for each draw."""
        collective = self._collective
        drawn = None
        if collective.is_last:
            parts = collective.gather(self._drawn_here(states, columns))
            drawn = self._best_of(parts, columns) if parts else None
        if collective.is_first_of_last or self.place.rank == 0:
            memory = torch.empty((2, len(states)), dtype=torch.int64) if drawn is None else drawn
            arrival = collective.to_first(memory, Tag.DRAWN)
            if self.place.rank == 0:
                return lambda: _tokens_and_flags(arrival.wait())
        return None

    def _drawn_here(self, states: Tensor, columns: HostColumns) -> Tensor:
        """Of each draw, the logit and the token that this rank would draw, and whether its logits are finite: float64
        [D, 3], exact for token ids, too."""
        logits: Floats = array_of(self._transformer.logits(states).float())
        first = self._collective.vocabulary.start
        mine = np.arange(first, self._collective.vocabulary.stop)
        finite = self.model.ops.finite_rows(logits)
        drawn = self.model.ops.sample_among(logits.copy(), mine, columns)
        of_drawn = logits[np.arange(len(drawn)), drawn - first]
        return torch.from_numpy(np.stack((of_drawn, drawn, finite), axis=1).astype(np.float64))

    def _best_of(self, parts: Sequence[Tensor], columns: HostColumns) -> Tensor:
        """The tokens of the best ranks, and whether the logits of all are finite: int64 [2, D]."""
        by_rank = np.stack([array_of(part) for part in parts], axis=1)
        sound = np.min(by_rank[:, :, 2], axis=1) > 0
        return torch.from_numpy(np.stack((self._best(by_rank, columns), sound.astype(np.int64))))

    def _best(self, by_rank: Array, columns: HostColumns) -> Ints:
        """The tokens [D] of the best ranks, from float64 [D, ranks, 3] of logits, tokens and flags."""
        logits, tokens = by_rank[:, :, 0].astype(np.float32), by_rank[:, :, 1].astype(np.int64)
        drawn: Ints = tokens[np.arange(len(tokens)), logits.argmax(axis=1)]
        for row in np.flatnonzero(columns.noise_scale):  # by the op that draws from all of them
            one = slice(row, row + 1)
            of_row = HostColumns(*(getattr(columns, field.name)[one] for field in fields(columns)))
            drawn[row] = self.model.ops.sample_among(logits[one], tokens[row], of_row)[0]
        return drawn

    def _with_states(self, rows: StepRows) -> StepRows:
        """The rows with this rank's states, between whose slots the step's copies are made, unless they have them."""
        if rows.states is None or self._states is None or rows.states.memory is self._states:
            return rows
        for source, target in rows.states.copies.tolist():
            self._states[target] = self._states[source]
        return replace(rows, states=replace(rows.states, memory=self._states))


def _tokens_and_flags(drawn: Tensor) -> tuple[Ints, Flags]:
    tokens, sound = array_of(drawn)
    return tokens, sound > 0
