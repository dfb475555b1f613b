"""Errors of tenants and keys. Messages are one line and never contain a key or a secret."""

from gateway.errors import OperatorError


class TenancyError(OperatorError):
    """Base class of this package's errors."""


class InvalidName(TenancyError):
    """The name of a tenant or key is not allowed."""


class TenantExists(TenancyError):
    """The name of the new tenant is taken."""


class UnknownTenant(TenancyError):
    """No tenant has that name."""


class UnknownKey(TenancyError):
    """No key has that public id."""


class UnknownAdminKey(TenancyError):
    """No administrator's key has that public id."""


class InvalidGrant(TenancyError):
    """The scopes or models of a key are not valid."""


class InvalidExpiry(TenancyError):
    """The expiry of a key is not valid."""


class KeyNotInUse(TenancyError):
    """The key to rotate is revoked, has expired, or has been rotated before."""


class InvalidLimit(TenancyError):
    """A limit is out of range, or its scope cannot have one."""


class InvalidKey(TenancyError):
    """The presented key is not valid: malformed, unknown, revoked or expired. Clients are never shown which.

    `owner`: the key's owner, if its bearer has the whole key: it is revoked, expired or of a suspended tenant. Refusals
    are counted by it.
    """

    def __init__(self, message: str, owner: object = None) -> None:
        super().__init__(message)
        self.owner = owner


class TenantSuspended(InvalidKey):
    """The presented key is valid, and its tenant is suspended. Only the bearer of the key is shown it."""


class StoreUnavailable(TenancyError):
    """The database does not answer, and cached data does not suffice."""


class SchemaMismatch(TenancyError):
    """A newer version of this program has migrated the database."""
