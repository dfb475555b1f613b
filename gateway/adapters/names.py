"""Names of adapters: `NAME` for their tenant, or `TENANT/NAME`."""

import re

from gateway.adapters.errors import InvalidAdapter

MAX_NAME_CHARS = 63
"""With a tenant's name and a slash, at most 128 characters: the bound on model names."""
NAME_PATTERN = r"[a-z0-9][a-z0-9._-]*"

_NAME = re.compile(NAME_PATTERN)


def own_name(name: str, tenant_name: str) -> str | None:
    """The name without the tenant's prefix; None: it has the form of no adapter of this tenant."""
    prefix, slash, rest = name.partition("/")
    if slash:
        name = rest if prefix == tenant_name else ""
    return name if len(name) <= MAX_NAME_CHARS and _NAME.fullmatch(name) else None


def qualified_name(name: str, tenant_name: str) -> str:
    """`TENANT/NAME`."""
    return f"{tenant_name}/{name}"


def parse_name(name: str, tenant_name: str) -> str:
    """The name without the tenant's prefix.

    Raises:
        InvalidAdapter: it has another form, or another tenant's prefix.
    """
    own = own_name(name, tenant_name)
    if own is None:
        raise InvalidAdapter(
            f"the name must match {NAME_PATTERN} and have at most {MAX_NAME_CHARS} characters, optionally after "
            f"{tenant_name}/",
            "name",
        )
    return own
