"""Redaction of secrets in text that leaves the process.

Two nets, as each alone has holes: values are dropped by their field name, and the finished line is searched for
patterns of secrets and for known secrets.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "[redacted]"

SECRET_FIELDS = frozenset(
    (
        *("api_key", "authorization", "database_url", "headers", "key", "key_pepper", "password", "pepper"),
        *("body", "content", "input", "messages", "prompt", "text", "token_ids"),
    )
)
"""Field names whose values are never logged: secrets, and tenants' data."""

# The public id stays, as it identifies the key. Truncated keys match too: part of a secret is a secret.
_KEY = re.compile(r"(tpa?)-([A-Za-z0-9]{12})-[A-Za-z0-9_-]+")
_URL_PASSWORD = re.compile(r"(://[^\s/@:]*:)[^\s/@]+@")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE)


_SCALARS = frozenset((str, int, float, bool, type(None)))
"""Types of most values. They are no mappings, which is slow to find out of any other type."""


class Redactor:
    """Redacts text. `secrets`: known secrets, replaced wherever they occur; those shorter than 4 characters are
    ignored, as they would match parts of ordinary words."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known = sorted({secret for secret in secrets if len(secret) >= 4}, key=len, reverse=True)
        self._any_known = re.compile("|".join(map(re.escape, self._known)))

    def text(self, text: str) -> str:
        """The text without secrets."""
        # Most lines have no secret, and a search for a plain string is far faster than one for a pattern.
        if any(secret in text for secret in self._known):
            text = self._any_known.sub(REDACTED, text)
        text = _KEY.sub(rf"\1-\2-{REDACTED}", text)
        text = _URL_PASSWORD.sub(rf"\1{REDACTED}@", text)
        folded = text.lower() if text.isascii() else text.casefold()
        if "bearer" in folded or "basic" in folded:
            text = _BEARER.sub(rf"\1 {REDACTED}", text)
        return text


def without_secret_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without the values of secret fields, at any depth of mappings."""
    return {
        name: REDACTED
        if name.lower() in SECRET_FIELDS
        else value
        if type(value) in _SCALARS or not isinstance(value, Mapping)
        else without_secret_fields(value)
        for name, value in values.items()
    }
