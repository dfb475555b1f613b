"""What the generating endpoints share: from a request's first byte to its answer's last."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from engine.request import TextDelta
from gateway.api.admit import Admission
from gateway.api.engine_client import ServedModel
from gateway.api.exchange import exchange_of
from gateway.api.fields import Fields
from gateway.api.generation import GenerationRequest
from gateway.api.json_body import read_json
from gateway.api.measurement import measuring
from gateway.api.placing import Asking, Place, Placing
from gateway.api.prepare import PreparedPrompt
from gateway.api.rate_headers import rate_headers
from gateway.api.route_stage import RouteStage, route_headers
from gateway.api.serve import Answer, deliver, submit
from gateway.api.service_classes import TierClasses, echoed
from gateway.api.session_stage import SessionStage, SessionTurn
from gateway.api.trial import escalated, try_out
from gateway.api.wire import Header, Wire, new_id
from gateway.routing.router import OnTrial
from gateway.services import Services
from gateway.settings import Settings
from gateway.tenancy.records import Principal


@dataclass(frozen=True, slots=True)
class Operation:
    """What is an endpoint's own. `name` is OpenTelemetry's `gen_ai.operation.name`."""

    name: str
    id_prefix: str
    parse: Callable[[Fields], GenerationRequest]
    wire: Callable[[Header, GenerationRequest, ServedModel, Sequence[PreparedPrompt]], Wire]


class GenerationEndpoint:
    """An ASGI endpoint."""

    def __init__(self, operation: Operation, services: Services, settings: Settings) -> None:
        self._operation = operation
        self._services = services
        self._engine = services.engine
        self._max_json_depth = settings.max_json_depth
        self._classes = TierClasses(settings)
        self._sessions = SessionStage(services, settings)
        self._routes = RouteStage(services, settings)
        self._placing = Placing(services, settings, self._sessions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operation
        caller = exchange_of(scope).caller()
        request = operation.parse(await read_json(scope, receive, self._max_json_depth))
        async with self._sessions.joined(request, scope, caller) as (request, turn):
            await self._answer(request, turn, caller, receive, send)

    async def _answer(
        self, request: GenerationRequest, turn: SessionTurn | None, caller: Principal, receive: Receive, send: Send
    ) -> None:
        operation = self._operation
        serving = self._classes.serving(caller.tier, request.service_tier)
        route = self._routes.route(request, caller, serving)
        with measuring(self._services.metrics, (operation.name, route.served, serving.name)) as measurement:
            asking = Asking(new_id(operation.id_prefix), request, turn, caller, serving, measurement, receive)
            async with self._placing.admitted(route, asking) as (place, admission):
                streams = None
                if place.route.trial is not None:
                    place, streams = await self._cascade(asking, place, place.route.trial, admission)
                answer = self._spelt(asking, place, admission)
                if streams is None:
                    streams = await submit(answer, self._engine, answer.prompts)
                self._routes.took(place.route)
                await deliver(answer, streams, receive, send)
                self._routes.answered(place.route, place.opening, admission.usage.progress)

    async def _cascade(
        self, asking: Asking, place: Place, on_trial: OnTrial, admission: Admission
    ) -> tuple[Place, list[AsyncGenerator[TextDelta]] | None]:
        """Who answers in the end, and with what: the small model's answer is there, the large one's (None) is not."""
        answer = self._spelt(asking, place, admission)
        trial = await try_out(answer, self._engine, asking.receive, on_trial.percent)
        if trial is None or not trial.is_good:
            place, trial = await escalated(self._placing, asking, admission, place, trial)
        return place, None if trial is None else trial.streams()

    def _spelt(self, asking: Asking, place: Place, admission: Admission) -> Answer:
        request, serving = asking.request, asking.serving
        header = Header(asking.id, place.model.name, echoed(serving, request.service_tier))
        return Answer(
            header.id,
            asking.caller.tenant_id,
            place.model.name,
            serving.engine_class,
            request,
            admission,
            self._operation.wire(header, request, place.model, admission.prompts),
            asking.measurement,
            rate_headers(admission.hold.states) | route_headers(place.route),
            asking.turn,
        )
