"""What the rest of the program knows of tenants and keys."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gateway.tenancy.limits import ScopedLimits


class Tier(StrEnum):
    """What a tenant pays for; the engine knows it as a service class."""

    PREMIUM = "premium"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True)
class Tenant:
    id: str
    name: str
    tier: Tier
    created_at: datetime
    disabled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is known of a key once its secret has been shown."""

    public_id: str
    tenant_name: str
    name: str
    last_four: str
    created_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key. Its plaintext exists here and nowhere else."""

    record: KeyRecord
    plaintext: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking, and what is stated of how much. `key_id` is the key's public id."""

    tenant_id: str
    tenant_name: str
    tier: Tier
    key_id: str
    limits: tuple[ScopedLimits, ...] = ()


@dataclass(frozen=True, slots=True)
class ActiveKey:
    """A key that opens the door to whoever presents the plaintext of `digest`."""

    digest: bytes = field(repr=False)
    principal: Principal
