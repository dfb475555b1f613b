"""One request, as its user saw it. Times are seconds of one monotonic clock."""

from dataclasses import dataclass
from itertools import pairwise

FINISHED = "finished"
UNFINISHED = "unfinished"
"""Still under way when the run was broken off: neither an answer nor an error."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`due_s` is when it should have been sent, `sent_s` when it was. `pieces_s` has the time of each event with
    something of the answer. `ending` is `FINISHED`, `UNFINISHED`, or the kind of error, as in "http 429
    rate_limit_exceeded". Tokens are what the server's `usage` says, None where it says nothing.

    Latencies count from `due_s`: a request that the generator sent late had a user who waited meanwhile, and leaving
    that out would hide the very moments that are slow (coordinated omission).
    """

    due_s: float
    sent_s: float
    ended_s: float
    ending: str
    pieces_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    usage_tokens: int | None = None

    @property
    def finished(self) -> bool:
        return self.ending == FINISHED

    @property
    def refused(self) -> bool:
        """Turned away with 429: there was more load than the server or the key's limits take."""
        return self.ending.startswith("http 429")

    @property
    def output_tokens(self) -> int:
        """By `usage`, else the pieces, of which each may be several tokens."""
        return len(self.pieces_s) if self.usage_tokens is None else self.usage_tokens

    @property
    def late_s(self) -> float:
        return self.sent_s - self.due_s

    @property
    def ttft_s(self) -> float | None:
        return self.pieces_s[0] - self.due_s if self.pieces_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first. None where it cannot be known: one token, or all in one piece."""
        if len(self.pieces_s) < 2 or self.output_tokens < 2:
            return None
        return (self.pieces_s[-1] - self.pieces_s[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between one piece and the next: what a reader sees as stutter."""
        return [after - before for before, after in pairwise(self.pieces_s)]

    @property
    def total_s(self) -> float:
        return self.ended_s - self.due_s
