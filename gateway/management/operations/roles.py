"""Roles of administrators, and the sets of roles that routes allow."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    ADMIN = "admin"
    BILLING = "billing"
    """Reads all but the audit log, and changes prices, invoices and credit."""
    VIEWER = "viewer"
    """Reads everything, changes nothing."""


ADMINS = frozenset({Role.ADMIN})
FINANCE = frozenset({Role.ADMIN, Role.BILLING})
AUDITORS = frozenset({Role.ADMIN, Role.VIEWER})
READERS = frozenset(Role)


@dataclass(frozen=True, slots=True)
class Administrator:
    """Who is asking. `key_id` is the key's public id: it names the actor in the audit log and in logs."""

    key_id: str
    name: str
    role: Role
