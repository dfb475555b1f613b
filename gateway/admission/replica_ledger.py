"""Ledger of what this replica has recorded in a shared store, to record it again if the store loses its data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.admission.model import Committed, Hold, Scope, SettleOutcome, Use
from gateway.admission.windows import LimitWindow, bucket_at

_LONG = (LimitWindow.DAY, LimitWindow.MONTH, LimitWindow.EVER)
"""Windows whose committed amounts are recorded again. A minute is over before it matters."""


@dataclass(slots=True)
class _Tenant:
    open: dict[str, Hold] = field(default_factory=dict)
    committed: dict[Scope, Committed] = field(default_factory=dict)
    """Committed amount in the latest bucket of each scope."""


class ReplicaLedger:
    """Open holds and committed amounts of this replica, by tenant.

    Invariant: the store has acknowledged every entry, so a store without it has lost data. A tenant without open holds
    and committed amounts has no entry.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}

    def has(self, tenant_id: str) -> bool:
        """Whether the store could have lost data of this tenant."""
        return tenant_id in self._tenants

    def open_holds(self, tenant_id: str) -> Sequence[Hold]:
        """The tenant's open holds."""
        return list(self._tenant(tenant_id).open.values())

    def committed(self, tenant_id: str) -> Sequence[Committed]:
        """The tenant's committed amounts in long windows, each of the latest bucket."""
        return list(self._tenant(tenant_id).committed.values())

    def on_hold(self, hold: Hold) -> None:
        """Record a hold that the store has taken."""
        self._tenant(_tenant_of(hold)).open[hold.request_id] = hold

    def on_settle(self, hold: Hold, use: Use, outcome: SettleOutcome) -> None:
        """Record a settlement by the store. A repeated one counts if the first answer was lost."""
        tenant_id = _tenant_of(hold)
        was_open = self._tenant(tenant_id).open.pop(hold.request_id, None) is not None
        if was_open or outcome is not SettleOutcome.REPEATED:
            for demand in hold.demands:
                scope = demand.quota.scope
                self._add(Committed(scope, hold.at_ms, use.of(scope.measure)))
        self._drop_if_empty(tenant_id)

    def on_restore(self, known: Sequence[Committed]) -> None:
        """Record that the store counts at least these amounts."""
        for entry in known:
            committed = self._tenant(entry.scope.tenant_id).committed
            before = committed.get(entry.scope)
            if before is None or (_bucket(before), before.amount) < (_bucket(entry), entry.amount):
                committed[entry.scope] = entry

    def _add(self, entry: Committed) -> None:
        if entry.scope.measure.window not in _LONG or not entry.amount:
            return
        committed = self._tenant(entry.scope.tenant_id).committed
        before = committed.get(entry.scope)
        if before is None or _bucket(before) < _bucket(entry):
            committed[entry.scope] = entry
        elif _bucket(before) == _bucket(entry):
            committed[entry.scope] = Committed(entry.scope, entry.at_ms, before.amount + entry.amount)

    def _tenant(self, tenant_id: str) -> _Tenant:
        return self._tenants.setdefault(tenant_id, _Tenant())

    def _drop_if_empty(self, tenant_id: str) -> None:
        tenant = self._tenants.get(tenant_id)
        if tenant is not None and not tenant.open and not tenant.committed:
            del self._tenants[tenant_id]


def _bucket(entry: Committed) -> int:
    return bucket_at(entry.scope.measure.window, entry.at_ms)


def _tenant_of(hold: Hold) -> str:
    return hold.demands[0].quota.scope.tenant_id
