"""GET /v1/models and /v1/models/{id}: those that the key may use."""

from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from gateway.api.engine_client import EngineClient, ServedModel
from gateway.api.errors import APIError
from gateway.api.exchange import exchange_of
from gateway.api.responses import send_body


class ListModels:
    """An ASGI endpoint."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = exchange_of(scope).caller()
        models = [_wire(model) for model in self._engine.models.values() if caller.may_use(model.name)]
        await send_body(send, 200, orjson.dumps({"object": "list", "data": models}))


class RetrieveModel:
    """An ASGI endpoint. A model's name may hold slashes."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = self._engine.models.get(scope["path_params"]["id"])
        if model is None or not exchange_of(scope).caller().may_use(model.name):
            raise APIError(404, "This model does not exist.", param="model", code="model_not_found")
        await send_body(send, 200, orjson.dumps(_wire(model)))


def _wire(model: ServedModel) -> dict[str, Any]:
    """`max_model_len` is vLLM's name for the window, `context_window` the one that other clients look for."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "turnpike",
        "max_model_len": model.max_model_len,
        "context_window": model.max_model_len,
    }
