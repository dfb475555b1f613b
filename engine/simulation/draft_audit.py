"""Checks drafts: which rows have them, that accepted ones are delivered, and that rejected ones leave no trace."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from engine.memory.kv_cache import blocks_for
from engine.request import Phase, Request, TokenDelta
from engine.scheduling import ScheduledRow, StepPlan, StepResult


class DraftAuditor:
    """Follows one run. `windows`: the maximum tokens of a request, by class name. `chunk_tokens`: the maximum tokens of
    a row."""

    def __init__(self, windows: Mapping[str, int], chunk_tokens: int) -> None:
        self._windows = windows
        self._chunk_tokens = chunk_tokens
        self._drafts: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    @property
    def accepted(self) -> int:
        return self._accepted.total()

    @property
    def rejected(self) -> int:
        return self._drafts.total() - self._accepted.total()

    def after_schedule(self, plan: StepPlan, *, any_preempted: bool) -> None:
        """Drafts follow the last token of an answer, stay within its length, and do not displace prefill."""
        drafted = [row for row in plan.rows if row.drafts]
        assert plan.draft_tokens == sum(len(row.drafts) for row in drafted), "drafts are miscounted"
        for row in drafted:
            request = row.request
            known, max_tokens = len(request.tokens), request.prompt_tokens + request.max_tokens
            assert (row.start, row.tokens) == (known - 1, 1 + len(row.drafts)), "drafts do not follow the last token"
            assert row.samples, "drafts are for nothing"
            assert request.output_tokens > 0, "drafts are in a prompt"
            assert request.computed == row.start, "drafts follow what is in flight"
            window = self._windows[request.service_class.name]
            assert known + len(row.drafts) < min(max_tokens, window), f"the drafts of {request.id} exceed its length"
        short = {row.request.rank for row in plan.rows if self._is_short(row)}
        displaced = short.intersection(row.request.rank for row in drafted)
        assert any_preempted or not displaced, "drafts are computed in the place of prefill"

    def after_commit(
        self,
        plan: StepPlan,
        result: StepResult,
        live: Iterable[str],
        deltas: Iterable[TokenDelta],
        pending: Callable[[Request], int],
    ) -> None:
        """Accepted drafts are delivered, and nothing is left of rejected ones. `live`: the ids whose rows count.
        `pending`: tokens of a request's rows that are still in flight."""
        given = {delta.request_id: delta for delta in deltas}
        alive = set(live)
        for row, outcome in zip(plan.rows, result.rows, strict=True):
            request = row.request
            if not row.drafts or request.id not in alive or not outcome.finite:
                continue
            taken = tokens_given(given[request.id])
            ended = request.phase is Phase.FINISHED
            complete = taken == 1 + outcome.accepted or (ended and taken <= outcome.accepted)
            assert complete, "accepted drafts are not delivered"
            self._drafts[request.id] += len(row.drafts)
            self._accepted[request.id] += min(taken, outcome.accepted)
            if not ended:
                reached, computed = (request.computed, request.scheduled), len(request.tokens) - 1
                assert reached == (computed, computed + pending(request)), f"{request.id} has computed drafts"
                self.check_trimmed(request)

    def _is_short(self, row: ScheduledRow) -> bool:
        """Whether the row has fewer tokens than its request has pending and than a row may have."""
        left = len(row.request.tokens) - row.start
        return row.tokens < min(left, self._chunk_tokens)

    def check_trimmed(self, request: Request) -> None:
        """No draft is in flight, so no block is held for one."""
        held = len(request.block_table)
        assert held <= blocks_for(len(request.tokens)), f"{request.id} keeps blocks of rejected drafts"

    def check_usage(self, requests: Mapping[str, Request]) -> None:
        for request in requests.values():
            counted = request.usage.draft_tokens, request.usage.accepted_draft_tokens
            own = self._drafts[request.id], self._accepted[request.id]
            assert counted == own, f"the drafts of {request.id} are miscounted"


def tokens_given(delta: TokenDelta) -> int:
    """The tokens of a delta, including a stop token."""
    return len(delta.token_ids) + (delta.stop_token is not None)
