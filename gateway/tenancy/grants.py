"""Rights of a tenant's key: scopes and models. A key that states neither may do everything."""

from collections.abc import Collection, Iterable
from enum import StrEnum

from gateway.tenancy.errors import InvalidGrant

MAX_MODELS = 64
MAX_MODEL_CHARS = 128


class KeyScope(StrEnum):
    """Scope of a key: a family of endpoints."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    USAGE = "usage"
    """The tenant's usage and limits."""


def check_scopes(scopes: Collection[str] | None) -> tuple[KeyScope, ...] | None:
    """The scopes, each once and in a fixed order. None: all, including future ones.

    Raises:
        InvalidGrant: there are none, or one is unknown.
    """
    if scopes is None:
        return None
    known = {scope.value for scope in KeyScope}
    if not scopes or not known.issuperset(scopes):
        raise InvalidGrant(f"scopes are one or more of {', '.join(KeyScope)}")
    return tuple(scope for scope in KeyScope if scope.value in scopes)


def check_models(models: Iterable[str] | None) -> tuple[str, ...] | None:
    """The models, each once and sorted. None: all, including future ones.

    Raises:
        InvalidGrant: there are none or too many, or one is not a valid name.
    """
    if models is None:
        return None
    names = sorted(set(models))
    if not 0 < len(names) <= MAX_MODELS:
        raise InvalidGrant(f"a key names 1 to {MAX_MODELS} models, or none to be let use all")
    if not all(0 < len(name) <= MAX_MODEL_CHARS and name.isprintable() for name in names):
        raise InvalidGrant(f"a model's name is 1 to {MAX_MODEL_CHARS} printable characters")
    return tuple(names)
