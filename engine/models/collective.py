"""The operations between the ranks that compute a model together, as its network sees them."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.ops import Embedding, Ops


class Collective(Protocol):
    """The other ranks: those of the same stage have other heads and inner dimensions of its layers, those of other
    stages have other layers. Those of the first stage have other rows of the embedding table.

    Each method is called by every rank that it concerns, in the same order.
    """

    @property
    def is_last(self) -> bool:
        """Whether no stage follows this rank's."""
        ...

    def sum(self, partial: "Tensor") -> "Tensor":
        """The sum of a tensor over the ranks of the stage. May overwrite it."""
        ...

    def rms_norm(self, ops: "Ops", x: "Tensor", weight: "Tensor", eps: float) -> "Tensor":
        """`Ops.rms_norm` of [T, n] over the numbers that all ranks of the stage have of a token."""
        ...

    def look_up(self, table: "Embedding", token_ids: "Tensor") -> "Tensor":
        """The embeddings [T, H] of tokens int64 [T]; `table` has this rank's rows. Arbitrary numbers after the first
        stage."""
        ...

    def look_up_layers(self, table: "Embedding", token_ids: "Tensor") -> "Tensor":
        """The same of a table of the layers' own embeddings, those of the stage."""
        ...

    def embedded(self, embedded: "Tensor") -> "Tensor":
        """The embeddings [T, H] of the first stage, for models that read them in later ones; passes them on."""
        ...

    def enter(self, residual: "Tensor") -> "Tensor":
        """The residual stream [T, H] before the first layer of the stage; `residual`: the embeddings, or, after
        the first stage, memory for it."""
        ...

    def leave(self, residual: "Tensor") -> None:
        """Pass on the residual stream [T, H] after the last layer of the stage, to the next one, if any."""
        ...


class Alone:
    """The `Collective` of a process that computes the whole model."""

    is_last = True

    def sum(self, partial: "Tensor") -> "Tensor":
        return partial

    def rms_norm(self, ops: "Ops", x: "Tensor", weight: "Tensor", eps: float) -> "Tensor":
        return ops.rms_norm(x, weight, eps)

    def look_up(self, table: "Embedding", token_ids: "Tensor") -> "Tensor":
        return table(token_ids)

    def look_up_layers(self, table: "Embedding", token_ids: "Tensor") -> "Tensor":
        return table(token_ids)

    def embedded(self, embedded: "Tensor") -> "Tensor":
        return embedded

    def enter(self, residual: "Tensor") -> "Tensor":
        return residual

    def leave(self, residual: "Tensor") -> None:
        pass
