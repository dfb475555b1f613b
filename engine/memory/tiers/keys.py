"""Keys of a tenant's records, derived from its salt, which the server derives from its pepper (HMAC-SHA-256 as a PRF:
RFC 5869 derives keys alike)."""

import hmac
from functools import lru_cache

OWNER_BYTES = 16


def record_key(salt: bytes) -> bytes:
    """The 32-byte key of the records of the tenant with this salt.

    Raises:
        ValueError: the salt is empty, so the key would be known to all.
    """
    if not salt:
        raise ValueError("a tenant without a salt has no key")
    return hmac.digest(salt, b"turnpike kv record key, version 1", "sha256")


@lru_cache(maxsize=4096)
def owner_of(salt: bytes) -> bytes:
    """The 16 bytes by which a record names its tenant. They tell neither the tenant nor its key."""
    return hmac.digest(salt, b"turnpike kv record owner, version 1", "sha256")[:OWNER_BYTES]
