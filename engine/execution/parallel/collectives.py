"""The collectives of ranks over `torch.distributed`, with gloo: processes that compute on CPUs.

Each group of ranks is a process group of its own, made from a store; the default group of `torch.distributed`, of which
a process has one, is not used. An operation that a rank does not join fails after a timeout, and at once when the
process of a rank ends.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, GatherOptions, PrefixStore, Store, TCPStore
from torch.distributed import ProcessGroupGloo

from engine.execution.parallel.shards import Place
from kernels.ops import Embedding, Ops

HOST = "127.0.0.1"
MAX_SENDING = 64
"""Tensors that a rank has begun to send and does not wait for: more than those of the steps in flight."""


def open_store(port: int, *, is_master: bool, timeout_s: float) -> TCPStore:
    """The store by which ranks find one another. `port`: 0 for any free one, of the process that `is_master`."""
    return TCPStore(HOST, port, None, is_master=is_master, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


class Tag(IntEnum):
    """The kinds of tensors that one rank sends to another; those of a kind arrive in order."""

    RESIDUAL = 1
    EMBEDDED = 2
    COUNTS = 3
    TOTAL_COUNTS = 4
    HIDDEN = 5
    TO_LAST = 6
    DRAWN = 7
    LOGITS = 8


@dataclass(frozen=True, slots=True)
class Arrival:
    """A tensor that is there, or is being received. `work`: of `torch.distributed`; None: it is there."""

    tensor: Tensor
    work: Any | None = None

    def wait(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
        return self.tensor


class GlooGroup:
    """Some ranks, numbered from 0. Tensors are contiguous or copied."""

    def __init__(self, store: Store, name: str, number: int, size: int, timeout_s: float) -> None:
        """`name`: of the group in the store. `number`: of this rank. All its ranks call this."""
        gloo: Any = ProcessGroupGloo  # torch declares none of its methods
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [gloo.create_device(hostname=HOST)]
        self.number, self.size = number, size
        self._group = gloo(PrefixStore(name, store), number, size, options)
        self._sending: deque[tuple[Any, Tensor]] = deque()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks; may overwrite the tensor."""
        tensor = tensor.contiguous()
        self._group.allreduce([tensor]).wait()
        return tensor

    def broadcast(self, tensor: Tensor) -> None:
        """Fill a contiguous tensor with that of rank 0."""
        options = BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor], options).wait()

    def send(self, tensor: Tensor, to: int, tag: Tag) -> None:
        """Begin to send a tensor that does not change any more. Waits only where many are on their way."""
        tensor = tensor.contiguous()
        self._sending.append((self._group.send([tensor], to, tag), tensor))
        if len(self._sending) > MAX_SENDING:
            self._sending.popleft()[0].wait()

    def receive(self, tensor: Tensor, sender: int, tag: Tag) -> Tensor:
        """Fill a contiguous tensor with what a rank sends."""
        return self.arrival(tensor, sender, tag).wait()

    def arrival(self, tensor: Tensor, sender: int, tag: Tag) -> Arrival:
        """Begin to fill a contiguous tensor with what a rank sends."""
        return Arrival(tensor, self._group.recv([tensor], sender, tag))

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensors of all ranks, of equal shapes, on rank 0; nothing on the others."""
        options = GatherOptions()
        options.rootRank = 0
        outputs = [] if self.number else [[torch.empty_like(tensor) for _ in range(self.size)]]
        self._group.gather(outputs, [tensor.contiguous()], options).wait()
        return outputs[0] if outputs else ()


class RankCollective:
    """The `Collective` of one rank's part of a model, and what passes between rank 0 and the ranks of the last stage,
    which have the head. The first of these is rank 0 where there is one stage.

    Between stages nothing is collective: a rank sends to the next stage without waiting for it, so that a stage
    computes the next step while the last one is in the next stage.
    """

    def __init__(self, place: Place, world: GlooGroup, stage: GlooGroup | None, vocab_size: int) -> None:
        """`world`: all ranks. `stage`: those of this rank's stage; None: it is the only one."""
        self.place = place
        self._world, self._stage = world, stage
        self.vocab_size = vocab_size
        sizes = place.sizes
        self._first_of_last = sizes.ranks - sizes.tensor
        widths = [len(Place(sizes, rank).head_rows(vocab_size)) for rank in range(self._first_of_last, sizes.ranks)]
        self._widths, self._widest = widths, max(widths)

    @property
    def is_last(self) -> bool:
        return self.place.is_last

    @property
    def is_first_of_last(self) -> bool:
        """Whether this rank gathers what those of the last stage compute."""
        return self.place.rank == self._first_of_last

    @property
    def vocabulary(self) -> range:
        """The token ids whose logits this rank computes."""
        return self.place.head_rows(self.vocab_size)

    def sum(self, partial: Tensor) -> Tensor:
        return partial if self._stage is None else self._stage.sum(partial)

    def rms_norm(self, ops: Ops, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if self._stage is None:
            return ops.rms_norm(x, weight, eps)
        wide = x.float()
        squares = self._stage.sum(wide.square().sum(-1, keepdim=True))
        # Where several ranks have the same heads, these count as often in both the sum and the number.
        scale = torch.rsqrt(squares / (self._stage.size * x.shape[-1]) + eps)
        return (wide * scale).to(x.dtype) * weight

    def look_up(self, table: Embedding, token_ids: Tensor) -> Tensor:
        if self.place.stage:
            none = table(token_ids[:0])
            return none.new_empty((len(token_ids), none.shape[1]))
        return self.sum(_own_rows(table, token_ids, self.place.embedding_rows(self.vocab_size)))

    def look_up_layers(self, table: Embedding, token_ids: Tensor) -> Tensor:
        return self.sum(_own_rows(table, token_ids, self.place.layer_vocabulary(self.vocab_size)))

    def embedded(self, embedded: Tensor) -> Tensor:
        return self._along(embedded, Tag.EMBEDDED, lambda received: received)

    def enter(self, residual: Tensor) -> Tensor:
        place = self.place
        if not place.stage:
            return residual
        return self._world.receive(torch.empty_like(residual), place.rank - place.sizes.tensor, Tag.RESIDUAL)

    def leave(self, residual: Tensor) -> None:
        if not self.is_last:
            self._world.send(residual, self.place.rank + self.place.sizes.tensor, Tag.RESIDUAL)

    def to_first(self, tensor: Tensor, tag: Tag) -> Arrival:
        """A tensor of the first rank of the last stage, on rank 0, where `tensor` is memory for it. Other ranks do
        nothing."""
        if self._first_of_last and self.place.rank == 0:
            return self._world.arrival(tensor, self._first_of_last, tag)
        if self._first_of_last and self.is_first_of_last:
            self._world.send(tensor, 0, tag)
        return Arrival(tensor)

    def to_last(self, tensor: Tensor) -> Tensor:
        """A tensor of rank 0 on all ranks of the last stage, where `tensor` is memory for it; itself on others."""
        if self._first_of_last and self.place.rank == 0:
            self._world.send(tensor, self._first_of_last, Tag.TO_LAST)
        elif self._first_of_last and self.is_first_of_last:
            tensor = self._world.receive(tensor, 0, Tag.TO_LAST)
        if self.is_last and self._stage is not None:
            self._stage.broadcast(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensors of the ranks of the last stage, of equal shapes, on its first one; nothing on the others. Called
        by them."""
        return (tensor,) if self._stage is None else self._stage.gather(tensor)

    def gather_logits(self, logits: Tensor) -> Tensor | None:
        """The logits [T, V] on the first rank of the last stage, in contiguous rows, from each rank's of its part of
        the vocabulary; None on the others. Called by the ranks of that stage."""
        if self._stage is None:
            return logits
        padded = torch.nn.functional.pad(logits, (0, self._widest - logits.shape[1]))
        parts = self._stage.gather(padded)
        if not parts:
            return None
        return torch.cat([part[:, :width] for part, width in zip(parts, self._widths, strict=True)], dim=1)

    def sum_counts(self, counts: Tensor) -> Arrival:
        """On rank 0, the sum of counts int64 [n] over the stages, of which all ranks of a stage have the same. Its
        arrival elsewhere is of no use."""
        if self.place.sizes.stages == 1 or self.place.part:
            return Arrival(counts)
        total = self._along(counts, Tag.COUNTS, counts.add)
        return self.to_first(torch.empty_like(counts) if self.place.rank == 0 else total, Tag.TOTAL_COUNTS)

    def _along(self, own: Tensor, tag: Tag, then: Callable[[Tensor], Tensor]) -> Tensor:
        """Pass a tensor on through the stages: `own` from the first one, in each later one what `then` makes of it."""
        place = self.place
        if place.stage:
            own = then(self._world.receive(torch.empty_like(own), place.rank - place.sizes.tensor, tag))
        if not place.is_last:
            self._world.send(own.clone(), place.rank + place.sizes.tensor, tag)  # the caller may overwrite it
        return own


def _own_rows(table: Embedding, token_ids: Tensor, mine: range) -> Tensor:
    """The rows [T, H] of those tokens that a table of `mine` has, and zeros for the others."""
    found = (token_ids >= mine.start) & (token_ids < mine.stop)
    rows = table((token_ids - mine.start).clamp(0, max(0, len(mine) - 1)))
    return rows.masked_fill(~found[:, None], 0)
