"""API keys: `tp-<public id>-<secret>` of a tenant, `tpa-...` of an administrator.

The public id (12 of a-z0-9) names a key in logs, limits and commands. The secret (43 of base 62: 256 bits) is shown
once. The store keeps HMAC-SHA256(pepper, whole key) (RFC 2104), so a stolen database contains no usable key. A slow
password hash would add nothing to 256 random bits and cost every request.
"""

import hmac
import re
import secrets
import string
from dataclasses import dataclass, field

from gateway.tenancy.errors import InvalidKey

PUBLIC_ID_CHARS = 12
SECRET_CHARS = 43
_BODY_CHARS = len("-") + PUBLIC_ID_CHARS + len("-") + SECRET_CHARS

TENANT_PREFIX = "tp"
ADMIN_PREFIX = "tpa"
"""Keys of one kind are never accepted as the other, as the prefix is part of the hashed key."""
KEY_CHARS = len(TENANT_PREFIX) + _BODY_CHARS
"""Length of a tenant's key."""

_PUBLIC_ID_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_ALPHABET = string.ascii_letters + string.digits
_PUBLIC_ID = re.compile(f"[a-z0-9]{{{PUBLIC_ID_CHARS}}}")
_KEY = re.compile(f"([a-z]{{2,3}})-([a-z0-9]{{{PUBLIC_ID_CHARS}}})-[A-Za-z0-9]{{{SECRET_CHARS}}}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A well-formed key. `plaintext`: the whole key, left out of the repr."""

    public_id: str
    plaintext: str = field(repr=False)

    @property
    def last_four(self) -> str:
        """The last four characters, for display."""
        return self.plaintext[-4:]

    def digest(self, pepper: bytes) -> bytes:
        """HMAC-SHA256 of the key under the pepper: the 32 bytes that the store keeps."""
        return hmac.digest(pepper, self.plaintext.encode("ascii"), "sha256")


def new_key(prefix: str = TENANT_PREFIX) -> ApiKey:
    """A random key of this kind."""
    public_id = "".join(secrets.choice(_PUBLIC_ID_ALPHABET) for _ in range(PUBLIC_ID_CHARS))
    secret = "".join(secrets.choice(_SECRET_ALPHABET) for _ in range(SECRET_CHARS))
    return ApiKey(public_id, f"{prefix}-{public_id}-{secret}")


def parse_key(presented: str, prefix: str = TENANT_PREFIX) -> ApiKey:
    """Parse a key as a client sent it: exact length and alphabet, without surrounding characters.

    Raises:
        InvalidKey: it is malformed, or of the other kind.
    """
    if len(presented) != len(prefix) + _BODY_CHARS:
        raise InvalidKey("not an API key")
    match = _KEY.fullmatch(presented)
    if match is None or match[1] != prefix:
        raise InvalidKey("not an API key")
    return ApiKey(match[2], presented)


def is_public_id(text: str) -> bool:
    """Whether the text has the form of a public id."""
    return _PUBLIC_ID.fullmatch(text) is not None
