"""Comparison of the refusals that clients received with those in the store."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.http.request_state import RequestState, request_state
from gateway.refusals.refusal_log import RefusalLog
from tests.whole.scenario import Call
from tests.whole.tenants import id_of

if TYPE_CHECKING:
    from tests.whole.clients import Exchange

FLUSH_S = 0.5
"""Often enough for faults of the store to meet a flush."""

Counts = Counter[tuple[str, str]]
"""By tenant id and error code."""


class Refusals:
    """The refusals of a run. `answered`: what clients were answered. `unsure`: answers of a process that was killed
    before its client had the end. `lost`: what a process had not stored when it ended, at most; the store may have it.
    `metered`: by tenant, errors of requests with a usage record, which are no refusals."""

    def __init__(self) -> None:
        self.answered: Counts = Counter()
        self.unsure: Counts = Counter()
        self.lost: Counts = Counter()
        self.metered: Counter[str] = Counter()

    def note(self, call: Call, scope: Mapping[str, Any], exchange: "Exchange") -> None:
        """Count a request that has ended."""
        if exchange.answered is None or exchange.answered < 400 or not scope["path"].startswith("/v1/"):
            return
        state = request_state(scope)  # type: ignore[arg-type]
        if state.metered:
            self.metered[id_of(call.tenant)] += 1
            return
        code = _code_of(call, state, exchange)
        # A request that is cut off before its key was looked up is no tenant's.
        nameless = state.owner is None and code == "shutting_down"
        counts = self.unsure if exchange.broken_off else self.answered
        counts["" if nameless else id_of(call.tenant), code] += 1

    def end_of(self, log: RefusalLog) -> None:
        """A process ends, in order or not."""
        for row in log._buffer.values():
            self.lost[row.tenant_id, row.code] += row.requests
        for (_, kind), row in log._counts._rows.items():
            self.lost[kind.tenant_id, kind.code] += row.requests

    def check(self, stored: Counts) -> None:
        """Each refusal is stored once, but for those that were lost with a process."""
        for each in {*stored, *self.answered}:
            least, most = self.answered[each] - self.lost[each], self.answered[each] + self.unsure[each]
            assert least <= stored[each] <= most, (
                f"{stored[each]} refusals {each} are stored, of {self.answered[each]} that clients met and "
                f"{self.lost[each]} that were lost"
            )

    def check_metered(self, failed: Counter[str]) -> None:
        """`failed`: usage events by tenant of requests that did not end well. An error is a refusal or one of these."""
        for tenant, count in self.metered.items():
            told = f"{count} errors of {tenant} have a usage record, and {failed[tenant]} events say so"
            assert count <= failed[tenant], told


def _code_of(call: Call, state: RequestState, exchange: "Exchange") -> str:
    """The error code that the client received. Anthropic's envelope has no code."""
    if call.endpoint == "messages":
        return state.error or ""
    code: str = json.loads(bytes(exchange.error))["error"]["code"]
    return code
