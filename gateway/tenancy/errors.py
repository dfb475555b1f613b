"""What can go wrong with tenants and keys. Messages are one line and never hold a key or a secret."""

from gateway.errors import OperatorError


class TenancyError(OperatorError):
    """Base of this package's errors."""


class InvalidName(TenancyError):
    """A tenant's or key's name that is not allowed."""


class TenantExists(TenancyError):
    """The name of the tenant to create is taken."""


class UnknownTenant(TenancyError):
    """No tenant has that name."""


class UnknownKey(TenancyError):
    """No key has that public id."""


class UnknownAdminKey(TenancyError):
    """No administrator's key has that public id."""


class InvalidGrant(TenancyError):
    """Scopes or models that a key cannot have."""


class InvalidExpiry(TenancyError):
    """An end of a key's life that cannot be."""


class KeyNotInUse(TenancyError):
    """The key to rotate is revoked, has expired, or has been rotated before."""


class InvalidLimit(TenancyError):
    """A limit out of range, or of something that cannot have one."""


class InvalidKey(TenancyError):
    """The presented key opens nothing: malformed, unknown, revoked, or of a disabled tenant. Which of these is
    never said."""


class StoreUnavailable(TenancyError):
    """The database does not answer, and what is known without it is not enough."""


class SchemaMismatch(TenancyError):
    """The database was made by a newer version of this program."""
