"""Authorization of tenant keys: scopes by path, models by name."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from starlette.types import ASGIApp

from gateway.http.errors import APIError
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.records import Principal

ANY_KEY = frozenset[KeyScope]()
"""Marks an endpoint that needs no scope."""
CHAT = frozenset({KeyScope.CHAT})
GENERATION = frozenset({KeyScope.CHAT, KeyScope.COMPLETIONS, KeyScope.EMBEDDINGS})


class Endpoint(NamedTuple):
    """An endpoint of tenants' keys. `path`: as Starlette's routes have it; one with a parameter covers all paths that
    begin like it. `scopes` allow it; one of them is enough."""

    path: str
    methods: Sequence[str]
    scopes: frozenset[KeyScope]
    app: ASGIApp


class AccessPolicy:
    """Scopes by path. A path that is of no endpoint is denied to keys with scopes."""

    def __init__(self, endpoints: Iterable[Endpoint] = ()) -> None:
        self._scopes = {each.path.partition("{")[0]: each.scopes for each in endpoints}
        self._starts = [path for path in self._scopes if path.endswith("/")]

    def require(self, principal: Principal, path: str) -> None:
        """
        Raises:
            APIError: 403, the key lacks the path's scope.
        """
        require_scope(principal, self._scopes.get(self._known(path)))

    def endpoint_of(self, path: str) -> str:
        """The endpoint of a path, from a closed set: the path itself, its collection with `{id}`, or `(other)`."""
        known = self._known(path)
        return f"{known}{{id}}" if known.endswith("/") else known or "(other)"

    def _known(self, path: str) -> str:
        """The path of its endpoint up to the first parameter; empty: it has none."""
        if path in self._scopes:
            return path
        return next((start for start in self._starts if path.startswith(start)), "")


def require_scope(principal: Principal, scopes: frozenset[KeyScope] | None) -> None:
    """Check that the key has one of the scopes. None: only a key without scopes passes.

    Raises:
        APIError: 403, it has none of them.
    """
    if principal.scopes is None:
        return
    if scopes is None or (scopes and not scopes & principal.scopes):
        raise APIError(
            403,
            "You have insufficient permissions for this operation: the API key lacks its scope.",
            code="scope_not_allowed",
        )


def require_model(principal: Principal, model: str) -> None:
    """Check the name only: the model need not exist.

    Raises:
        APIError: 403, the key's models do not include it.
    """
    if not principal.may_use(model):
        raise model_not_allowed()


def model_not_allowed() -> APIError:
    return APIError(403, "The API key does not have access to this model.", param="model", code="model_not_allowed")
