"""What the rest of the program knows of tenants and keys."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from gateway.sessions.policy import SessionWindow
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.limits import ScopedLimits
from gateway.tenancy.routing_policy import NO_POLICY, RoutingPolicy

Who = TypeVar("Who", covariant=True)
"""Who a key stands for: a tenant's `Principal`, or an administrator."""

Tier = str
"""What a tenant pays for: the name of a service class. The settings say which there are; the store does not know."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """`disabled_at`: since when it is suspended; its keys open nothing."""

    id: str
    name: str
    tier: Tier
    created_at: datetime
    disabled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is known of a key once its secret has been shown.

    `scopes` and `models`: what it may do; None is everything. `rotated_to`: the key that took its place, while it went
    on until `expires_at`. `lineage`: the first key of such a chain, which its limits go by.
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
    """A new key. Its plaintext exists here and nowhere else."""

    record: KeyRecord
    plaintext: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking, for what, and what is stated of how much.

    `key_id` is the key's public id. `lineage` is what limits of the key go by: the public id of the first of a chain
    of rotated keys ("": it is the first). `scopes` and `models`: None is everything. `credit_nanodollars` is all that
    the tenant ever paid in advance; None: it pays afterwards. `routing` is the tenant's policy, and `session_window`
    what it wants of its sessions; None: what the settings say.
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
    routing: RoutingPolicy = NO_POLICY
    session_window: SessionWindow | None = None

    def may(self, scope: KeyScope) -> bool:
        return self.scopes is None or scope in self.scopes

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class ActiveKey(Generic[Who]):
    """A key that opens the door to whoever presents the plaintext of `digest`, before `expires_at`."""

    digest: bytes = field(repr=False)
    principal: Who
    expires_at: datetime | None = None
