"""The collectives of ranks over `torch.distributed`, with gloo: processes that compute on CPUs.

Each group of ranks is a process group of its own, made from a store; the default group of `torch.distributed`, of which
a process has one, is not used. An operation that a rank does not join fails after a timeout, and at once when the
process of a rank ends.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, GatherOptions, PrefixStore, Store, TCPStore
from torch.distributed import ProcessGroupGloo

from engine.execution.parallel.shards import Place
from kernels.ops import Embedding, Ops

HOST = "127.0.0.1"


def open_store(port: int, *, is_master: bool, timeout_s: float) -> TCPStore:
    """The store by which ranks find one another. `port`: 0 for any free one, of the process that `is_master`."""
    return TCPStore(HOST, port, None, is_master=is_master, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


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

    def send(self, tensor: Tensor, to: int) -> None:
        self._group.send([tensor.contiguous()], to, 0).wait()

    def receive(self, tensor: Tensor, sender: int) -> Tensor:
        """Fill a contiguous tensor with what a rank sends."""
        self._group.recv([tensor], sender, 0).wait()
        return tensor

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensors of all ranks, of equal shapes, on rank 0; nothing on the others."""
        options = GatherOptions()
        options.rootRank = 0
        outputs = [] if self.number else [[torch.empty_like(tensor) for _ in range(self.size)]]
        self._group.gather(outputs, [tensor.contiguous()], options).wait()
        return outputs[0] if outputs else ()


class RankCollective:
    """The `Collective` of one rank's part of a model, and what passes between rank 0 and all others."""

    def __init__(self, place: Place, world: GlooGroup, stage: GlooGroup | None, vocab_size: int) -> None:
        """`world`: all ranks. `stage`: those of this rank's stage; None: it is the only one."""
        self._place, self._world, self._stage = place, world, stage
        self._vocab_size = vocab_size
        widths = [len(Place(place.sizes, rank).vocabulary(vocab_size)) for rank in range(world.size)]
        self._widths, self._widest = widths, max(widths)

    @property
    def is_last(self) -> bool:
        return self._place.is_last

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
        return self._world.sum(_own_rows(table, token_ids, self._place.vocabulary(self._vocab_size)))

    def look_up_layers(self, table: Embedding, token_ids: Tensor) -> Tensor:
        return self.sum(_own_rows(table, token_ids, self._place.layer_vocabulary(self._vocab_size)))

    def enter(self, residual: Tensor) -> Tensor:
        stage, tensor = self._place.stage, self._place.sizes.tensor
        return self._world.receive(residual.contiguous(), self._place.rank - tensor) if stage else residual

    def leave(self, residual: Tensor) -> None:
        if not self.is_last:
            self._world.send(residual, self._place.rank + self._place.sizes.tensor)

    def to_first(self, tensor: Tensor) -> Tensor:
        """A tensor that rank 0 and the first rank of the last stage pass: its value there, received by rank 0, where
        the memory is overwritten. Other ranks do nothing."""
        first_of_last = self._place.sizes.ranks - self._place.sizes.tensor
        if first_of_last and self._place.rank == 0:
            return self._world.receive(tensor.contiguous(), first_of_last)
        if first_of_last and self._place.rank == first_of_last:
            self._world.send(tensor, 0)
        return tensor

    def broadcast(self, tensor: Tensor) -> None:
        """Fill a contiguous tensor with that of rank 0, on all ranks."""
        self._world.broadcast(tensor)

    @property
    def vocabulary(self) -> range:
        """The token ids whose logits this rank computes."""
        return self._place.vocabulary(self._vocab_size)

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """The tensors of all ranks, of equal shapes, on rank 0; nothing on the others."""
        return self._world.gather(tensor)

    def gather_logits(self, logits: Tensor) -> Tensor | None:
        """The logits [T, V] on rank 0, in contiguous rows, from each rank's of its part of the vocabulary; None on
        the others."""
        padded = torch.nn.functional.pad(logits, (0, self._widest - logits.shape[1]))
        parts = self._world.gather(padded)
        if not parts:
            return None
        return torch.cat([part[:, :width] for part, width in zip(parts, self._widths, strict=True)], dim=1)

    def sum_counts(self, counts: Tensor) -> Tensor:
        """The sum of counts over the stages, int64 [n], of which all ranks of a stage have the same."""
        if self._place.sizes.stages == 1:
            return counts
        return self._world.sum(counts if self._place.part == 0 else torch.zeros_like(counts))


def _own_rows(table: Embedding, token_ids: Tensor, mine: range) -> Tensor:
    """The rows [T, H] of those tokens that a table of `mine` has, and zeros for the others."""
    found = (token_ids >= mine.start) & (token_ids < mine.stop)
    rows = table((token_ids - mine.start).clamp(0, max(0, len(mine) - 1)))
    return rows.masked_fill(~found[:, None], 0)
