"""The generating endpoints: a request from its first byte to the last of its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Scope, Send

from gateway.generation.context import Client, HttpRequest, RequestContext
from gateway.generation.conversation_hook import ConversationHook
from gateway.generation.delivery import Delivery, MakeFormatter, StreamSink, WholeSink
from gateway.generation.request import GenerationRequest
from gateway.generation.response_format import new_id
from gateway.generation.stages import Stages
from gateway.http.errors import shutting_down
from gateway.http.fields import Fields
from gateway.http.json_body import read_json
from gateway.http.request_state import request_state


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A body in the form that all endpoints share, and how its answer is formatted. `hook` completes the request with
    what the endpoint stored of earlier ones, where it does."""

    request: GenerationRequest
    formatter: MakeFormatter
    hook: ConversationHook | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """The parts that differ between endpoints. `name` is OpenTelemetry's `gen_ai.operation.name`."""

    name: str
    id_prefix: str
    parse: Callable[[Fields], ParsedBody]


class GenerationEndpoint:
    """An ASGI endpoint."""

    def __init__(self, operation: Operation, stages: Stages) -> None:
        self._operation = operation
        self._stages = stages
        self._max_json_depth = stages.settings.max_json_depth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._operation.parse(await read_json(scope, receive, self._max_json_depth))
        await generate(self._stages, self._operation, body, scope, receive, send)


async def generate(
    stages: Stages,
    operation: Operation,
    body: ParsedBody,
    scope: Scope,
    receive: Receive,
    send: Send,
    stream_sink: type[StreamSink] = StreamSink,
) -> None:
    """Answer a parsed request through the stages. `stream_sink`: of an answer that is streamed.

    Raises:
        Exception: as `Pipeline.run`; APIError, 503, while the server drains.
    """
    services, state = stages.services, request_state(scope)
    principal = state.caller()
    if services.drain.begun:
        raise shutting_down()
    parsed = body.request if body.hook is None else await body.hook.recall(services, principal)
    async with stages.sessions.joined(parsed, scope, principal) as (request, turn):
        serving = stages.classes.serving(principal.tier, request.service_tier)
        route = stages.routes.route(request, principal, serving)
        http = HttpRequest(state.request_id, scope["path"], request.stream)
        client = Client(principal, serving, receive, http)
        context = RequestContext(
            id=new_id(operation.id_prefix),
            operation=operation.name,
            client=client,
            prepare=partial(stages.sessions.prepare, request, turn, client),
            choices_each=request.params.n,
            on_metered=state.on_metered,
        )
        delivery = Delivery(request, body.formatter, stages.routes, send, turn, body.hook)
        sink = stream_sink(delivery) if request.stream else WholeSink(delivery)
        await stages.pipeline.run(context, route, sink)
