"""What the generating endpoints share: from a request's first byte to its answer's last."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.types import Receive, Scope, Send

from gateway.admission.book import limits_for
from gateway.api.access import require_model
from gateway.api.admit import admitted
from gateway.api.engine_client import EngineClient, ServedModel
from gateway.api.errors import SERVER_ERROR, APIError
from gateway.api.exchange import exchange_of
from gateway.api.fields import Fields
from gateway.api.generation import GenerationRequest
from gateway.api.json_body import read_json
from gateway.api.measurement import measuring
from gateway.api.prepare import PreparedPrompt
from gateway.api.rate_headers import rate_headers
from gateway.api.serve import Answer, serve
from gateway.api.service_classes import TierClasses, echoed
from gateway.api.session_stage import SessionStage, SessionTurn
from gateway.api.shed import shed
from gateway.api.wire import Header, Wire, new_id
from gateway.metering.event import new_event_id, unix_ms
from gateway.metering.opening import Opening
from gateway.routing.reason import RouteReason
from gateway.services import Services
from gateway.settings import Settings
from gateway.tenancy.records import Principal, Tier


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
        model = find_model(self._engine, request.model, caller)
        serving = self._classes.serving(caller.tier, request.service_tier)
        with measuring(self._services.metrics, (operation.name, model.name, serving.name)) as measurement:
            own = self._classes.of_tier(caller.tier)
            limits = limits_for(caller, model.name, model.windows[serving.name], own.limits)
            spread = random.random()
            # A full server does not tokenise what it turns away, whatever its length.
            shed(self._engine, model.name, serving, 1, spread)
            prompts = await self._sessions.prepare(
                request, turn, model, limits.context_tokens, caller, serving, receive
            )
            prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
            shed(self._engine, model.name, serving, prompt_tokens, spread)
            header = Header(new_id(operation.id_prefix), request.model, echoed(serving, request.service_tier))
            opening = self._opening(header, caller, serving.name, model)
            limiter, journal = self._services.limiter, self._services.journal
            async with admitted(limiter, journal, opening, limits.quotas, prompts, request.params.n) as admission:
                answer = Answer(
                    header.id,
                    caller.tenant_id,
                    serving.engine_class,
                    request,
                    admission,
                    operation.wire(header, request, model, admission.prompts),
                    measurement,
                    rate_headers(admission.hold.states),
                    turn,
                )
                await serve(answer, self._engine, receive, send)

    def _opening(self, header: Header, caller: Principal, tier_served: Tier, model: ServedModel) -> Opening:
        """What is billed, to whom, at the prices of this moment."""
        now = datetime.now(UTC)
        return Opening(
            event_id=new_event_id(),
            request_id=header.id,
            tenant_id=caller.tenant_id,
            key_id=caller.key_id,
            tier=caller.tier,
            tier_served=tier_served,
            requested_model=header.model,
            routed_model=model.name,
            served_model=model.name,
            model_version=model.version,
            route_reason=RouteReason.EXPLICIT,
            price=self._services.prices.price_of(model.name, tier_served, now),
            opened_ms=unix_ms(now),
        )


def find_model(engine: EngineClient, name: str, caller: Principal) -> ServedModel:
    """Raises: APIError, 403, 404 or, while nothing can be served, 503."""
    require_model(caller, name)
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
