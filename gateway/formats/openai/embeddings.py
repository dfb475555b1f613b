"""POST /v1/embeddings: one vector per input."""

from collections.abc import Sequence
from functools import partial

from starlette.types import Receive, Scope, Send

from engine.request import Pooling
from gateway.adapters.records import Adapter
from gateway.formats.openai.embedding_format import body, item
from gateway.formats.openai.embedding_schema import EmbeddingRequest, Encoding, parse_embeddings
from gateway.generation.context import Client, HttpRequest, RequestContext
from gateway.generation.lookup import model_not_found, require_adapters, require_ready
from gateway.generation.response_format import new_id
from gateway.generation.route_stage import route_headers
from gateway.generation.run import Run
from gateway.generation.service_classes import echoed
from gateway.generation.stages import Stages
from gateway.http.access import model_not_allowed, require_model
from gateway.http.errors import invalid, shutting_down
from gateway.http.json_body import read_json
from gateway.http.rate_headers import rate_headers
from gateway.http.request_state import request_state
from gateway.http.responses import send_body
from gateway.routing.reason import RouteReason
from gateway.routing.router import Route, adapter_route, may_use_adapter
from gateway.speech.output_parser import OutputParser, ParsedDelta
from gateway.tenancy.records import Principal

OPERATION = "embeddings"
"""OpenTelemetry's `gen_ai.operation.name`."""

INPUTS_AT_A_TIME = 64
"""Inputs of one request that are submitted together; more would delay other requests' streams."""


class EmbeddingsEndpoint:
    """An ASGI endpoint."""

    def __init__(self, stages: Stages) -> None:
        self._services = stages.services
        self._max_json_depth = stages.settings.max_json_depth
        self._poolings = {name: Pooling(pooling) for name, pooling in stages.settings.embeddings.items()}
        self._names = stages.names
        self._classes = stages.classes
        self._sessions = stages.sessions
        self._pipeline = stages.pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = request_state(scope)
        principal = state.caller()
        parsed = parse_embeddings(await read_json(scope, receive, self._max_json_depth))
        if self._services.drain.begun:
            raise shutting_down()
        request = parsed.pooled(self._pooling(parsed, principal))
        async with self._sessions.joined(request, scope, principal):  # rejects a session: embeddings have none
            serving = self._classes.serving(principal.tier, request.service_tier)
            client = Client(principal, serving, receive, HttpRequest(state.request_id, scope["path"]))
            context = RequestContext(
                id=new_id("embd-"),
                operation=OPERATION,
                client=client,
                prepare=partial(self._sessions.prepare, request, None, client),
                prompts_at_a_time=INPUTS_AT_A_TIME,
                on_metered=state.on_metered,
            )
            route = self._route(parsed.model, principal)
            sink = EmbeddingSink(parsed.encoding, echoed(serving, request.service_tier), send)
            await self._pipeline.run(context, route, sink)

    def _pooling(self, parsed: EmbeddingRequest, principal: Principal) -> Pooling:
        """The named model's pooling. Routed names are rejected: vectors of different models are not comparable.

        Raises:
            APIError: 400, 403, 404 or, while nothing can be served, 503.
        """
        adapter = self._adapter(parsed.model, principal)
        if adapter is None:
            require_model(principal, parsed.model)
        elif not may_use_adapter(principal, parsed.model, adapter):
            raise model_not_allowed()
        name = parsed.model if adapter is None else adapter.model
        pooling = self._poolings.get(name)
        if pooling is None:
            if adapter is None and self._names.find(name, principal.policies.routing.aliases) is None:
                raise model_not_found(name)
            raise invalid("model", f"The model `{parsed.model}` does not support embeddings.", "unsupported_model")
        require_ready(self._services.engine)
        parsed.require_vocabulary(self._services.engine.models[name].vocab_size)
        if adapter is not None:
            require_adapters(self._services.engine, name)
        return pooling

    def _route(self, name: str, principal: Principal) -> Route:
        adapter = self._adapter(name, principal)
        if adapter is not None:
            return adapter_route(name, adapter, principal.tenant_id)
        return Route(name, name, name, RouteReason.EXPLICIT, name)

    def _adapter(self, name: str, principal: Principal) -> Adapter | None:
        """The adapter that a name leads to. Aliases are not resolved."""
        target = self._names.find(name, {}, lambda each: self._services.adapters.find(each, principal))
        return target if isinstance(target, Adapter) else None


class EmbeddingSink:
    """Sends one JSON body. Items are formatted as they arrive: formatting all at the end would delay other streams."""

    def __init__(self, encoding: Encoding, service_tier: str | None, send: Send) -> None:
        self._encoding = encoding
        self._service_tier = service_tier
        self._send = send
        self._items: dict[int, bytes] = {}
        self._run: Run

    def on_admitted(self, run: Run) -> OutputParser:
        self._run = run
        return OutputParser()

    async def on_outputs(self, outputs: Sequence[ParsedDelta]) -> bool:
        for output in outputs:
            self._items[output.choice] = item(output.choice, output.delta.embedding, self._encoding)
        return False

    async def on_billed(self) -> None:
        run, candidate = self._run, self._run.candidate
        items = [self._items[position] for position in range(run.choices)]
        answer = body(items, run.context.id, candidate.answer_model, self._service_tier, run.usage)
        headers = rate_headers(run.admission.hold.states) | route_headers(candidate.route)
        await send_body(self._send, 200, answer, headers)

    async def on_failure(self, error: BaseException) -> None:
        pass
