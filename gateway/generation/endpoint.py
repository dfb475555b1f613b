"""What the generating endpoints share: from a request's first byte to its answer's last."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from starlette.types import Receive, Scope, Send

from engine.request import TextDelta
from gateway.generation.admit import Admission
from gateway.generation.engine_client import ServedModel
from gateway.generation.measurement import measuring
from gateway.generation.memory import Memory
from gateway.generation.placing import Asking, Place
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.route_stage import route_headers
from gateway.generation.serve import Answer, deliver, submit
from gateway.generation.service_classes import echoed
from gateway.generation.session_stage import SessionTurn
from gateway.generation.speech_stage import reasoning_of, speech_of
from gateway.generation.stages import Stages
from gateway.generation.trial import escalated, try_out
from gateway.generation.wire import Header, Wire, new_id
from gateway.http.errors import shutting_down
from gateway.http.exchange import exchange_of
from gateway.http.fields import Fields
from gateway.http.json_body import read_json
from gateway.http.rate_headers import rate_headers
from gateway.tenancy.records import Principal

WireMaker = Callable[[Header, GenerationRequest, ServedModel, Sequence[PreparedPrompt]], Wire]


@dataclass(frozen=True, slots=True)
class Asked:
    """A body as every endpoint understands it, and how its answer is spelt when a model is found for it. `memory`
    completes the request with what was said before, where the endpoint remembers that."""

    request: GenerationRequest
    wire: WireMaker
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """What is an endpoint's own. `name` is OpenTelemetry's `gen_ai.operation.name`."""

    name: str
    id_prefix: str
    parse: Callable[[Fields], Asked]


class GenerationEndpoint:
    """An ASGI endpoint."""

    def __init__(self, operation: Operation, stages: Stages) -> None:
        self._operation = operation
        self._services = stages.services
        self._engine = stages.services.engine
        self._drain = stages.services.drain
        self._max_json_depth = stages.settings.max_json_depth
        self._classes = stages.classes
        self._sessions = stages.sessions
        self._routes = stages.routes
        self._placing = stages.placing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operation
        caller = exchange_of(scope).caller()
        asked = operation.parse(await read_json(scope, receive, self._max_json_depth))
        if self._drain.begun:
            raise shutting_down()
        if asked.memory is not None:
            asked = replace(asked, request=await asked.memory.recall(self._services, caller))
        async with self._sessions.joined(asked.request, scope, caller) as (request, turn):
            await self._answer(replace(asked, request=request), turn, caller, receive, send)

    async def _answer(
        self, asked: Asked, turn: SessionTurn | None, caller: Principal, receive: Receive, send: Send
    ) -> None:
        operation, request = self._operation, asked.request
        serving = self._classes.serving(caller.tier, request.service_tier)
        route = self._routes.route(request, caller, serving)
        with measuring(self._services.metrics, (operation.name, route.served, serving.name)) as measurement:
            asking = Asking(new_id(operation.id_prefix), request, turn, caller, serving, measurement, receive)
            async with self._placing.admitted(route, asking) as (place, admission), AsyncExitStack() as reserved:
                streams = None
                if place.route.trial is not None:
                    place, streams = await self._cascade(asked, asking, place, admission, reserved)
                answer = self._spelt(asked, asking, place, admission)
                if streams is None:
                    streams = await submit(answer, self._engine, answer.prompts)
                self._routes.took(place.route)
                await deliver(answer, streams, receive, send)
                self._routes.answered(place.route, place.opening, admission.usage.progress)

    async def _cascade(
        self, asked: Asked, asking: Asking, place: Place, admission: Admission, reserved: AsyncExitStack
    ) -> tuple[Place, list[AsyncGenerator[TextDelta]] | None]:
        """Who answers in the end, and with what: the small model's answer is there, the large one's (None) is not."""
        assert place.route.trial is not None
        answer = self._spelt(asked, asking, place, admission)
        trial = await try_out(answer, self._engine, asking.receive, place.route.trial.percent)
        if trial is None or not trial.is_good:
            place, trial = await escalated(self._placing, asking, admission, place, trial, reserved)
        return place, None if trial is None else trial.streams()

    def _spelt(self, asked: Asked, asking: Asking, place: Place, admission: Admission) -> Answer:
        request, serving = asking.request, asking.serving
        header = Header(asking.id, place.model.name, echoed(serving, request.service_tier))
        if asking.turn is not None:
            asking.turn.reads_with(speech_of(header, request, place.model, admission.prompts))
        return Answer(
            header.id,
            asking.caller.tenant_id,
            place.model.name,
            serving.engine_class,
            request,
            admission,
            place.reservation,
            asked.wire(header, request, place.model, admission.prompts),
            asking.measurement,
            reasoning_of(request, place.model, admission.prompts),
            rate_headers(admission.hold.states) | route_headers(place.route),
            asking.turn,
            asked.memory,
        )
