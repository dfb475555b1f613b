"""Tenants, their API keys and limits: who is asking, for which tier, and how much they may use.

`TenantStore` and `LimitTable` write them to SQL for the command line; `Authenticator` answers for every request from
memory.
"""

from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.database import open_database
from gateway.tenancy.errors import (
    InvalidKey,
    InvalidLimit,
    InvalidName,
    SchemaMismatch,
    StoreUnavailable,
    TenancyError,
    TenantExists,
    UnknownKey,
    UnknownTenant,
    UnusablePepper,
)
from gateway.tenancy.limits import LimitRecord, Limits, LimitTable, ScopedLimits, ScopeKind
from gateway.tenancy.pepper import load_pepper
from gateway.tenancy.records import CreatedKey, KeyRecord, Principal, Tenant, Tier
from gateway.tenancy.store import TenantStore

__all__ = [
    "Authenticator",
    "CreatedKey",
    "InvalidKey",
    "InvalidLimit",
    "InvalidName",
    "KeyRecord",
    "LimitRecord",
    "LimitTable",
    "Limits",
    "Principal",
    "SchemaMismatch",
    "ScopeKind",
    "ScopedLimits",
    "StoreUnavailable",
    "TenancyError",
    "Tenant",
    "TenantExists",
    "TenantStore",
    "Tier",
    "UnknownKey",
    "UnknownTenant",
    "UnusablePepper",
    "load_pepper",
    "open_database",
]
