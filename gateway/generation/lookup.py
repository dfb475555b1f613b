"""A served model by the name that a client wrote."""

from gateway.adapters.book import AdapterBook
from gateway.adapters.records import Adapter
from gateway.generation.engine_client import EngineClient, ServedModel
from gateway.http.access import model_not_allowed
from gateway.http.errors import SERVER_ERROR, APIError, invalid
from gateway.routing.names import ModelNames, Pair
from gateway.routing.router import may_use_adapter
from gateway.tenancy.records import Principal


def find_named(
    names: ModelNames, engine: EngineClient, adapters: AdapterBook, name: str, caller: Principal
) -> ServedModel:
    """The model that generates for this caller by a name: a served model's, one with versions, an adapter of one, or an
    alias of these.

    Raises:
        APIError: 400 for a name that leads to either of two models; 403, 404 or, while nothing can be served, 503.
    """
    target = names.find(name, caller.policies.routing.aliases, lambda each: adapters.find(each, caller))
    if isinstance(target, Adapter):
        if not may_use_adapter(caller, name, target):
            raise model_not_allowed()
        require_ready(engine)
        return engine.models[target.model]
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


def require_adapters(engine: EngineClient, model: str) -> None:
    """Raises: APIError, 400: the model takes no adapters on this server."""
    if not engine.adapter_slots(model):
        raise invalid("model", f"The model `{model}` takes no adapters on this server.", "unsupported_model")


def model_not_found(name: str) -> APIError:
    message = f"The model `{name[:128]}` does not exist or you do not have access to it."
    return APIError(404, message, param="model", code="model_not_found")
