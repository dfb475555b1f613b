"""An executor without a model, that notices when a request reads KV that is not its own."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.config import BLOCK_TOKENS
from engine.request import Request, TokenLogprob
from engine.scheduling.plan import PendingStep, RowResult, ScheduledRow, StepPlan, StepResult

_MASK = 2**64 - 1
_UNWRITTEN = -1
_POISON = -2


def prefix_digest(before: int, token: int) -> int:
    """64 bits that stand for a prefix: those of the prefix before its last token, and that token (splitmix64)."""
    mixed = (before * 0x9E3779B97F4A7C15 + token + 1) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def prefix_logprob(token: int, before: int) -> TokenLogprob:
    """A number that stands for the log-probability of a token after a prefix with this digest."""
    return TokenLogprob(token, -prefix_digest(before, token) / 2**64, ())


class DeviceFailure(RuntimeError):
    """The step could not be computed. What it has written until then is worth nothing."""


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A `PendingStep` that is not pending."""

    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A `PendingStep` that shows only when it is waited for that the device gave up on it."""

    def result(self) -> StepResult:
        raise DeviceFailure("the simulated device failed")


@dataclass(slots=True)
class _Digests:
    """Tokens, and the digest of the prefix that ends with each."""

    tokens: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)


class FakeExecutor:
    """Draws each token as a hash of all tokens before it and the request's seed, below `vocab_size`.

    Its KV memory has one entry per block and offset: the digest of the prefix that was written there, salt
    included. A row's prefix is read back through its block table before its tokens are drawn, so KV that is
    missing, stale, overwritten or another's ends in an AssertionError at the step that reads it. Slots are
    checked the same way: no two requests of a step share one.

    `is_poisoned` picks the rows whose output is not finite; what they write is poison to whoever reads it. So is all
    that is written by a step that fails, as `fail_next` asks for.
    """

    def __init__(
        self, num_blocks: int, vocab_size: int = 1000, *, is_poisoned: Callable[[ScheduledRow], bool] | None = None
    ) -> None:
        self.vocab_size = vocab_size
        self._memory = [[_UNWRITTEN] * BLOCK_TOKENS for _ in range(num_blocks)]
        self._is_poisoned = is_poisoned or (lambda row: False)
        self._digests: dict[str, _Digests] = {}
        self._fails = False

    def fail_next(self) -> None:
        """The next step writes rubbish where it was to write, and raises."""
        self._fails = True

    def execute(self, plan: StepPlan) -> PendingStep:
        for source, target in plan.copies:
            self._memory[target] = self._memory[source].copy()
        slots = [row.request.slot for row in plan.rows]
        assert None not in slots, "a row has no slot"
        assert len(set(slots)) == len(slots), "two rows have one slot"
        # All rows write before any reads, as the kernels of one layer do: a write that does not belong shows.
        self._digests = {row.request.id: self._digests_of(row.request) for row in plan.rows}
        digests = [self._write(row) for row in plan.rows]
        for row, expected in zip(plan.rows, digests, strict=True):
            self._verify(row, expected)
        if self._fails:
            self._fails = False
            return FailedStep()
        return CompletedStep(StepResult(tuple(map(self._outcome, plan.rows, digests))))

    def next_token(self, request: Request, digest: int) -> int:
        """The token that follows a prefix with this digest."""
        return prefix_digest(digest, request.seed) % self.vocab_size

    def _write(self, row: ScheduledRow) -> list[int]:
        """Write the row's part of the KV; returns the digests of all prefixes up to its end."""
        request, end = row.request, row.start + row.tokens
        assert 0 < row.tokens <= len(request.tokens) - row.start, "a row computes nothing, or past the tokens"
        assert end <= len(request.block_table) * BLOCK_TOKENS, "a row writes past its blocks"
        digests = self._digests[request.id].values[:end]
        poisoned = self._fails or self._is_poisoned(row)
        for position in range(row.start, end):
            block = request.block_table[position // BLOCK_TOKENS]
            self._memory[block][position % BLOCK_TOKENS] = _POISON if poisoned else digests[position]
        return digests

    def _digests_of(self, request: Request) -> _Digests:
        """The digests of all prefixes of the request's tokens; those of the step before are extended."""
        digests = self._digests.get(request.id)
        if digests is None or digests.tokens != request.tokens[: len(digests.tokens)]:
            digests = _Digests()
        before = digests.values[-1] if digests.values else int.from_bytes(request.salt[:8], "little")
        for token in request.tokens[len(digests.tokens) :]:
            before = prefix_digest(before, token)
            digests.tokens.append(token)
            digests.values.append(before)
        return digests

    def _verify(self, row: ScheduledRow, digests: list[int]) -> None:
        """The KV before the row's end, as its block table gives it, is that of the request's own prefix."""
        readable = row.start if self._fails or self._is_poisoned(row) else row.start + row.tokens
        for index, block in enumerate(row.request.block_table):
            expected = digests[index * BLOCK_TOKENS : min((index + 1) * BLOCK_TOKENS, readable)]
            assert self._memory[block][: len(expected)] == expected, (
                f"{row.request.id} reads KV that is not its own in block {block}, entry {index} of its table"
            )

    def _outcome(self, row: ScheduledRow, digests: list[int]) -> RowResult:
        request, end = row.request, row.start + row.tokens
        if self._is_poisoned(row):
            return RowResult(token=0 if row.samples else None, finite=False)
        prompt_logprobs: tuple[TokenLogprob, ...] = ()
        if request.params.prompt_logprobs is not None:
            predicted = range(row.start + 1, min(end + 1, request.prompt_tokens))
            prompt_logprobs = tuple(prefix_logprob(request.tokens[at], digests[at - 1]) for at in predicted)
        if not row.samples:
            return RowResult(prompt_logprobs=prompt_logprobs)
        token = self.next_token(request, digests[-1])
        logprob = None if request.params.logprobs is None else prefix_logprob(token, digests[-1])
        return RowResult(token, logprob, prompt_logprobs)
