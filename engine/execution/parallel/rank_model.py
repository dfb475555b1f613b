"""The part of a model on one rank, with its memory: what every rank runs of a call, rank 0 among them."""

from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from engine.execution.parallel.collectives import RankCollective
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
    def forward(self, token_ids: Ints, rows: StepRows, wanted: Ints | None) -> Array:
        """As in `HostModel`; on other ranks than the first, its own hidden states."""
        self._rows = rows = self._with_states(rows)
        hidden = tensor_of(self.model.forward(token_ids, rows, self._kv, wanted))
        hidden = self._collective.to_first(hidden)
        if len(self._expert_tokens):
            self._expert_tokens = array_of(self._collective.sum_counts(self._transformer.expert_tokens.clone()))
        return array_of(hidden)

    def settle_drafts(self, accepted: Ints) -> None:
        assert self._rows is not None, "no step was computed"
        self.model.settle_drafts(self._rows, accepted)

    @torch.inference_mode()
    def logits(self, hidden: Array) -> Floats | None:
        """As in `HostModel`, on rank 0, whose `hidden` all get; None on the others."""
        states = tensor_of(np.ascontiguousarray(hidden))
        self._collective.broadcast(states)
        logits = self._collective.gather_logits(self._transformer.logits(states).float())
        return None if logits is None else array_of(logits)

    @torch.inference_mode()
    def draw(self, hidden: Array, columns: HostColumns) -> tuple[Ints, Flags] | None:
        """As in `DrawsTokens`, on rank 0, whose `hidden` all get; None on the others.

        Each rank draws from its own logits, with the noise of their token ids. The one whose sum of logit and noise is
        the largest has the token that would be drawn from all, so a rank sends one token and its logit for each draw.
        """
        states = tensor_of(np.ascontiguousarray(hidden))
        self._collective.broadcast(states)
        logits: Floats = array_of(self._transformer.logits(states).float())
        first = self._collective.vocabulary.start
        mine = np.arange(first, self._collective.vocabulary.stop)
        finite = self.model.ops.finite_rows(logits)
        drawn = self.model.ops.sample_among(logits.copy(), mine, columns)
        of_drawn = logits[np.arange(len(drawn)), drawn - first]
        best = np.stack((of_drawn, drawn, finite), axis=1).astype(np.float64)  # exact for token ids, too
        parts = self._collective.gather(torch.from_numpy(best))
        if not parts:
            return None
        by_rank = np.stack([array_of(part) for part in parts], axis=1)
        sound: Flags = np.min(by_rank[:, :, 2], axis=1) > 0
        return self._best(by_rank, columns), sound

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
