"""What the scheduler hands to an executor for one step, and what it gets back. Values only, no torch."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.request import Request, TokenLogprob


class BlockCopy(NamedTuple):
    """Copy the KV of block `source` over block `target` before the step's rows run (copy on write)."""

    source: int
    target: int


class ScheduledRow(NamedTuple):
    """Compute `tokens` tokens of a request from position `start` on.

    A prefill chunk and a decode token are the same thing: `request.tokens[start : start + tokens]`. `samples`
    says that the row reaches the request's last token, so that the next one is drawn from its logits.
    """

    request: Request
    start: int
    tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of one model. `rows` are in scheduling order; all their blocks are allocated."""

    step: int
    rows: tuple[ScheduledRow, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def total_tokens(self) -> int:
        return sum(row.tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What came of one row. `token` is None where the row did not sample.

    `finite=False` says that the row's logits held a NaN or an infinity where none belongs: the request fails
    and its blocks are not published. `prompt_logprobs` has one entry for each prompt token that the row's
    positions predict, where asked for.
    """

    token: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finite: bool = True


@dataclass(frozen=True, slots=True)
class StepResult:
    """One `RowResult` for each row of the plan, in its order."""

    rows: tuple[RowResult, ...]


class PendingStep(Protocol):
    """A step that was launched. `result()` waits for it."""

    def result(self) -> StepResult: ...


class Executor(Protocol):
    """Runs steps: the model runner, or a fake one in tests and simulation."""

    def execute(self, plan: StepPlan) -> PendingStep: ...
