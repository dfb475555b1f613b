"""Admission: may this request run, and how far.

`Limiter.hold` takes what a request may need from every limit at once, or nothing; it may grant fewer tokens than were
asked for, so that an answer ends exactly where a limit does. `Limiter.settle` commits what was used. Counters are in
this process (`MemoryStore`) or in Redis, with a share of each limit here for when that is away (`LocalShare`).
`limits_for` and `demands_of` say what a request takes from which limit.
"""

from gateway.admission.book import RequestLimits, demands_of, limits_for, quotas_of_tenant
from gateway.admission.errors import QuotaExceeded
from gateway.admission.limiter import Limiter
from gateway.admission.memory import MemoryStore
from gateway.admission.model import (
    Demand,
    Hold,
    LimitState,
    Measure,
    Quota,
    Scope,
    Settlement,
    SettleOutcome,
    tightest,
)
from gateway.admission.store import LimitStore, StoreAway

__all__ = [
    "Demand",
    "Hold",
    "LimitState",
    "LimitStore",
    "Limiter",
    "Measure",
    "MemoryStore",
    "Quota",
    "QuotaExceeded",
    "RequestLimits",
    "Scope",
    "SettleOutcome",
    "Settlement",
    "StoreAway",
    "demands_of",
    "limits_for",
    "quotas_of_tenant",
    "tightest",
]
