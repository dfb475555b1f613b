"""Tenants and their API keys: who is asking, and for which tier.

`TenantStore` writes them to SQL for the command line; `Authenticator` answers for every request from memory.
"""

from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.database import open_database
from gateway.tenancy.errors import (
    InvalidKey,
    InvalidName,
    SchemaMismatch,
    StoreUnavailable,
    TenancyError,
    TenantExists,
    UnknownKey,
    UnknownTenant,
    UnusablePepper,
)
from gateway.tenancy.pepper import load_pepper
from gateway.tenancy.store import CreatedKey, KeyRecord, Principal, Tenant, TenantStore, Tier

__all__ = [
    "Authenticator",
    "CreatedKey",
    "InvalidKey",
    "InvalidName",
    "KeyRecord",
    "Principal",
    "SchemaMismatch",
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
