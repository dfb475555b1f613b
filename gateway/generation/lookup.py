"""A served model by the name that a client wrote."""

from gateway.generation.engine_client import EngineClient, ServedModel
from gateway.http.access import model_not_allowed, require_model
from gateway.http.errors import SERVER_ERROR, APIError, invalid
from gateway.routing.names import ModelNames, Pair
from gateway.tenancy.records import Principal


def find_model(engine: EngineClient, name: str, caller: Principal) -> ServedModel:
    """Raises: APIError, 403, 404 or, while nothing can be served, 503."""
    require_model(caller, name)
    model = engine.models.get(name)
    if model is None:
        raise model_not_found(name)
    require_ready(engine)
    return model


def find_named(names: ModelNames, engine: EngineClient, name: str, caller: Principal) -> ServedModel:
    """The model that generates for this caller by a name: a served model's, one with versions, or an alias of these.

    Raises:
        APIError: 400 for a name that leads to either of two models; else as `find_model`.
    """
    target = names.find(name, caller.policies.routing.aliases)
    if isinstance(target, Pair):
        raise invalid("model", f"Tokens are one model's own: name that instead of {name}.")
    if not (caller.may_use(name) or caller.may_use(target or name)):
        raise model_not_allowed()
    if target is None:
        raise model_not_found(name)
    require_ready(engine)
    return engine.models[names.version(target, caller.tenant_id)]


def require_ready(engine: EngineClient) -> None:
    """Raises: APIError, 503."""
    if not engine.ready:
        raise APIError(
            503,
            "The server is not ready. Retry in a few seconds.",
            type=SERVER_ERROR,
            code="service_unavailable",
            headers={"retry-after": "5"},
        )


def model_not_found(name: str) -> APIError:
    message = f"The model `{name[:128]}` does not exist or you do not have access to it."
    return APIError(404, message, param="model", code="model_not_found")
