"""What a tenant's key may do: by path for its scopes, by name for models."""

from collections.abc import Mapping

from gateway.http.errors import APIError
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.records import Principal

ANY_KEY = frozenset[KeyScope]()
"""Of a path that asks for no scope."""

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
    "/v1/limits": frozenset({KeyScope.USAGE}),
    "/v1/models": ANY_KEY,
    "/v1/models/": ANY_KEY,
}
"""One of these scopes opens the path; one that ends in a slash stands for all below it. A path that is not here is
closed to keys with scopes: a new endpoint has to say what it belongs to."""


def require_scope(principal: Principal, path: str) -> None:
    """
    Raises:
        APIError: 403, the key is for other things.
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


def require_model(principal: Principal, model: str) -> None:
    """Whether or not there is such a model.

    Raises:
        APIError: 403, the key is for other models.
    """
    if not principal.may_use(model):
        raise model_not_allowed()


def model_not_allowed() -> APIError:
    return APIError(403, "The API key does not have access to this model.", param="model", code="model_not_allowed")


_STARTS = [(path, scopes) for path, scopes in SCOPES_BY_PATH.items() if path.endswith("/")]
