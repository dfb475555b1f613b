"""Commits the result of a step: advances its requests and returns their deltas."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from engine.memory.kv_cache import KVCacheManager
from engine.request import Fault, FinishReason, Request, TokenDelta, TokenLogprob
from engine.scheduling.fair_queue import INPUT_SERVICE, OUTPUT_SERVICE
from engine.scheduling.in_flight import DropReason, InFlightStep
from engine.scheduling.ledger import Ledger
from engine.scheduling.plan import RowResult, ScheduledRow, StepPlan, StepResult
from engine.scheduling.request_table import RequestTable
from engine.scheduling.step_limits import StepSizeBackoff
from engine.scheduling.stopping import Stop, stop_after_token

_delta: Callable[[tuple[Any, ...]], TokenDelta] = partial(tuple.__new__, TokenDelta)
"""A `TokenDelta` from a tuple of all its fields, in half the time of the constructor."""


@dataclass(slots=True)
class _Tally:
    """Totals of one class over a step: tokens computed, tokens sampled, and service by tenant.

    `decoding`: the tenant of each plain decode row. These are most rows, so `close` counts them together.
    """

    computed: int = 0
    sampled: int = 0
    service: dict[str, int] = field(default_factory=dict)
    decoding: list[str] = field(default_factory=list)

    def serve(self, tenant: str, service: int) -> None:
        self.service[tenant] = self.service.get(tenant, 0) + service

    def close(self) -> None:
        """Count the decode rows."""
        if not self.decoding:
            return
        self.computed += len(self.decoding)
        self.sampled += len(self.decoding)
        for tenant, rows in Counter(self.decoding).items():
            self.serve(tenant, OUTPUT_SERVICE * rows)


class Committer:
    """Commits steps. Rows of requests that left or were preempted after the launch are dropped: see `InFlightStep`.

    A step costs O(its rows + blocks that it publishes). `windows`: the maximum tokens of a request, by rank.
    """

    def __init__(
        self,
        requests: RequestTable,
        cache: KVCacheManager,
        ledger: Ledger,
        windows: Sequence[int],
        backoff: StepSizeBackoff,
    ) -> None:
        self._backoff = backoff
        self._requests = requests
        self._cache = cache
        self._ledger = ledger
        self._windows = windows
        self.failures_total = 0

    def commit(self, step: InFlightStep, result: StepResult, elapsed_ns: int) -> list[TokenDelta]:
        """Charge the step's time, and advance each request by its row. Returns the requests' deltas."""
        self._ledger.charge(step, elapsed_ns)
        self._backoff.record_step()
        tallies = [_Tally() for _ in self._requests.ranks]
        decoding = [tally.decoding for tally in tallies]
        deltas = []
        dropped, advance, take_token = step.dropped, self._cache.commit, self._append_token
        for row, outcome in zip(step.plan.rows, result.rows, strict=True):
            request, start, tokens, samples, _ = row
            decodes = tokens == 1 and samples and start >= request.prompt_tokens
            if decodes and outcome.finite and not (dropped and request in dropped):
                decoding[request.rank].append(request.tenant)
                advance(request, 1)
                deltas.append(take_token(request, outcome))
            elif (delta := self._commit_row(row, outcome, tallies[request.rank], dropped.get(request))) is not None:
                deltas.append(delta)
        for tally in tallies:
            tally.close()
        self._requests.charge([tally.service for tally in tallies])
        # Once per step, not once per row. Requests that ended in it left the sums with their totals before this step.
        for load, tally in zip(self._requests.loads, tallies, strict=True):
            load.advance(tally.computed, tally.sampled)
        return deltas

    def fail(self, step: InFlightStep, error: str, elapsed_ns: int) -> list[TokenDelta]:
        """Charge a failed step. All its requests end with `error`, and the KV that they computed is not reused."""
        self._ledger.charge(step, elapsed_ns)
        failed = [self.fail_request(row.request, error) for row in step.plan.rows if row.request not in step.dropped]
        self._preempt_uncopied(step.plan)
        return failed

    def give_back(self, step: InFlightStep, error: str, elapsed_ns: int) -> list[TokenDelta]:
        """Undo a step for which the device had no memory. Its requests are rewound, and the next step is smaller.

        Where each row had one token, no smaller step exists: the request with the most KV ends with `error`. A fork is
        preempted where its block may not have been copied.
        """
        plan = step.plan
        self._ledger.record_wasted(plan.rows, elapsed_ns)
        live = [row for row in plan.rows if row.request not in step.dropped]
        copied = {copy.target for copy in plan.copies}
        for row in live:
            self._requests.rewind(row.request)
            if row.drafts:
                self._cache.trim(row.request)
            # The step may have advanced a recurrent state, which cannot be rewound.
            if self._cache.states is not None or not copied.isdisjoint(row.request.block_table):
                self._requests.preempt(row.request, cause=row.request.rank)
        self._preempt_uncopied(plan)
        self._backoff.lower(plan.total_tokens)
        if plan.total_tokens > len(live):
            return []
        return [self.fail_request(max(live, key=lambda row: row.start).request, error)]

    def _preempt_uncopied(self, plan: StepPlan) -> None:
        """Preempt the requests without a row in a failed step whose states it was to copy: those that get their blocks
        in several steps."""
        targets = set() if plan.states is None else {copy.target for copy in plan.states.copies}
        for request in [request for request in self._requests.running if request.state in targets]:
            self._requests.preempt(request, cause=request.rank)

    def _commit_row(
        self, row: ScheduledRow, outcome: RowResult, tally: _Tally, drop_reason: DropReason | None
    ) -> TokenDelta | None:
        """Commit any kind of row; None where it has no delta. `drop_reason`: why it is dropped; None: it is not."""
        request, _, tokens, samples, drafts = row
        if drop_reason is not None and drop_reason is not DropReason.ABORTED:
            return None
        if drafts and drop_reason is None and outcome.finite:
            return self._append_drafted(row, outcome, tally)
        drawn = 1 + outcome.accepted if samples else 0
        tally.serve(request.tenant, _input_service(row) + OUTPUT_SERVICE * drawn)
        if drop_reason is not None:
            return None
        if not outcome.finite:
            return self.fail_request(request, outcome.fault)
        tally.computed += tokens
        tally.sampled += samples
        return self._advance(row, outcome)

    def _advance(self, row: ScheduledRow, outcome: RowResult) -> TokenDelta | None:
        """Advance a request by the tokens of its row."""
        request = row.request
        self._cache.commit(request, row.tokens)
        if request.computed >= request.prompt_tokens:
            self._requests.release_forks(request)
        if request.wants_prompt_logprobs:
            if row.start == 0:
                request.prompt_logprobs.append(None)  # nothing predicts the first token
            request.prompt_logprobs += outcome.prompt_logprobs
        if row.samples:
            return self._append_token(request, outcome)
        if request.max_tokens > 0 or request.computed < request.prompt_tokens:
            return None
        if request.params.pooling is None:
            return self._finish(request, FinishReason.LENGTH)
        assert outcome.embedding, f"{request.id} was to get an embedding and did not"
        return self._finish(request, FinishReason.STOP, embedding=outcome.embedding)

    def _append_token(self, request: Request, outcome: RowResult) -> TokenDelta:
        """Append the sampled token, and end the request where it is the last."""
        token = outcome.token
        assert token is not None, f"{request.id} was to get a token and did not"
        request.tokens.append(token)
        stop = stop_after_token(request, self._windows[request.rank])
        logprobs = () if outcome.logprob is None else (outcome.logprob,)
        if stop is not None:
            return self._stop(request, stop, (token,), logprobs)
        prompt_logprobs = _take_prompt_logprobs(request) if request.prompt_logprobs else ()
        usage, cached_tokens = request.usage if request.params.stop else None, request.cached_tokens
        return _delta((request.id, (token,), logprobs, prompt_logprobs, None, None, usage, None, b"", cached_tokens))

    def _append_drafted(self, row: ScheduledRow, outcome: RowResult, tally: _Tally) -> TokenDelta:
        """Append the accepted drafts and the token sampled after them, as if they came one at a time.

        The request ends at the first of them that ends it, and frees the blocks past its tokens. Its tenant is charged
        only for the tokens that it receives.
        """
        request, window = row.request, self._windows[row.request.rank]
        assert outcome.token is not None, f"{request.id} was to get a token and did not"
        drawn = (*row.drafts[: outcome.accepted], outcome.token)
        taken, stop = 0, None
        while stop is None and taken < len(drawn):
            request.tokens.append(drawn[taken])
            taken += 1
            stop = stop_after_token(request, window)
        request.draft_tokens += len(row.drafts)
        request.accepted_draft_tokens += min(taken, outcome.accepted)
        tally.serve(request.tenant, OUTPUT_SERVICE * taken)
        tally.computed += taken
        tally.sampled += taken
        self._cache.commit(request, taken)
        request.scheduled -= len(row.drafts) - outcome.accepted
        self._requests.in_flight.reject(request, len(row.drafts) - outcome.accepted)
        self._cache.trim(request)
        logprobs = () if outcome.logprob is None else (*outcome.draft_logprobs, outcome.logprob)[:taken]
        if stop is not None:
            return self._stop(request, stop, drawn[:taken], logprobs)
        usage = request.usage if request.params.stop else None
        return TokenDelta(request.id, drawn, logprobs, usage=usage, cached_tokens=request.cached_tokens)

    def _stop(
        self, request: Request, stop: Stop, ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> TokenDelta:
        """End a request with a step's tokens. A stop token is left out of the text."""
        if stop.token is not None:
            ids, logprobs = ids[:-1], logprobs[:-1]
        return self._finish(request, stop.reason, ids, logprobs, stop_token=stop.token)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        stop_token: int | None = None,
        embedding: bytes = b"",
    ) -> TokenDelta:
        self._requests.remove(request, DropReason.SURPLUS)
        return TokenDelta(
            request.id,
            token_ids,
            logprobs,
            _take_prompt_logprobs(request),
            finish_reason=reason,
            stop_token=stop_token,
            usage=request.usage,
            embedding=embedding,
            cached_tokens=request.cached_tokens,
        )

    def fail_request(self, request: Request, error: str) -> TokenDelta:
        """End a request with `error`. The KV that it computed is not reused."""
        self.failures_total += error != Fault.GRAMMAR  # a grammar that cannot be followed is the client's error
        self._requests.remove(request, DropReason.SURPLUS, forget=True)
        return TokenDelta(request.id, finish_reason=FinishReason.ERROR, usage=request.usage, error=error)


def _input_service(row: ScheduledRow) -> int:
    """The service of a row's input tokens: only those that are computed for the first time count."""
    request, start, tokens, _, _ = row
    return INPUT_SERVICE * max(0, min(start + tokens, request.prompt_tokens) - max(start, request.high_water_tokens))


def _take_prompt_logprobs(request: Request) -> tuple[TokenLogprob | None, ...]:
    """Remove and return them: they are delivered once, with the first delta."""
    taken = tuple(request.prompt_logprobs)
    request.prompt_logprobs.clear()
    return taken
