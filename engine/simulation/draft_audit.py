"""Judges what becomes of drafts: who has them in a row, what they bring, and that nothing of them stays."""

from collections import Counter
from collections.abc import Iterable, Mapping

from engine.memory.kv_cache import blocks_for
from engine.request import Phase, Request, TokenDelta
from engine.scheduling import ScheduledRow, StepPlan, StepResult


class DraftAuditor:
    """Follows one run. `windows` are the most tokens of a request, by the name of its class; a row has at most
    `chunk_tokens`."""

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

    def after_schedule(self, plan: StepPlan, *, anybody_gave_way: bool) -> None:
        """Drafts follow the last token of an answer, stay within its length, and keep out no prefill."""
        drafted = [row for row in plan.rows if row.drafts]
        assert plan.draft_tokens == sum(len(row.drafts) for row in drafted), "drafts are miscounted"
        for row in drafted:
            request = row.request
            known, most = len(request.tokens), request.prompt_tokens + request.max_tokens
            assert (row.start, row.tokens) == (known - 1, 1 + len(row.drafts)), "drafts do not follow the last token"
            assert row.samples, "drafts are for nothing"
            assert request.output_tokens > 0, "drafts are in a prompt"
            assert request.computed == row.start, "drafts follow what is in flight"
            window = self._windows[request.service_class.name]
            assert known + len(row.drafts) < min(most, window), f"the drafts of {request.id} go past its length"
        short = {row.request.rank for row in plan.rows if self._is_short(row)}
        kept_out = short.intersection(row.request.rank for row in drafted)
        assert anybody_gave_way or not kept_out, "drafts are computed in the place of prefill"

    def after_commit(
        self, plan: StepPlan, result: StepResult, live: Iterable[str], deltas: Iterable[TokenDelta]
    ) -> None:
        """What was right was handed out, and nothing is left of the rest. `live` are those whose rows count."""
        given = {delta.request_id: delta for delta in deltas}
        alive = set(live)
        for row, outcome in zip(plan.rows, result.rows, strict=True):
            request = row.request
            if not row.drafts or request.id not in alive or not outcome.finite:
                continue
            taken = tokens_given(given[request.id])
            ended = request.phase is Phase.FINISHED
            assert taken == 1 + outcome.accepted or (ended and taken <= outcome.accepted), "drafts were right, in vain"
            self._drafts[request.id] += len(row.drafts)
            self._accepted[request.id] += min(taken, outcome.accepted)
            if not ended:
                reached = request.computed, request.scheduled
                assert reached == (len(request.tokens) - 1,) * 2, f"{request.id} has computed drafts"
                self.check_trimmed(request)

    def _is_short(self, row: ScheduledRow) -> bool:
        """Has it less of the request's tokens than there are, and less than a row may have?"""
        left = len(row.request.tokens) - row.start
        return row.tokens < min(left, self._chunk_tokens)

    def check_trimmed(self, request: Request) -> None:
        """No draft is in flight, so no block is held for any."""
        held = len(request.block_table)
        assert held <= blocks_for(len(request.tokens)), f"{request.id} keeps blocks of rejected drafts"

    def check_usage(self, requests: Mapping[str, Request]) -> None:
        for request in requests.values():
            counted = request.usage.draft_tokens, request.usage.accepted_draft_tokens
            own = self._drafts[request.id], self._accepted[request.id]
            assert counted == own, f"the drafts of {request.id} are miscounted"


def tokens_given(delta: TokenDelta) -> int:
    """How many tokens a step brought, one that ended the text included."""
    return len(delta.token_ids) + (delta.stop_token is not None)
