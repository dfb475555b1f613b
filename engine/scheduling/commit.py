"""Takes in what a step computed: moves its requests on, and says what each of them is handed."""

from collections.abc import Sequence

from engine.memory.kv_cache import KVCacheManager
from engine.request import FinishReason, Phase, Request, TokenDelta, TokenLogprob
from engine.scheduling.fair_queue import INPUT_SERVICE, OUTPUT_SERVICE
from engine.scheduling.ledger import Ledger
from engine.scheduling.plan import RowResult, ScheduledRow, StepPlan, StepResult
from engine.scheduling.roster import Roster
from engine.scheduling.stopping import stop_after_token


class Committer:
    """Rows of requests that have left or been preempted since the step was planned are dropped.

    A step costs O(its rows + blocks that are published). `windows` are the most tokens of a request, by rank.
    """

    def __init__(self, roster: Roster, cache: KVCacheManager, ledger: Ledger, windows: Sequence[int]) -> None:
        self._roster = roster
        self._cache = cache
        self._ledger = ledger
        self._windows = windows
        self.failures_total = 0

    def commit(self, plan: StepPlan, result: StepResult, elapsed_ns: int) -> list[TokenDelta]:
        """Book the step, and move each request past what its row computed."""
        self._ledger.charge(plan.rows, elapsed_ns)
        deltas = []
        ranks = self._roster.ranks
        services: list[dict[str, int]] = [{} for _ in ranks]
        computed, sampled = [0] * len(ranks), [0] * len(ranks)
        waiting, running = Phase.WAITING, Phase.RUNNING
        for row, outcome in zip(plan.rows, result.rows, strict=True):
            request, start, tokens, samples = row
            phase = request.phase
            if phase is waiting:
                continue  # what was lost to a preemption is not service
            service = OUTPUT_SERVICE if samples else 0
            if start < request.prompt_tokens:
                service += _input_service(row)
            served, tenant = services[request.rank], request.tenant
            served[tenant] = served.get(tenant, 0) + service
            if phase is running:
                if outcome.finite:
                    computed[request.rank] += tokens
                    sampled[request.rank] += samples
                delta = self._advance(row, outcome)
                if delta is not None:
                    deltas.append(delta)
        self._roster.charge(services)
        # Once a step and not once a row; requests that ended with it are out of the sums with what it brought them.
        for rank, load in enumerate(self._roster.loads):
            load.advance(computed[rank], sampled[rank])
        return deltas

    def fail(self, plan: StepPlan, error: str, elapsed_ns: int) -> list[TokenDelta]:
        """Book a step that could not be computed: all requests in it end, and nothing that it wrote is reused."""
        self._ledger.charge(plan.rows, elapsed_ns)
        return [self._fail(row.request, error) for row in plan.rows if row.request.phase is Phase.RUNNING]

    def _advance(self, row: ScheduledRow, outcome: RowResult) -> TokenDelta | None:
        """Move a request past what its row computed; None where there is nothing to hand out."""
        request = row.request
        if not outcome.finite:
            return self._fail(request, "the model's output is not finite")
        self._cache.commit(request, row.tokens)
        if request.computed >= request.prompt_tokens:
            self._roster.release_forks(request)
        if request.params.prompt_logprobs is not None and request.output_tokens == 0:
            if row.start == 0:
                request.prompt_logprobs.append(None)  # nothing predicts the first token
            request.prompt_logprobs += outcome.prompt_logprobs
        if not row.samples:
            prompt_only = request.max_tokens == 0 and request.computed == request.prompt_tokens
            return self._finish(request, FinishReason.LENGTH) if prompt_only else None

        assert outcome.token is not None, f"{request.id} was to get a token and did not"
        request.tokens.append(outcome.token)
        stop = stop_after_token(request, self._windows[request.rank])
        token_ids = (outcome.token,) if stop is None or stop.token is None else ()
        logprobs = (outcome.logprob,) if token_ids and outcome.logprob is not None else ()
        if stop is not None:
            return self._finish(request, stop.reason, token_ids, logprobs, stop_token=stop.token)
        if request.prompt_logprobs:
            return TokenDelta(request.id, token_ids, logprobs, _take_prompt_logprobs(request))
        return TokenDelta(request.id, token_ids, logprobs)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        stop_token: int | None = None,
    ) -> TokenDelta:
        self._roster.remove(request)
        return TokenDelta(
            request.id,
            token_ids,
            logprobs,
            _take_prompt_logprobs(request),
            finish_reason=reason,
            stop_token=stop_token,
            usage=request.usage,
        )

    def _fail(self, request: Request, error: str) -> TokenDelta:
        self.failures_total += 1
        self._roster.remove(request, forget=True)
        return TokenDelta(request.id, finish_reason=FinishReason.ERROR, usage=request.usage, error=error)


def _input_service(row: ScheduledRow) -> int:
    """What the input tokens of a row count as: those that are computed for the first time."""
    request, start, tokens, _ = row
    return INPUT_SERVICE * max(0, min(start + tokens, request.prompt_tokens) - max(start, request.high_water_tokens))


def _take_prompt_logprobs(request: Request) -> tuple[TokenLogprob | None, ...]:
    """They are delivered once, on the first delta."""
    taken = tuple(request.prompt_logprobs)
    request.prompt_logprobs.clear()
    return taken
