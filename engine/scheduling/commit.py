"""Takes in what a step computed: moves its requests on, and says what each of them is handed."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from engine.memory.kv_cache import KVCacheManager
from engine.request import Fault, FinishReason, Request, TokenDelta, TokenLogprob
from engine.scheduling.fair_queue import INPUT_SERVICE, OUTPUT_SERVICE
from engine.scheduling.flight import Fate, Flight
from engine.scheduling.ledger import Ledger
from engine.scheduling.plan import RowResult, ScheduledRow, StepResult
from engine.scheduling.roster import Roster
from engine.scheduling.shortage import StepLimit
from engine.scheduling.stopping import Stop, stop_after_token

_delta: Callable[[tuple[Any, ...]], TokenDelta] = partial(tuple.__new__, TokenDelta)
"""A `TokenDelta` of all its fields, made in half the time that the constructor takes."""


@dataclass(slots=True)
class _Tally:
    """What a step did for one class: tokens computed and sampled, and the service of tenants.

    `decoding` has the tenant of each row that computed its latest token and drew the next: most rows, so they are
    counted afterwards and together.
    """

    computed: int = 0
    sampled: int = 0
    service: dict[str, int] = field(default_factory=dict)
    decoding: list[str] = field(default_factory=list)

    def serve(self, tenant: str, service: int) -> None:
        self.service[tenant] = self.service.get(tenant, 0) + service

    def close(self) -> None:
        """Count those that decoded."""
        if not self.decoding:
            return
        self.computed += len(self.decoding)
        self.sampled += len(self.decoding)
        for tenant, rows in Counter(self.decoding).items():
            self.serve(tenant, OUTPUT_SERVICE * rows)


class Committer:
    """Rows of requests that have left or been preempted since the step was planned are dropped: see `Flight`.

    A step costs O(its rows + blocks that are published). `windows` are the most tokens of a request, by rank.
    """

    def __init__(
        self, roster: Roster, cache: KVCacheManager, ledger: Ledger, windows: Sequence[int], limit: StepLimit
    ) -> None:
        self._limit = limit
        self._roster = roster
        self._cache = cache
        self._ledger = ledger
        self._windows = windows
        self.failures_total = 0

    def commit(self, flight: Flight, result: StepResult, elapsed_ns: int) -> list[TokenDelta]:
        """Book the step, and move each request past what its row computed."""
        self._ledger.charge(flight, elapsed_ns)
        self._limit.note_step()
        tallies = [_Tally() for _ in self._roster.ranks]
        decoding = [tally.decoding for tally in tallies]
        deltas = []
        dropped, advance, take_token = flight.dropped, self._cache.commit, self._take_token
        for row, outcome in zip(flight.plan.rows, result.rows, strict=True):
            request, start, tokens, samples, _ = row
            decodes = tokens == 1 and samples and start >= request.prompt_tokens
            if decodes and outcome.finite and not (dropped and request in dropped):
                decoding[request.rank].append(request.tenant)
                advance(request, 1)
                deltas.append(take_token(request, outcome))
            elif (delta := self._take_in(row, outcome, tallies[request.rank], dropped.get(request))) is not None:
                deltas.append(delta)
        for tally in tallies:
            tally.close()
        self._roster.charge([tally.service for tally in tallies])
        # Once a step and not once a row; requests that ended with it are out of the sums with what it brought them.
        for load, tally in zip(self._roster.loads, tallies, strict=True):
            load.advance(tally.computed, tally.sampled)
        return deltas

    def fail(self, flight: Flight, error: str, elapsed_ns: int) -> list[TokenDelta]:
        """Book a step that could not be computed: all requests in it end, and nothing that it wrote is reused."""
        self._ledger.charge(flight, elapsed_ns)
        return [self._fail(row.request, error) for row in flight.plan.rows if row.request not in flight.dropped]

    def give_back(self, flight: Flight, error: str, elapsed_ns: int) -> list[TokenDelta]:
        """There was no room for a step: its requests are where they were before it, and the next one is smaller.

        Where it had one token of each, the request with the most KV ends, and the others have its room. A fork whose
        block may not have been copied starts again, in the ordinary way.
        """
        plan = flight.plan
        self._ledger.waste(plan.rows, elapsed_ns)
        live = [row for row in plan.rows if row.request not in flight.dropped]
        copied = {copy.target for copy in plan.copies}
        for row in live:
            self._roster.take_back(row.request)
            if row.drafts:
                self._cache.trim(row.request)
            if not copied.isdisjoint(row.request.block_table):
                self._roster.preempt(row.request, cause=row.request.rank)
        self._limit.lower(plan.total_tokens)
        if plan.total_tokens > len(live):
            return []
        return [self._fail(max(live, key=lambda row: row.start).request, error)]

    def _take_in(self, row: ScheduledRow, outcome: RowResult, tally: _Tally, fate: Fate | None) -> TokenDelta | None:
        """Any row; None where there is nothing to hand out. `fate` of one that was dropped."""
        request, _, tokens, samples, drafts = row
        if fate is not None and fate is not Fate.ABORTED:
            return None
        if drafts and fate is None and outcome.finite:
            return self._take_drafted(row, outcome, tally)
        drawn = 1 + outcome.accepted if samples else 0
        tally.serve(request.tenant, _input_service(row) + OUTPUT_SERVICE * drawn)
        if fate is not None:
            return None
        if not outcome.finite:
            return self._fail(request, outcome.fault)
        tally.computed += tokens
        tally.sampled += samples
        return self._advance(row, outcome)

    def _advance(self, row: ScheduledRow, outcome: RowResult) -> TokenDelta | None:
        """Move a request past what its row computed."""
        request = row.request
        self._cache.commit(request, row.tokens)
        if request.computed >= request.prompt_tokens:
            self._roster.release_forks(request)
        if request.wants_prompt_logprobs:
            if row.start == 0:
                request.prompt_logprobs.append(None)  # nothing predicts the first token
            request.prompt_logprobs += outcome.prompt_logprobs
        if row.samples:
            return self._take_token(request, outcome)
        if request.max_tokens > 0 or request.computed < request.prompt_tokens:
            return None
        if request.params.pooling is None:
            return self._finish(request, FinishReason.LENGTH)
        assert outcome.embedding, f"{request.id} was to get an embedding and did not"
        return self._finish(request, FinishReason.STOP, embedding=outcome.embedding)

    def _take_token(self, request: Request, outcome: RowResult) -> TokenDelta:
        """Append the token that was drawn, and end the request where it was the last."""
        token = outcome.token
        assert token is not None, f"{request.id} was to get a token and did not"
        request.tokens.append(token)
        stop = stop_after_token(request, self._windows[request.rank])
        logprobs = () if outcome.logprob is None else (outcome.logprob,)
        if stop is not None:
            return self._stop(request, stop, (token,), logprobs)
        prompt_logprobs = _take_prompt_logprobs(request) if request.prompt_logprobs else ()
        return _delta((request.id, (token,), logprobs, prompt_logprobs, None, None, None, None, b""))

    def _take_drafted(self, row: ScheduledRow, outcome: RowResult, tally: _Tally) -> TokenDelta:
        """Append the drafts that are what was drawn, and the token behind them, as if they had come one at a time: the
        request ends where one of them ends it, and gives back what blocks it has beyond its tokens.

        It has only been served what it gets: nobody asked for the rest.
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
        request.scheduled = request.computed
        self._cache.trim(request)
        logprobs = () if outcome.logprob is None else (*outcome.draft_logprobs, outcome.logprob)[:taken]
        if stop is not None:
            return self._stop(request, stop, drawn[:taken], logprobs)
        return TokenDelta(request.id, drawn, logprobs)

    def _stop(
        self, request: Request, stop: Stop, ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> TokenDelta:
        """End a request with the last of the tokens that a step brought; one that ends text is not shown."""
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
        self._roster.remove(request, Fate.SURPLUS)
        return TokenDelta(
            request.id,
            token_ids,
            logprobs,
            _take_prompt_logprobs(request),
            finish_reason=reason,
            stop_token=stop_token,
            usage=request.usage,
            embedding=embedding,
        )

    def _fail(self, request: Request, error: str) -> TokenDelta:
        self.failures_total += error != Fault.GRAMMAR  # that is its author's
        self._roster.remove(request, Fate.SURPLUS, forget=True)
        return TokenDelta(request.id, finish_reason=FinishReason.ERROR, usage=request.usage, error=error)


def _input_service(row: ScheduledRow) -> int:
    """What the input tokens of a row count as: those that are computed for the first time."""
    request, start, tokens, _, _ = row
    return INPUT_SERVICE * max(0, min(start + tokens, request.prompt_tokens) - max(start, request.high_water_tokens))


def _take_prompt_logprobs(request: Request) -> tuple[TokenLogprob | None, ...]:
    """They are delivered once, on the first delta."""
    taken = tuple(request.prompt_logprobs)
    request.prompt_logprobs.clear()
    return taken
