"""Counts of refusals by minute and kind, in bounded memory.

A client chooses how often it is refused, with which key of its tenant, for which model name and at which endpoint. The
number of rows must not follow: a tenant has `MAX_ROWS_PER_TENANT` rows of its own, and then one for each error code,
with `OTHER` in place of key, model and endpoint. Codes, statuses and limits are closed sets of the program, and only an
administrator adds tenants, so those rows are bounded, too. All refusals of a tenant stay with their tenant and code.
"""

from dataclasses import dataclass

from gateway.analytics.refusals import StoredRefusal
from gateway.common.ids import new_event_id
from gateway.common.timestamps import utc_from_ms
from gateway.refusals.refusal import Kind, Refusal

MAX_ROWS_PER_TENANT = 100
MAX_ROWS = 5_000
"""Rows of all tenants with their own key, model and endpoint."""
MAX_ALL_ROWS = 10_000
"""With the rows by code. Refusals that would need a further row are dropped."""

OTHER = "(other)"
"""Neither a key, a model nor a tenant can have this name."""

_MINUTE_MS = 60_000


@dataclass(slots=True)
class _Row:
    requests: int = 0
    last_ms: int = 0
    request_id: str = ""


class RefusalCounts:
    """The refusals since the last `take`. For one event loop."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, Kind], _Row] = {}
        """By minute since the epoch and kind."""
        self._rows_of: dict[str, int] = {}
        """By tenant: rows with their own key, model and endpoint."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, refusal: Refusal) -> bool:
        """Count a refusal. False: there are `MAX_ALL_ROWS` rows, and none is of its kind."""
        bucket = (refusal.at_ms // _MINUTE_MS, refusal.kind)
        row = self._rows.get(bucket)
        if row is None:
            row = self._new_row(*bucket)
            if row is None:
                return False
        row.requests += 1
        row.last_ms = refusal.at_ms
        row.request_id = refusal.request_id
        return True

    def take(self, source: str) -> list[StoredRefusal]:
        """The rows, and none are left. Each gets an id, by which the store recognises copies of it."""
        rows, self._rows, self._rows_of = self._rows, {}, {}
        return [
            StoredRefusal(
                refusal_id=new_event_id(row.last_ms),
                source=source,
                occurred_at=utc_from_ms(row.last_ms),
                tenant_id=kind.tenant_id,
                key_id=kind.key_id,
                tier=kind.tier,
                model=kind.model,
                endpoint=kind.endpoint,
                outcome=kind.outcome.value,
                status=kind.status,
                code=kind.code,
                limit_name=kind.limit_name,
                requests=row.requests,
                request_id=row.request_id,
            )
            for (_, kind), row in rows.items()
        ]

    def check(self) -> None:
        """State the bounds."""
        assert len(self._rows) <= MAX_ALL_ROWS
        assert sum(self._rows_of.values()) <= MAX_ROWS
        assert all(count <= MAX_ROWS_PER_TENANT for count in self._rows_of.values())
        own = sum(OTHER not in (kind.key_id, kind.model, kind.endpoint) for _, kind in self._rows)
        assert own <= sum(self._rows_of.values())

    def _new_row(self, minute: int, kind: Kind) -> _Row | None:
        of_tenant = self._rows_of.get(kind.tenant_id, 0)
        if of_tenant < MAX_ROWS_PER_TENANT and len(self._rows) < MAX_ROWS:
            self._rows_of[kind.tenant_id] = of_tenant + 1
        else:
            kind = kind._replace(key_id=OTHER, model=OTHER, endpoint=OTHER)
            if (row := self._rows.get((minute, kind))) is not None:
                return row
            if len(self._rows) >= MAX_ALL_ROWS:
                return None
        row = self._rows[minute, kind] = _Row()
        return row
