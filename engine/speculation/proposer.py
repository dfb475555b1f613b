"""The interface of proposers of draft tokens."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.request import Request


class DraftWant(NamedTuple):
    """A request for at most `depth` drafts for a running request, all of whose tokens but the last are computed."""

    request: Request
    depth: int


class Proposer(Protocol):
    """Proposes the next tokens of requests. Used on the engine thread only, between steps.

    A wrong draft costs time only. A proposer learns which drafts were accepted from the request's tokens at its next
    call. Its state is kept by slot; it must detect that a slot has a new request, or that its request was preempted and
    has other blocks.
    """

    @property
    def name(self) -> str:
        """Its name in metrics."""
        ...

    @property
    def free(self) -> bool:
        """Whether drafting costs almost nothing. The number of drafts is then chosen after they were proposed."""
        ...

    def lag(self, request: Request) -> int:
        """Tokens that it has to compute before it can draft for this request; 0: none."""
        ...

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        """For each want, in order, at most `depth` token ids that follow the request's last token. May be empty."""
        ...
