"""The outcome of one request, from the client's side. Times are seconds of one monotonic clock."""

from dataclasses import dataclass
from itertools import pairwise

FINISHED = "finished"
UNFINISHED = "unfinished"
"""Still running when the test was stopped: neither an answer nor an error."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`due_s`: when it should have been sent. `sent_s`: when it was sent. `pieces_s`: times of the events with a part
    of the answer. `ending`: `FINISHED`, `UNFINISHED`, or the kind of error, as in "http 429 rate_limit_exceeded".
    Tokens are from the server's `usage`, None without it.

    Latencies count from `due_s`. Counting from `sent_s` would hide the delays of a late generator (coordinated
    omission).
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
        """Rejected with 429: the load exceeded the server's capacity or the key's limits."""
        return self.ending.startswith("http 429")

    @property
    def output_tokens(self) -> int:
        """From `usage`, otherwise the number of pieces, each of which may have several tokens."""
        return len(self.pieces_s) if self.usage_tokens is None else self.usage_tokens

    @property
    def late_s(self) -> float:
        return self.sent_s - self.due_s

    @property
    def ttft_s(self) -> float | None:
        return self.pieces_s[0] - self.due_s if self.pieces_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first. None for one token, or all tokens in one piece."""
        if len(self.pieces_s) < 2 or self.output_tokens < 2:
            return None
        return (self.pieces_s[-1] - self.pieces_s[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Times between consecutive pieces."""
        return [after - before for before, after in pairwise(self.pieces_s)]

    @property
    def total_s(self) -> float:
        return self.ended_s - self.due_s
