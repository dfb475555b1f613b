"""Tenants, their API keys, limits and policies.

`TenantStore` and `LimitTable` read them from SQL; `TenantChanges` writes them within the caller's transaction.
`Authenticator` answers every request from memory.
"""

from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.changes import KeyGrant, TenantChanges
from gateway.tenancy.database import open_database
from gateway.tenancy.errors import (
    InvalidExpiry,
    InvalidGrant,
    InvalidKey,
    InvalidLimit,
    InvalidName,
    KeyNotInUse,
    SchemaMismatch,
    StoreUnavailable,
    TenancyError,
    TenantExists,
    UnknownKey,
    UnknownTenant,
)
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.limits import LimitRecord, Limits, LimitTable, ScopedLimits, ScopeKind
from gateway.tenancy.records import CreatedKey, KeyRecord, Principal, Tenant, Tier
from gateway.tenancy.store import TenantStore

__all__ = [
    "Authenticator",
    "CreatedKey",
    "InvalidExpiry",
    "InvalidGrant",
    "InvalidKey",
    "InvalidLimit",
    "InvalidName",
    "KeyGrant",
    "KeyNotInUse",
    "KeyRecord",
    "KeyScope",
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
    "TenantChanges",
    "TenantExists",
    "TenantStore",
    "Tier",
    "UnknownKey",
    "UnknownTenant",
    "open_database",
]
