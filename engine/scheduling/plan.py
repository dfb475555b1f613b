"""What the scheduler hands to an executor for one step, and what it gets back. Values only, no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from engine.memory.kv_cache import BlockCopy
from engine.request import Fault, Request, TokenLogprob

__all__ = [
    "BlockCopy",
    "Executor",
    "PendingStep",
    "RowResult",
    "ScheduledRow",
    "StepPlan",
    "StepResult",
    "scheduled_row",
]


class ScheduledRow(NamedTuple):
    """Compute `tokens` tokens of a request from position `start` on.

    A prefill chunk and a decode token are the same thing: `request.tokens[start : start + tokens]`. `samples`
    says that the row reaches the request's last token and the next one is to be drawn from its logits; a request
    for no token at all (`max_tokens=0`) has rows that reach the end of its prompt and do not sample.

    In a step that is launched while the one before it is in flight, a row can end one past `request.tokens`: its last
    token is the one that the row before it in the same slot draws. The executor has it and nobody else does.

    A row with `drafts` computes the request's last token and behind it the drafts, guesses of what comes next, which
    `tokens` counts. A token is drawn at each of them. Only executors that take drafts are given such rows.
    """

    request: Request
    start: int
    tokens: int
    samples: bool
    drafts: tuple[int, ...] = ()


scheduled_row: Callable[[tuple[Request, int, int, bool, tuple[int, ...]]], ScheduledRow]
scheduled_row = partial(tuple.__new__, ScheduledRow)
"""A `ScheduledRow` of its fields. There is one for each row and step; the constructor takes twice as long."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of one model. `rows` are in scheduling order; all their blocks are allocated. `draft_tokens` are the
    drafts of all rows."""

    step: int
    rows: tuple[ScheduledRow, ...]
    copies: tuple[BlockCopy, ...] = ()
    draft_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return sum(row.tokens for row in self.rows)


class RowResult(NamedTuple):
    """What came of one row. `token` is None where the row did not sample.

    Of a row with drafts, the first `accepted` of them are what was drawn in their places; `token` is what was drawn
    behind those, the first that is no draft. `draft_logprobs` are those of the accepted ones, where asked for.

    `finite=False` says that the row's output held a NaN or an infinity where none belongs: the request fails
    and its blocks are not published. That is asked of every row, as a prefill chunk that does not sample is
    published too; its last hidden state stands for all before it, as attention carries a NaN forward. Where it was
    something else that nothing can come of, `fault` says what.
    `prompt_logprobs` has one entry for each prompt token that the row's positions predict, where asked for.
    `embedding` is there where one was asked for and the row computes the prompt's last token.
    """

    token: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finite: bool = True
    accepted: int = 0
    draft_logprobs: tuple[TokenLogprob, ...] = ()
    fault: Fault = Fault.NOT_FINITE
    embedding: bytes = b""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One `RowResult` for each row of the plan, in its order."""

    rows: tuple[RowResult, ...]


class PendingStep(Protocol):
    """A step that was launched. `result()` waits for it."""

    def result(self) -> StepResult: ...


class Executor(Protocol):
    """Runs steps, in the order in which they are launched: the model runner, or a fake one in tests and simulation.

    All that a step does to memory comes after all that those launched before it do. So blocks and slots that are given
    back while a step is in flight can be had by the next one at once.
    """

    @property
    def async_depth(self) -> int:
        """How many steps it takes beyond the one whose result is waited for: 0, or 1 where it works beside its
        caller and keeps the tokens that it draws."""
        ...

    @property
    def takes_drafts(self) -> bool:
        """Whether its rows may have drafts."""
        ...

    def execute(self, plan: StepPlan) -> PendingStep:
        """Launch a step. This, or the result, may raise whatever it likes, and then nothing comes of the step.

        Raises:
            OutOfDeviceMemory: a smaller step might do. The requests go on, with rows that start where these did.
        """
        ...
