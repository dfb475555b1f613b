"""An executor without a model, which detects that a request reads KV that is not its own."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.config import BLOCK_TOKENS
from engine.errors import OutOfDeviceMemory
from engine.request import NULL_BLOCK, Request, TokenLogprob
from engine.scheduling.plan import LaunchStats, RowResult, ScheduledRow, StepPlan, StepResult

_MASK = 2**64 - 1
_UNWRITTEN = -1
_POISON = -2
GARBAGE = -3
"""An entry of a block that a copier is filling."""


def prefix_digest(before: int, token: int) -> int:
    """The 64-bit digest of a prefix, from the digest before its last token and that token (splitmix64)."""
    mixed = (before * 0x9E3779B97F4A7C15 + token + 1) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def prefix_root(salt: bytes, adapter: str) -> int:
    """The digest of the empty prefix in a cache with this salt, computed with this adapter; empty: with none."""
    root = int.from_bytes(salt[:8], "little")
    return prefix_digest(root, int.from_bytes(adapter.encode(), "little")) if adapter else root


def root_of(request: Request) -> int:
    """The digest of the empty prefix of a request."""
    return prefix_root(request.salt, "" if request.adapter is None else request.adapter.digest)


def prefix_logprob(token: int, before: int) -> TokenLogprob:
    """The fake log-probability of a token after a prefix with this digest."""
    return TokenLogprob(token, -prefix_digest(before, token) / 2**64, ())


class DeviceFailure(RuntimeError):
    """The step failed. What it has written is garbage."""


@dataclass(slots=True)
class _Shortage:
    """The next `steps` steps fail if they have more than `tokens` tokens, at the launch or at the result."""

    tokens: int
    steps: int
    at_result: bool


def _block_of(table: Sequence[int], position: int) -> int:
    block = table[position // BLOCK_TOKENS]
    assert block != NULL_BLOCK, f"the block of position {position} was released"
    return block


_Run = tuple[str, int]
"""A request from an admission to its end or next preemption: its id, and its preemptions so far."""


@dataclass(slots=True)
class LaunchedStep:
    """A `PendingStep` whose outcome is computed at the launch and returned by `result`.

    `spoiled`: runs of requests whose KV it has turned into garbage, with the first position. The scheduler learns of it
    when it has `seen` the outcome.
    """

    outcome: StepResult | Exception
    spoiled: dict[_Run, int]
    seen: bool = False

    def result(self) -> StepResult:
        self.seen = True
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The tokens that the last row in a slot gave its request, accepted drafts first, and the position of the first."""

    request: Request
    position: int
    tokens: tuple[int, ...]


@dataclass(slots=True)
class _Digests:
    """Tokens, and the digest of the prefix that ends with each."""

    tokens: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)


class FakeExecutor:
    """Samples each token as a hash of all tokens before it and the request's seed, below `vocab_size`.

    Its KV memory has one entry per block and offset: the digest of the prefix that was written there, including the
    salt. A row's prefix is read back through its block table before its tokens are sampled, so KV that is missing,
    stale, overwritten or another request's raises an AssertionError at the step that reads it. Slots are checked too:
    no two requests of a step share one.

    With `num_states` it is a model with recurrent layers: a state slot holds the digest of the prefix that its state
    stands for. A row that does not begin its sequence must find the digest of its own prefix there.

    A row of a request with an adapter must find it in its slot. Its digests begin with the adapter's.

    With `windows` its KV is in groups: in the memory of each further group, a row reads the entries in the group's
    window only.

    With `async_depth=1` a row may end one past its request's tokens, as on a device. That token is the last one sampled
    in the row's slot, and has to be this request's token for that position. With `stages` it may not, as in a pipeline,
    which has as many steps in flight, and none behind one with drafts.

    A row with drafts writes them like tokens, and gets the tokens that it would have got one at a time. A row that
    follows it before its result is known is planned as if all were accepted, and begins where the accepted ones end.

    `is_poisoned` selects the rows whose output is not finite; what they write is poison for every reader. So is
    everything that a failing step writes (`fail_next`). A later row that was launched before the scheduler has seen
    that outcome reads the poison and samples garbage that looks like a token: it must not be used. The same holds for a
    step without device memory (`run_short`), except that its requests continue from where they were before it.
    """

    def __init__(
        self,
        num_blocks: int,
        vocab_size: int = 1000,
        *,
        async_depth: int = 0,
        stages: int = 1,
        num_states: int = 0,
        windows: Sequence[int | None] = (),
        is_poisoned: Callable[[ScheduledRow], bool] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.async_depth, self.micro_batches = max(async_depth, stages - 1), stages
        self.takes_drafts = True
        self.launches: LaunchStats | None = None
        self.expert_tokens: tuple[int, ...] = ()
        self._memory = [[_UNWRITTEN] * BLOCK_TOKENS for _ in range(num_blocks)]
        self._states = [_UNWRITTEN] * num_states
        self._windows = (None, *windows)
        self._adapters: dict[int, str | None] = {}
        """By slot: the adapter that steps launched from now on find there."""
        self._is_poisoned = is_poisoned or (lambda row: False)
        self._digests: dict[str, _Digests] = {}
        self._drawn: dict[int, _Drawn] = {}
        self._launched: deque[LaunchedStep] = deque()
        self._drafts_in_flight = False
        """Whether the step that was launched last has drafts."""
        self._fails = False
        self._shortage = _Shortage(0, 0, False)

    def fail_next(self) -> None:
        """The next step writes garbage and raises."""
        self._fails = True

    def read_block(self, block: int) -> tuple[int, ...]:
        """The entries of a block now."""
        return tuple(self._memory[block])

    def write_block(self, block: int, entries: Sequence[int]) -> None:
        """Overwrite a block."""
        self._memory[block] = list(entries)

    def put_adapter(self, slot: int, digest: str | None) -> None:
        """Fill a slot for adapters. None: it holds garbage."""
        self._adapters[slot] = digest

    def run_short(self, tokens: int, steps: int, *, at_result: bool) -> None:
        """The next `steps` steps write garbage and raise if they have more than `tokens` tokens."""
        self._shortage = _Shortage(tokens, steps, at_result)

    def execute(self, plan: StepPlan) -> LaunchedStep:
        """Launch a step.

        Raises:
            OutOfDeviceMemory: the simulated memory is short, unless that is raised by the result.
        """
        while self._launched and self._launched[0].seen:
            self._launched.popleft()
        if self.micro_batches > 1:
            self._check_tokens(plan)
        plan = replace(plan, rows=tuple(self._after_accepted(row) for row in plan.rows))
        lacks_memory = self._shortage.steps > 0 and plan.total_tokens > self._shortage.tokens
        self._shortage.steps -= 1
        if lacks_memory:
            return self._give_up(plan)
        assert len(self._launched) <= self.async_depth, "a step is launched too early"
        for source, target in plan.copies:
            self._memory[target] = self._memory[source].copy()
        slots = [row.request.slot for row in plan.rows]
        assert None not in slots, "a row has no slot"
        assert len(set(slots)) == len(slots), "two rows have one slot"
        for row in plan.rows:
            self._check_adapter(row.request)
        spoiled = self._spoiled()
        self._copy_states(plan)
        unsound = {row.request.id for row in plan.rows if row.start > spoiled.get(_run_of(row), row.start)}
        unsound |= {row.request.id for row in plan.rows if self._launched and self._reads_poison(row)}
        sound = [row for row in plan.rows if row.request.id not in unsound]
        # All rows write before any reads, as in the kernels of one layer, so that a wrong write is detected.
        self._digests = {row.request.id: self._digests_of(row) for row in sound}
        digests = {row.request.id: self._write(row) for row in sound}
        for row in plan.rows:
            if row.request.id in unsound:
                self._spoil(row)
        for row in sound:
            self._verify(row, digests[row.request.id])
        outcomes = [
            self._outcome(row, digests[row.request.id]) if row.request.id in digests else _rubbish(row)
            for row in plan.rows
        ]
        if self._states:
            self._advance_states(plan, digests, outcomes)
        self._keep_drawn(plan, outcomes)
        spoils = {_run_of(row): row.start for row in plan.rows if row.request.id in unsound or self._spoils(row)}
        failure = DeviceFailure("the simulated device failed") if self._fails else None
        step = LaunchedStep(failure or StepResult(tuple(outcomes)), spoils)
        self._fails = False
        self._launched.append(step)
        return step

    def _check_tokens(self, plan: StepPlan) -> None:
        """Assert that the tokens of all rows are known, and that drafts are alone in flight."""
        for row in plan.rows:
            known = len(row.request.tokens) + len(row.drafts)
            assert row.start + row.tokens <= known, f"{row.request.id} begins before its token is known"
        in_flight = any(not step.seen for step in self._launched)
        assert not in_flight or not (plan.draft_tokens or self._drafts_in_flight), "drafts are not alone in flight"
        self._drafts_in_flight = plan.draft_tokens > 0

    def _check_adapter(self, request: Request) -> None:
        if request.adapter is not None:
            assert request.adapter_slot is not None, f"{request.id} runs without its adapter"
            found = self._adapters.get(request.adapter_slot)
            assert found == request.adapter.digest, f"{request.id} is computed with the adapter {found}"

    def _give_up(self, plan: StepPlan) -> LaunchedStep:
        for row in plan.rows:
            self._spoil(row)
        if self._states:
            self._advance_states(plan, {}, [])
        error = OutOfDeviceMemory(f"no room for {plan.total_tokens} tokens")
        if not self._shortage.at_result:
            raise error
        step = LaunchedStep(error, {_run_of(row): row.start for row in plan.rows})
        self._launched.append(step)
        return step

    def _spoiled(self) -> dict[_Run, int]:
        """By run: the first position of garbage that the scheduler does not know of yet. A row that starts there
        overwrites it."""
        spoiled: dict[_Run, int] = {}
        for step in self._launched:
            for run, start in step.spoiled.items():
                spoiled[run] = min(start, spoiled.get(run, start))
        return spoiled

    def next_token(self, request: Request, digest: int) -> int:
        """The token that follows a prefix with this digest."""
        return prefix_digest(digest, request.seed) % self.vocab_size

    def _spoils(self, row: ScheduledRow) -> bool:
        return self._fails or self._is_poisoned(row)

    def _write(self, row: ScheduledRow) -> list[int]:
        """Write the row's KV. Returns the digests of all prefixes up to its end."""
        request, end = row.request, row.start + row.tokens
        digests = self._digests[request.id].values[:end]
        assert row.tokens > 0, "a row computes nothing"
        assert end == len(digests), "a row computes past the tokens"
        assert end <= len(request.block_table) * BLOCK_TOKENS, "a row writes past its blocks"
        spoils = self._spoils(row)
        for group, table in enumerate(self._tables_of(request)):
            for position in range(row.start, end):
                entry = _POISON if spoils else digests[position] ^ group
                self._memory[_block_of(table, position)][position % BLOCK_TOKENS] = entry
        return digests

    def _spoil(self, row: ScheduledRow) -> None:
        for table in self._tables_of(row.request):
            for position in range(row.start, row.start + row.tokens):
                self._memory[_block_of(table, position)][position % BLOCK_TOKENS] = _POISON

    def _tables_of(self, request: Request) -> tuple[list[int], ...]:
        """The block tables of all groups."""
        tables = (request.block_table, *request.window_tables)
        assert len(tables) == len(self._windows), f"{request.id} has {len(tables)} block tables"
        return tables

    def _digests_of(self, row: ScheduledRow) -> _Digests:
        """The digests of all prefixes of the tokens known to the device, extended from the previous step's."""
        request = row.request
        tokens = request.tokens
        digests = self._digests.get(request.id)
        if digests is not None:  # forget rejected drafts
            del digests.tokens[len(tokens) + 1 :], digests.values[len(tokens) + 1 :]
        if row.drafts:
            assert row.start + row.tokens == len(tokens) + len(row.drafts), "drafts do not follow the last token"
            tokens = [*tokens, *row.drafts]
        elif row.start + row.tokens > len(tokens):
            tokens = [*tokens, *self._drawn_after(request)]
        if digests is None or digests.tokens != tokens[: len(digests.tokens)]:
            digests = _Digests()
        before = digests.values[-1] if digests.values else root_of(request)
        for token in tokens[len(digests.tokens) :]:
            before = prefix_digest(before, token)
            digests.tokens.append(token)
            digests.values.append(before)
        return digests

    def _drawn_after(self, request: Request) -> tuple[int, ...]:
        """The tokens after those that the request knows."""
        drawn = self._drawn.get(request.slot or 0)
        assert drawn is not None, "a row needs a token that is not sampled"
        known = request, len(request.tokens)
        assert (drawn.request, drawn.position) == known, "a row needs a token that is not there"
        return drawn.tokens

    def _after_accepted(self, row: ScheduledRow) -> ScheduledRow:
        """A row in the place where it begins, which is earlier than planned where drafts before it were rejected."""
        request, known = row.request, len(row.request.tokens)
        if row.start <= known or row.start > self._spoiled().get(_run_of(row), row.start):
            return row
        start = known + len(self._drawn_after(request)) - 1
        assert (row.tokens, row.drafts) == (1, ()), "a row of several tokens follows drafts"
        assert start <= row.start, "a row begins before the drafts that it follows"
        return row._replace(start=start)

    def _verify(self, row: ScheduledRow, digests: list[int]) -> None:
        """Assert that the KV that the row reads through its block table is that of its request's prefix."""
        readable = row.start if self._spoils(row) else row.start + row.tokens
        for group, (table, window) in enumerate(zip(self._tables_of(row.request), self._windows, strict=True)):
            first = 0 if window is None else max(0, row.start - window + 1)
            for index in range(first // BLOCK_TOKENS, len(table)):
                start = max(first, index * BLOCK_TOKENS)
                expected = [digest ^ group for digest in digests[start : min((index + 1) * BLOCK_TOKENS, readable)]]
                found = self._memory[_block_of(table, start)][start % BLOCK_TOKENS :][: len(expected)]
                assert found == expected, (
                    f"{row.request.id} reads KV that is not its own in block {table[index]}, entry {index} of its table"
                    f" {group}"
                )

    def _copy_states(self, plan: StepPlan) -> None:
        for source, target in plan.states.copies if plan.states is not None else ():
            assert self._states[source] != _UNWRITTEN, f"state slot {source} is copied and was never written"
            self._states[target] = _POISON if self._fails else self._states[source]

    def _reads_poison(self, row: ScheduledRow) -> bool:
        return bool(self._states) and row.start > 0 and self._states[_state_of(row)] == _POISON

    def _advance_states(self, plan: StepPlan, digests: Mapping[str, list[int]], outcomes: Sequence[RowResult]) -> None:
        """Advance the state of each row with `digests`, and save those that are to be saved. All others are garbage."""
        assert plan.states is not None, "a model with states needs them planned"
        slots = [_state_of(row) for row in plan.rows]
        assert len(set(slots)) == len(slots), "two rows have one state"
        reached: dict[str, int] = {}
        for row, outcome in zip(plan.rows, outcomes, strict=False):
            of_row = digests.get(row.request.id)
            if of_row is None or self._spoils(row):
                continue
            before = self._states[_state_of(row)]
            assert not row.start or before == of_row[row.start - 1], (
                f"{row.request.id} reads a state that is not its own in slot {row.request.state}"
            )
            reached[row.request.id] = row.start + row.tokens - len(row.drafts) + outcome.accepted
        for row in plan.rows:
            end = reached.get(row.request.id)
            self._states[_state_of(row)] = _POISON if end is None else digests[row.request.id][end - 1]
        for request, position, slot in plan.states.saves:
            assert slot not in slots, "a state is saved over that of a row"
            saved = position <= reached.get(request.id, 0)
            self._states[slot] = digests[request.id][position - 1] if saved else _POISON

    def _outcome(self, row: ScheduledRow, digests: list[int]) -> RowResult:
        request, end = row.request, row.start + row.tokens
        if self._is_poisoned(row):
            return RowResult(token=0 if row.samples else None, finite=False)
        prompt_logprobs: tuple[TokenLogprob, ...] = ()
        if request.wants_prompt_logprobs:
            predicted = range(row.start + 1, min(end + 1, request.prompt_tokens))
            prompt_logprobs = tuple(prefix_logprob(request.tokens[at], digests[at - 1]) for at in predicted)
        if not row.samples:
            return RowResult(prompt_logprobs=prompt_logprobs)
        before = digests[end - 1 - len(row.drafts) :]
        drawn = [self.next_token(request, digest) for digest in before]
        wrong = (index for index, (draft, token) in enumerate(zip(row.drafts, drawn, strict=False)) if draft != token)
        accepted = next(wrong, len(row.drafts))
        if request.params.logprobs is None:
            return RowResult(drawn[accepted], None, prompt_logprobs, accepted=accepted)
        logprobs = [prefix_logprob(*pair) for pair in zip(drawn, before, strict=True)][: accepted + 1]
        return RowResult(drawn[accepted], logprobs[-1], prompt_logprobs, True, accepted, tuple(logprobs[:-1]))

    def _keep_drawn(self, plan: StepPlan, outcomes: list[RowResult]) -> None:
        """The next row in the same slot may need the token before its request knows it."""
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            if outcome.token is not None:
                position = row.start + row.tokens - len(row.drafts)
                tokens = *row.drafts[: outcome.accepted], outcome.token
                self._drawn[row.request.slot or 0] = _Drawn(row.request, position, tokens)


def _state_of(row: ScheduledRow) -> int:
    assert row.request.state is not None, f"{row.request.id} has no state"
    return row.request.state


def _run_of(row: ScheduledRow) -> _Run:
    return row.request.id, row.request.preemptions


def _rubbish(row: ScheduledRow) -> RowResult:
    """A result with an arbitrary token."""
    return RowResult(token=1 if row.samples else None)
