"""Authorization of tenant keys: scopes by path, models by name."""

from collections.abc import Mapping

from gateway.http.errors import APIError
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.records import Principal

ANY_KEY = frozenset[KeyScope]()
"""Marks a path that needs no scope."""

_GENERATION = frozenset({KeyScope.CHAT, KeyScope.COMPLETIONS, KeyScope.EMBEDDINGS})
SCOPES_BY_PATH: Mapping[str, frozenset[KeyScope]] = {
    "/v1/chat/completions": frozenset({KeyScope.CHAT}),
    "/v1/responses": frozenset({KeyScope.CHAT}),
    "/v1/responses/": frozenset({KeyScope.CHAT}),
    "/v1/completions": frozenset({KeyScope.COMPLETIONS}),
    "/v1/embeddings": frozenset({KeyScope.EMBEDDINGS}),
    "/v1/messages": frozenset({KeyScope.CHAT}),
    "/v1/messages/count_tokens": frozenset({KeyScope.CHAT}),
    "/v1/tokenize": _GENERATION,
    "/v1/detokenize": _GENERATION,
    "/v1/sessions/": frozenset({KeyScope.CHAT}),
    "/v1/usage": frozenset({KeyScope.USAGE}),
    "/v1/refusals": frozenset({KeyScope.USAGE}),
    "/v1/limits": frozenset({KeyScope.USAGE}),
    "/v1/models": ANY_KEY,
    "/v1/models/": ANY_KEY,
}
"""Scopes that allow a path; one of them is enough. A path that ends in a slash covers all paths below it. A path that
is missing here is denied to keys with scopes, so a new endpoint must be listed."""


def require_scope(principal: Principal, path: str) -> None:
    """
    Raises:
        APIError: 403, the key lacks the path's scope.
    """
    if principal.scopes is None:
        return
    wanted = SCOPES_BY_PATH.get(path)
    if wanted is None:
        wanted = next((scopes for start, scopes in _STARTS if path.startswith(start)), None)
    if wanted is None or (wanted and not wanted & principal.scopes):
        raise APIError(
            403,
            "You have insufficient permissions for this operation: the API key lacks its scope.",
            code="scope_not_allowed",
        )


def endpoint_of(path: str) -> str:
    """The endpoint of a path, from a closed set: the path itself, its collection with `{id}`, or `(other)`."""
    if path in SCOPES_BY_PATH:
        return path
    return next((f"{start}{{id}}" for start, _ in _STARTS if path.startswith(start)), "(other)")


def require_model(principal: Principal, model: str) -> None:
    """Check the name only: the model need not exist.

    Raises:
        APIError: 403, the key's models do not include it.
    """
    if not principal.may_use(model):
        raise model_not_allowed()


def model_not_allowed() -> APIError:
    return APIError(403, "The API key does not have access to this model.", param="model", code="model_not_allowed")


_STARTS = [(path, scopes) for path, scopes in SCOPES_BY_PATH.items() if path.endswith("/")]
