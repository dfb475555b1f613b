"""Tenants, keys, limits and money as JSON, and the declarations of it."""

from dataclasses import asdict
from typing import Any

from gateway.billing.money import dollars
from gateway.management.operations.routes import PATH_KINDS
from gateway.management.operations.schema import Choice, Instant, Integer, Kind, ListOf, Member, Text, answer, nullable
from gateway.management.operations.timestamps import instant
from gateway.tenancy.changes import MAX_KEY_NAME_CHARS
from gateway.tenancy.grants import MAX_MODEL_CHARS, MAX_MODELS, KeyScope
from gateway.tenancy.limits import LIMIT_NAMES, MAX_LIMIT, ScopedLimits, ScopeKind
from gateway.tenancy.records import KeyRecord, Tenant

TENANT_ID = PATH_KINDS["tenant_id"]
KEY_ID = PATH_KINDS["key_id"]
TENANT_NAME = Text(64, pattern="[A-Za-z0-9][A-Za-z0-9._-]*")
KEY_NAME = Text(MAX_KEY_NAME_CHARS, 0)
MODEL_NAME = Text(MAX_MODEL_CHARS)
SCOPES = ListOf(Choice(tuple(KeyScope)), len(KeyScope), 1)
MODELS = ListOf(MODEL_NAME, MAX_MODELS, 1)
LIMIT = Integer(0, MAX_LIMIT)

TENANT = answer(
    "Tenant",
    {
        "id": TENANT_ID,
        "name": TENANT_NAME,
        "tier": Text(16),
        "created_at": Instant(),
        "suspended_at": nullable(Instant(), "Start of the suspension; null: the tenant is active."),
    },
)

_KEY_MEMBERS: dict[str, Member | Kind] = {
    "id": Member(KEY_ID, "The public part of the key, between its dashes."),
    "tenant": TENANT_NAME,
    "tenant_id": TENANT_ID,
    "name": KEY_NAME,
    "last_four": Text(4, 4),
    "scopes": nullable(SCOPES, "Allowed scopes; null: all."),
    "models": nullable(MODELS, "Allowed models; null: all."),
    "created_at": Instant(),
    "expires_at": nullable(Instant()),
    "revoked_at": nullable(Instant()),
    "rotated_to": nullable(KEY_ID, "Id of its successor."),
}
KEY = answer("Key", _KEY_MEMBERS)
CREATED_KEY = answer(
    "CreatedKey",
    _KEY_MEMBERS | {"key": Member(Text(64), "The key itself. It is shown only once.", secret=True)},
)
ROTATED_KEY = answer("RotatedKey", {"retired": KEY, "successor": CREATED_KEY})

LIMITS = answer(
    "Limits",
    {
        "kind": Choice(tuple(ScopeKind)),
        "scope_id": Member(
            Text(MAX_MODEL_CHARS, 0),
            "Empty for the tenant; a model's name; or a key's id: for a rotated key, that of the first in the chain.",
        ),
        **{name: nullable(LIMIT) for name in LIMIT_NAMES},
    },
)


def money_members(name: str, *, known: bool = True) -> dict[str, Member | Kind]:
    """The members of an amount: an integer of nanodollars and a decimal string of dollars. `known`: never null."""
    as_text = Text(32, pattern=r"-?[0-9]+\.[0-9]{2,9}")
    return {
        f"{name}_nanodollars": Member(Integer(-(2**63), 2**63 - 1), nullable=not known),
        f"{name}_dollars": Member(as_text, nullable=not known),
    }


def money(name: str, nanodollars: int | None) -> dict[str, Any]:
    return {
        f"{name}_nanodollars": nanodollars,
        f"{name}_dollars": None if nanodollars is None else dollars(nanodollars),
    }


def limits_wire(stated: ScopedLimits) -> dict[str, Any]:
    return {"kind": stated.kind.value, "scope_id": stated.scope_id, **asdict(stated.limits)}


def tenant_wire(tenant: Tenant) -> dict[str, Any]:
    return {
        "id": tenant.id,
        "name": tenant.name,
        "tier": str(tenant.tier),
        "created_at": instant(tenant.created_at),
        "suspended_at": instant(tenant.disabled_at),
    }


def key_wire(key: KeyRecord) -> dict[str, Any]:
    """Without its secret."""
    return {
        "id": key.public_id,
        "tenant": key.tenant_name,
        "tenant_id": key.tenant_id,
        "name": key.name,
        "last_four": key.last_four,
        "scopes": None if key.scopes is None else [scope.value for scope in key.scopes],
        "models": None if key.models is None else list(key.models),
        "created_at": instant(key.created_at),
        "expires_at": instant(key.expires_at),
        "revoked_at": instant(key.revoked_at),
        "rotated_to": key.rotated_to,
    }
