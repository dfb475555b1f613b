"""Who guesses what comes next."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.request import Request


class DraftWant(NamedTuple):
    """At most `depth` drafts are wanted for a request that runs, and has all its tokens but the last computed."""

    request: Request
    depth: int


class Proposer(Protocol):
    """Guesses the next tokens of requests. Used on the engine thread alone, between two steps.

    A wrong guess costs time and nothing else. What comes of a guess shows in the request's tokens, the next time that
    it is asked: there is no other way back. What a proposer keeps of a request it keeps by the request's slot, and is
    to notice that the slot has changed hands, or that its request was preempted and has other blocks now.
    """

    @property
    def name(self) -> str:
        """What metrics call it."""
        ...

    @property
    def free(self) -> bool:
        """Guessing takes next to nothing, so that how many guesses are used is settled when they are there."""
        ...

    def lag(self, request: Request) -> int:
        """How many tokens it would have to compute before it could draft for this request; 0: it can at once."""
        ...

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        """For each want in its place, at most `depth` token ids: the first follows the request's last token. Empty
        where it has nothing to say."""
        ...
