"""Restores limits on money after a restart, from the spending in the journal."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from engine.runtime.futures import outcome_of
from gateway.admission.limiter import Limiter
from gateway.admission.model import MAX_AMOUNT, Committed, Measure, Scope
from gateway.admission.store import StoreAway
from gateway.metering.journal.journal import Journal
from gateway.tenancy.limits import ScopeKind

_log = logging.getLogger(__name__)


async def restore_spending(
    limiter: Limiter, journal: Journal, lineages: Mapping[str, str], prepaid_since_ms: Mapping[str, int]
) -> None:
    """Set this gateway's part of every counter of money to what its journal has billed. A shared store that is away
    keeps its counts. `lineages`: by a rotated key's public id, the id of the first key of its chain, which owns the
    limits. `prepaid_since_ms`: by tenant id, the time from which use is deducted from credit, in Unix milliseconds.

    Raises:
        JournalUnavailable: the journal cannot be written.
    """
    spent = await outcome_of(journal.follow_credit(prepaid_since_ms))
    try:
        await limiter.restore([*_months(journal, lineages), *_credit(spent)])
    except StoreAway:
        _log.warning("limits on money could not be compared with the journal: the store of limits is away")


def _months(journal: Journal, lineages: Mapping[str, str]) -> list[Committed]:
    """Spending by scope and month."""
    spent: dict[tuple[Scope, int], int] = {}
    for spending in journal.spent_at_start:
        month_ms = int(datetime.strptime(spending.month, "%Y-%m").replace(tzinfo=UTC).timestamp()) * 1000
        key = lineages.get(spending.key_id, spending.key_id)
        for kind, id in ((ScopeKind.KEY, key), (ScopeKind.TENANT, ""), (ScopeKind.MODEL, spending.model)):
            of_month = (Scope(spending.tenant_id, kind, id, Measure.NANODOLLARS_PER_MONTH), month_ms)
            spent[of_month] = spent.get(of_month, 0) + spending.nanodollars
    return [Committed(scope, at_ms, min(amount, MAX_AMOUNT)) for (scope, at_ms), amount in spent.items()]


def _credit(spent: Mapping[str, int]) -> list[Committed]:
    return [
        Committed(Scope(tenant_id, ScopeKind.TENANT, "", Measure.CREDIT_NANODOLLARS), 0, min(nanodollars, MAX_AMOUNT))
        for tenant_id, nanodollars in spent.items()
    ]
