"""The values that the scheduler and an executor exchange for one step. No torch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from engine.memory.kv_cache import BlockCopy
from engine.memory.sequence_states import StepStates
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

    A prefill chunk and a decode token are the same thing: `request.tokens[start : start + tokens]`. `samples`: the row
    reaches the request's last token, and the next token is sampled from its logits. Rows of a request for no output
    (`max_tokens=0`) reach the end of its prompt without sampling.

    In a step that is launched while the previous one is in flight, a row can end one past `request.tokens`: its last
    token is the one that the previous row in the same slot samples. Only the executor has that token.

    A row with `drafts` computes the request's last token and then the drafts, which are predicted next tokens; `tokens`
    counts them. One token is sampled at each. Only executors with `takes_drafts` get such rows. A row of one token that
    is launched before their result is known begins where the drafts end; the executor moves it back by the rejected
    ones.
    """

    request: Request
    start: int
    tokens: int
    samples: bool
    drafts: tuple[int, ...] = ()


scheduled_row: Callable[[tuple[Request, int, int, bool, tuple[int, ...]]], ScheduledRow]
scheduled_row = partial(tuple.__new__, ScheduledRow)
"""A `ScheduledRow` from a tuple of its fields, in half the time of the constructor: one is made per row and step."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of one model. `rows` are in scheduling order, with all their blocks allocated. `draft_tokens`: the
    number of drafts in all rows. `states`: of a model with recurrent layers."""

    step: int
    rows: tuple[ScheduledRow, ...]
    copies: tuple[BlockCopy, ...] = ()
    draft_tokens: int = 0
    states: StepStates | None = None

    @property
    def total_tokens(self) -> int:
        return sum(row.tokens for row in self.rows)


class RowResult(NamedTuple):
    """The result of one row.

    `token`: the sampled token; None where the row does not sample.
    `accepted`: the length of the accepted prefix of the row's drafts; `token` is the one sampled after that prefix.
    `draft_logprobs`: the log-probabilities of the accepted drafts, if requested.
    `finite`: False where the row's output held a NaN or an infinity: the request fails and its blocks are not
    published. It is checked for every row, as the KV of prefill chunks that do not sample is published too. A chunk's
    last hidden state stands for its earlier positions, as attention propagates a NaN. `fault` is the reason where the
    row fails for another one.
    `prompt_logprobs`: one entry for each prompt token that the row's positions predict, if requested.
    `embedding`: the prompt's embedding, if requested, from the row that computes the prompt's last token.
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
    """A launched step. `result()` waits for it."""

    def result(self) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class LaunchStats:
    """Steps on a GPU by the way they were launched, totals since the model was loaded.

    `replayed_total`: replayed from a CUDA graph. `decode_total`, `prefill_total`: launched kernel by kernel, without
    and with prompt tokens.
    """

    replayed_total: int = 0
    decode_total: int = 0
    prefill_total: int = 0


class Executor(Protocol):
    """Runs steps in launch order: the model runner, or a fake one in tests and simulation.

    All memory accesses of a step happen after those of the steps launched before it. So blocks and slots that are
    freed while a step is in flight may be used by the next step at once.
    """

    @property
    def async_depth(self) -> int:
        """Steps that may be in flight in addition to the one whose result is awaited: 0; 1 where steps run
        asynchronously and sampled tokens stay on the device; one less than its stages in a pipeline."""
        ...

    @property
    def micro_batches(self) -> int:
        """Steps that the running requests are divided among: 1, or the stages of a pipeline, where the tokens of a step
        are known when it is complete, and no row begins before its tokens are known."""
        ...

    @property
    def takes_drafts(self) -> bool:
        """Whether its rows may have drafts."""
        ...

    @property
    def launches(self) -> LaunchStats | None:
        """Counts of launched steps; None where steps are not launched but computed. Callable from any thread."""
        ...

    @property
    def expert_tokens(self) -> tuple[int, ...]:
        """Tokens that each expert has computed since loading, over all layers; empty for a model without experts.
        Callable from any thread."""
        ...

    def execute(self, plan: StepPlan) -> PendingStep:
        """Launch a step. This call, or `result()`, may raise any exception; the step then has no result.

        Raises:
            OutOfDeviceMemory: a smaller step may fit. Its rows will start where these did.
        """
        ...
