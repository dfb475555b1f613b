"""The ASGI application of `inference.GRPCInferenceService`: the methods that need a key."""

from collections.abc import Mapping
from importlib.metadata import version

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.formats.openai.models import ModelCards
from gateway.generation.endpoint import ParsedBody, generate
from gateway.generation.lookup import model_not_found
from gateway.generation.stages import Stages
from gateway.grpc.asgi_call import MESSAGE
from gateway.grpc.infer_formatter import Framing, InferStreamSink, formatter_for
from gateway.grpc.infer_request import TEXT_INPUT, TEXT_OUTPUT, VERSION, parse_infer, require_version
from gateway.grpc.protos import inference_pb2 as pb
from gateway.grpc.tensors import TEXT
from gateway.http import access
from gateway.http.access import AccessPolicy, Endpoint, require_scope
from gateway.http.middleware import GRPC_PREFIX, Authorisation, ErrorMiddleware
from gateway.http.request_state import request_state
from gateway.http.responses import send_body
from gateway.refusals.refusal import MAX_MODEL_CHARS
from gateway.tenancy.grants import KeyScope

MODEL_INFER = f"{GRPC_PREFIX}ModelInfer"
MODEL_STREAM_INFER = f"{GRPC_PREFIX}ModelStreamInfer"
MODEL_READY = f"{GRPC_PREFIX}ModelReady"
MODEL_METADATA = f"{GRPC_PREFIX}ModelMetadata"

SERVER_NAME = "turnpike"

_GENERATION = frozenset({KeyScope.CHAT, KeyScope.COMPLETIONS})
_OPTIONS: Mapping[str, str] = {
    "stream": "BOOL",
    "chat": "BOOL",
    "max_tokens": "INT32",
    "temperature": "FP32",
    "top_p": "FP32",
    "top_k": "INT32",
    "seed": "INT64",
    "stop": TEXT,
    "sampling_parameters": TEXT,
}
"""The usual options, for ModelMetadata, and their datatypes; any field of the HTTP body is one."""


def inference_app(stages: Stages) -> ASGIApp:
    """Behind the middleware that HTTP requests pass."""
    services = stages.services
    cards = ModelCards(services.engine, stages.names, services.adapters)
    infer = InferEndpoint(stages)
    endpoints = [
        Endpoint(MODEL_INFER, ["POST"], _GENERATION, infer),
        Endpoint(MODEL_STREAM_INFER, ["POST"], _GENERATION, infer),
        Endpoint(MODEL_READY, ["POST"], access.ANY_KEY, ModelReady(cards, stages)),
        Endpoint(MODEL_METADATA, ["POST"], access.ANY_KEY, ModelMetadata(cards)),
    ]
    by_path = {each.path: each.app for each in endpoints}

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        await by_path[scope["path"]](scope, receive, send)

    policy = AccessPolicy(endpoints)
    authorised = Authorisation(dispatch, services.authenticator, policy)
    return ErrorMiddleware(authorised, services.metrics.outcomes, services.refusals.record, policy)


def server_metadata() -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse(name=SERVER_NAME, version=version("turnpike"))


class InferEndpoint:
    """One request of ModelInfer or ModelStreamInfer."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message: pb.ModelInferRequest = scope[MESSAGE]
        state, on_stream = request_state(scope), scope["path"] == MODEL_STREAM_INFER
        state.model = message.model_name[:MAX_MODEL_CHARS]
        parsed = parse_infer(message, self._stages.settings.max_json_depth, may_stream=on_stream)
        needed = KeyScope.CHAT if parsed.request.prompt_param == "messages" else KeyScope.COMPLETIONS
        require_scope(state.caller(), frozenset({needed}))
        framing = Framing(message.id, bool(message.raw_input_contents), on_stream)
        body = ParsedBody(parsed.request, formatter_for(framing))
        await generate(self._stages, parsed.operation, body, scope, receive, send, InferStreamSink)


class ModelReady:
    """Whether a name is that of a model which the key may use, and the engine is ready."""

    def __init__(self, cards: ModelCards, stages: Stages) -> None:
        self._cards = cards
        self._engine = stages.services.engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message: pb.ModelReadyRequest = scope[MESSAGE]
        is_known = message.version in ("", VERSION) and bool(
            self._cards.card(message.name, request_state(scope).caller())
        )
        answer = pb.ModelReadyResponse(ready=is_known and self._engine.ready)
        # An answer of defaults alone has no bytes.
        await send_body(send, 200, answer.SerializeToString())


class ModelMetadata:
    """Inputs and outputs of a model."""

    def __init__(self, cards: ModelCards) -> None:
        self._cards = cards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message: pb.ModelMetadataRequest = scope[MESSAGE]
        state = request_state(scope)
        state.model = message.name[:MAX_MODEL_CHARS]
        require_version(message.name, message.version)
        if self._cards.card(message.name, state.caller()) is None:
            raise model_not_found(message.name)
        answer = pb.ModelMetadataResponse(name=message.name, versions=[VERSION], platform=SERVER_NAME)
        answer.inputs.add(name=TEXT_INPUT, datatype=TEXT, shape=[1])
        for name, datatype in _OPTIONS.items():
            answer.inputs.add(name=name, datatype=datatype, shape=[-1 if name == "stop" else 1])
        answer.outputs.add(name=TEXT_OUTPUT, datatype=TEXT, shape=[1])
        await send_body(send, 200, answer.SerializeToString())
