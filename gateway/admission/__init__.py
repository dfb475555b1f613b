"""Admission control: whether a request may run, and for how many tokens.

`Limiter.hold` reserves what a request may need from every limit at once, or nothing. It may grant fewer tokens than
requested, so an answer ends exactly at a limit. `Limiter.settle` commits what was used. Counters are in this process
(`MemoryStore`) or in Redis (`RedisStore`), with a local share of each limit for outages of Redis (`LocalShare`).
`limits_for` and `demands_of` compute what a request takes from which limit.
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
