"""What the generating endpoints share: from a request's first byte to its answer's last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from gateway.api.engine_client import EngineClient, ServedModel
from gateway.api.errors import SERVER_ERROR, APIError
from gateway.api.exchange import exchange_of
from gateway.api.fields import Fields
from gateway.api.generation import GenerationRequest
from gateway.api.json_body import read_json
from gateway.api.measurement import measuring
from gateway.api.prepare import PreparedPrompt, prepare
from gateway.api.serve import Answer, serve
from gateway.api.wire import Header, Wire, new_id
from gateway.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Operation:
    """What is an endpoint's own. `name` is OpenTelemetry's `gen_ai.operation.name`."""

    name: str
    id_prefix: str
    parse: Callable[[Fields], GenerationRequest]
    wire: Callable[[Header, GenerationRequest, ServedModel, Sequence[PreparedPrompt]], Wire]


class GenerationEndpoint:
    """An ASGI endpoint."""

    def __init__(self, operation: Operation, engine: EngineClient, metrics: Metrics, max_json_depth: int) -> None:
        self._operation = operation
        self._engine = engine
        self._metrics = metrics
        self._max_json_depth = max_json_depth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operation
        caller = exchange_of(scope).caller()
        request = operation.parse(await read_json(scope, receive, self._max_json_depth))
        model = find_model(self._engine, request.model)
        with measuring(self._metrics, (operation.name, model.name, caller.tier)) as measurement:
            prompts = await prepare(request, model)
            header = Header(new_id(operation.id_prefix), request.model)
            wire = operation.wire(header, request, model, prompts)
            answer = Answer(header.id, caller, request, prompts, wire, measurement)
            await serve(answer, self._engine, receive, send)


def find_model(engine: EngineClient, name: str) -> ServedModel:
    """Raises: APIError, 404 or, while nothing can be served, 503."""
    model = engine.models.get(name)
    if model is None:
        raise APIError(404, f"The model `{name[:128]}` does not exist.", param="model", code="model_not_found")
    if not engine.ready:
        raise APIError(
            503,
            "The server is not ready. Retry in a few seconds.",
            type=SERVER_ERROR,
            code="service_unavailable",
            headers={"retry-after": "5"},
        )
    return model
