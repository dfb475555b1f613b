"""Routing of generating requests: the router's input, its errors, and the response headers about it."""

from collections.abc import Iterator
from datetime import UTC, datetime

from gateway.admission import QuotaExceeded
from gateway.config.settings import Settings
from gateway.generation.engine_client import EngineClient
from gateway.generation.lookup import model_not_found, require_adapters, require_ready
from gateway.generation.request import Conversation, Gap, GenerationRequest, Prompt
from gateway.generation.service_classes import TierClass
from gateway.generation.services import Services
from gateway.generation.shed import ModelUnavailable, Overloaded
from gateway.http.access import model_not_allowed
from gateway.http.errors import APIError, invalid
from gateway.metering.journal.usage_context import Progress, UsageContext
from gateway.routing.names import ModelNames
from gateway.routing.question import Question
from gateway.routing.replicas import Replicas
from gateway.routing.router import (
    FallbackReason,
    ModelNotAllowed,
    NeedsModel,
    Route,
    Router,
    RoutingInput,
    UnknownModel,
)
from gateway.routing.score import ComplexityScore
from gateway.tenancy.limits import ScopeKind
from gateway.tenancy.records import Principal

_NANO = 10**9


class RouteStage:
    """Selects the model of each request, and counts the selections. `score` rates the complexity of questions."""

    def __init__(self, services: Services, settings: Settings, names: ModelNames) -> None:
        self._services = services
        self.score = ComplexityScore.load(settings.route_weights)
        self._router = Router(
            names,
            self.score,
            Replicas(services.engine),
            settings.saturated_queue,
        )

    def route(self, request: GenerationRequest, caller: Principal, serving: TierClass) -> Route:
        """
        Raises:
            APIError: 400, 403, 404 or, while nothing can be served, 503.
        """
        asked = RoutingInput(
            request.model,
            lambda: question_of(request),
            caller,
            serving.engine_class,
            may_degrade=serving.word != "priority",
            token_param=token_param(request),
            sticky_id=request.session_id or caller.tenant_id,
            adapter_of=lambda name: self._services.adapters.find(name, caller),
        )
        try:
            route = self._router.route(asked)
        except UnknownModel:
            raise model_not_found(request.model) from None
        except ModelNotAllowed:
            raise model_not_allowed() from None
        except NeedsModel as error:
            message = f"{error.param} has token ids, which are one model's own: name that instead of {request.model}."
            raise invalid(error.param, message) from None
        require_ready(self._services.engine)
        if route.adapter is not None:
            require_adapters(self._services.engine, route.served)
        return route

    def record_selected(self, route: Route) -> None:
        """Count the model of this route as the one that answers."""
        self._services.metrics.routed.labels(route.served, route.reason.value).inc()

    def record_answered(self, route: Route, usage_context: UsageContext, progress: Progress) -> None:
        """Count what the answer would have cost from the large model, by the same tokens, and what was saved of it."""
        if route.large == route.served:
            all_large = usage_context.price
        else:
            all_large = self._services.prices.price_of(route.large, usage_context.tier_served, datetime.now(UTC))
        cost = all_large.of(progress.prompt_tokens, progress.cached_tokens, progress.completion_tokens)
        metrics = self._services.metrics
        metrics.all_large_dollars.labels(route.large).inc(cost / _NANO)
        metrics.saved_dollars.labels(route.large).inc(max(0, cost - usage_context.cost(progress)) / _NANO)


def route_headers(route: Route) -> dict[str, str]:
    headers = {
        "x-turnpike-requested-model": route.requested,
        "x-turnpike-served-model": route.served,
        "x-turnpike-route-reason": route.reason.value,
    }
    return headers if route.adapter is None else headers | {"x-turnpike-adapter": route.adapter.label}


def refusal_of(error: Exception) -> FallbackReason | None:
    """Why a model refuses a request that another model may take; None if no other may."""
    match error:
        case Overloaded() | ModelUnavailable():
            return FallbackReason.OVERLOADED
        case APIError(code="context_length_exceeded"):
            return FallbackReason.CONTEXT
        case QuotaExceeded():
            # Tokens of a tenant are as many from any model.
            measure, of_model = error.scope.measure, error.scope.kind is ScopeKind.MODEL
            return FallbackReason.BUDGET if measure.counts_money or (measure.counts_tokens and of_model) else None
        case _:
            return None


def question_of(request: GenerationRequest) -> Question:
    """The input of the complexity score. A conversation with tool messages counts as one with tools."""
    users, system_chars, turns, has_tools = [], 0, 0, False
    for role, text in (each for prompt in request.prompts for each in _texts(prompt)):
        turns += role in ("user", "assistant")
        has_tools |= role == "tool"
        if role == "user":
            users.append(text)
        elif role in ("system", "developer"):
            system_chars += len(text)
    return Question(
        text="\n".join(users),
        turns=turns,
        system_chars=system_chars,
        has_tools=has_tools,
        has_schema=request.params.grammar is not None,
        max_tokens=request.params.max_tokens,
    )


def token_param(request: GenerationRequest) -> str | None:
    """The field of the request that has token ids, if one does."""
    if any(isinstance(prompt, tuple) for prompt in request.prompts):
        return request.prompt_param
    params = request.params
    given = {
        "logit_bias": params.logit_bias,
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": params.allowed_token_ids,
    }
    return next((name for name, ids in given.items() if ids), None)


def model_names(engine: EngineClient, settings: Settings) -> ModelNames:
    return ModelNames(tuple(engine.models), settings.small_models, settings.model_versions, settings.aliases)


def _texts(prompt: Prompt) -> Iterator[tuple[str, str]]:
    """Role and text of each message."""
    match prompt:
        case str():
            yield "user", prompt
        case Gap(before, behind):
            yield "user", before
            yield "user", behind
        case Conversation():
            for message in prompt.messages:
                content = message.get("content") or ""
                if not isinstance(content, str):
                    content = "\n".join(part["text"] for part in content)
                yield message["role"], content
