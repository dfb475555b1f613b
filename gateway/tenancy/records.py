"""Records of tenants and keys, for the rest of the program."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from gateway.tenancy.grants import KeyScope
from gateway.tenancy.limits import ScopedLimits
from gateway.tenancy.policies import NO_POLICIES, TenantPolicies

Who = TypeVar("Who", covariant=True)
"""Owner of a key: a tenant's `Principal`, or an administrator."""

Tier = str
"""Name of the service class that a tenant pays for. The settings define the classes; the store does not check the
name."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant. `disabled_at`: start of its suspension, during which its keys are refused; None: it is active."""

    id: str
    name: str
    tier: Tier
    created_at: datetime
    disabled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The record of a key, without its secret.

    `scopes`, `models`: what it may do; None allows all. `rotated_to`: its successor; the key itself stays valid until
    `expires_at`. `lineage`: public id of the first key of a chain of rotations, which owns the limits.
    """

    public_id: str
    tenant_name: str
    name: str
    last_four: str
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None
    rotated_to: str | None
    lineage: str
    scopes: tuple[KeyScope, ...] | None
    models: tuple[str, ...] | None
    tenant_id: str


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key. Only this value has its plaintext."""

    record: KeyRecord
    plaintext: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller: who asks, for what, and within which limits.

    `key_id`: the key's public id. `lineage`: public id of the first key of its chain of rotations, which owns the
    limits; "": this key is the first. `scopes`, `models`: None allows all. `credit_nanodollars`: all that the tenant
    has paid in advance; None: it is billed afterwards.
    """

    tenant_id: str
    tenant_name: str
    tier: Tier
    key_id: str
    limits: tuple[ScopedLimits, ...] = ()
    lineage: str = ""
    scopes: frozenset[KeyScope] | None = None
    models: frozenset[str] | None = None
    credit_nanodollars: int | None = None
    policies: TenantPolicies = NO_POLICIES

    def may(self, scope: KeyScope) -> bool:
        """Whether the key has a scope."""
        return self.scopes is None or scope in self.scopes

    def may_use(self, model: str) -> bool:
        """Whether the key may use a model."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class RevokedKey(Generic[Who]):
    """A key that opens nothing any more. The bearer of the plaintext with `digest` is refused as `owner`."""

    digest: bytes = field(repr=False)
    owner: Who


@dataclass(frozen=True, slots=True)
class ActiveKey(Generic[Who]):
    """A key that authenticates the bearer of the plaintext with `digest`, before `expires_at`. `is_suspended`: its
    tenant is suspended, so the key opens nothing."""

    digest: bytes = field(repr=False)
    principal: Who
    expires_at: datetime | None = None
    is_suspended: bool = False
