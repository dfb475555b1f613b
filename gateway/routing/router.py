"""The router: from a request's model name to the route that answers it. It neither awaits nor reads a store, and takes
microseconds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Protocol

from engine.request import ServiceClass
from gateway.adapters.names import qualified_name
from gateway.adapters.records import Adapter, RoutedAdapter
from gateway.routing.names import AdapterOf, ModelNames, Pair, no_adapter
from gateway.routing.question import Question
from gateway.routing.reason import RouteReason
from gateway.routing.replicas import Replicas
from gateway.routing.versions import version_of
from gateway.tenancy.policies import Preference
from gateway.tenancy.records import Principal


class UnknownModel(Exception):
    """The name leads to no served model."""


class ModelNotAllowed(Exception):
    """The key may not use this model. Raised whether or not the model exists, so a key cannot probe for names."""


class FallbackReason(Enum):
    """Why the model of a route refuses a request that another model may take."""

    OVERLOADED = auto()
    BUDGET = auto()
    CONTEXT = auto()


class Score(Protocol):
    """Interface of `gateway.routing.score.ComplexityScore`."""

    @property
    def thresholds(self) -> Mapping[Preference, float]:
        """For each preference, the score from which questions go to the large model."""

    def of(self, question: Question) -> float:
        """The complexity score of a question, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class RoutingInput:
    """Input of the router for one request. `question`: called only where the decision depends on it. `service_class`:
    class that serves the request; `may_degrade`: its requests may leave a long queue for the small model.
    `token_param`: request field with token ids, which are specific to one model; None: no such field. `sticky_id`:
    session or tenant id that keeps the same version. `adapter_of`: the caller's adapters."""

    name: str
    question: Callable[[], Question]
    caller: Principal
    service_class: ServiceClass
    may_degrade: bool
    token_param: str | None
    sticky_id: str
    adapter_of: AdapterOf = no_adapter


class NeedsModel(Exception):
    """The request has token ids, so it must name one model instead of a pair. `param`: the field with the ids."""

    def __init__(self, param: str) -> None:
        super().__init__(param)
        self.param = param


@dataclass(frozen=True, slots=True)
class Route:
    """The decision for one request.

    `served`: model that answers, a version of `routed`. `reason`: why it was chosen. `fallbacks`: route to take for
    each reason that `served` may refuse for; a fallback has no fallbacks of its own. `large`: model that would have
    answered if every request went to the large model, for the figures of saved cost. `trial`: set where the answer is
    judged before it is sent. `adapter`: the tenant's adapter of `served` that answers; such a route has no fallbacks,
    since no other model has it.
    """

    requested: str
    routed: str
    served: str
    reason: RouteReason
    large: str
    fallbacks: Mapping[FallbackReason, "Route"] = field(default_factory=lambda: MappingProxyType({}))
    trial: "CascadeTrial | None" = None
    adapter: RoutedAdapter | None = None


@dataclass(frozen=True, slots=True)
class CascadeTrial:
    """Trial of the small model. Where the confidence in its answer is below `percent`, the route is `escalation`."""

    percent: int
    escalation: Route


class Router:
    """Routes all requests of a process. `saturated_queue`: queue depth above which a model counts as saturated."""

    def __init__(self, names: ModelNames, score: Score, replicas: Replicas, saturated_queue: int) -> None:
        self._names = names
        self._score = score
        self._replicas = replicas
        self._saturated_queue = saturated_queue

    def route(self, asked: RoutingInput) -> Route:
        """The route of a request.

        Raises:
            UnknownModel: the name leads to no served model.
            ModelNotAllowed: the key may not use the model, or neither model of the pair.
            NeedsModel: the request has token ids and names a pair.
        """
        target = self._names.find(asked.name, asked.caller.policies.routing.aliases, asked.adapter_of)

        def may_use(model: str) -> bool:
            """A key for `auto` or for an alias may use the models that it leads to."""
            return asked.caller.may_use(asked.name) or asked.caller.may_use(model)

        if isinstance(target, Adapter):
            if not may_use_adapter(asked.caller, asked.name, target):
                raise ModelNotAllowed
            return adapter_route(asked.name, target, asked.sticky_id)
        if not isinstance(target, Pair):
            if not may_use(target or asked.name):
                raise ModelNotAllowed
            if target is None:
                raise UnknownModel
            return self._route_named(asked, target)
        if not (may_use(target.large) or may_use(target.small)):
            raise ModelNotAllowed
        if asked.token_param is not None:
            raise NeedsModel(asked.token_param)
        for name, other in ((target.large, target.small), (target.small, target.large)):
            if not may_use(other):
                return self._route(asked, name, RouteReason.ONLY_ALLOWED)
        return self._route_pair(asked, target)

    def _route_named(self, asked: RoutingInput, name: str) -> Route:
        """The named model, with the small one as a fallback if the tenant allows it."""
        reason = RouteReason.VERSION if name in self._names.versions else RouteReason.EXPLICIT
        small = self._names.smaller(name)
        if small is None or asked.token_param is not None or not asked.caller.may_use(small):
            return self._route(asked, name, reason)
        return self._route_large(asked, Pair(name, small), reason)

    def _route_pair(self, asked: RoutingInput, pair: Pair) -> Route:
        """One model of a pair, by the tenant's policy and the question."""
        policy = asked.caller.policies.routing
        if policy.cascade_percent is not None:
            escalated = self._route(asked, pair.large, RouteReason.CASCADE_ESCALATED)
            trial = CascadeTrial(policy.cascade_percent, escalated)
            return self._route_small(asked, pair, RouteReason.CASCADE_ACCEPTED, trial)
        if self._score.of(asked.question()) < self._score.thresholds[policy.preference]:
            return self._route_small(asked, pair, RouteReason.COMPLEXITY_SMALL)
        return self._route_large(asked, pair, RouteReason.COMPLEXITY_LARGE)

    def _route_small(
        self, asked: RoutingInput, pair: Pair, reason: RouteReason, trial: CascadeTrial | None = None
    ) -> Route:
        """The small model of a pair, with the large one as a fallback."""
        fallbacks = {
            FallbackReason.OVERLOADED: self._route(asked, pair.large, RouteReason.SATURATED),
            FallbackReason.CONTEXT: self._route(asked, pair.large, RouteReason.CONTEXT),
        }
        return self._route(asked, pair.small, reason, pair.large, fallbacks, trial)

    def _route_large(self, asked: RoutingInput, pair: Pair, reason: RouteReason) -> Route:
        """The large model of a pair, with the small one as a fallback as far as the tenant allows it."""
        policy = asked.caller.policies.routing
        fallbacks: dict[FallbackReason, Route] = {}
        if policy.degrade:
            fallbacks[FallbackReason.OVERLOADED] = self._route(asked, pair.small, RouteReason.SATURATED, pair.large)
        if policy.degrade_near_budget:
            fallbacks[FallbackReason.BUDGET] = self._route(asked, pair.small, RouteReason.BUDGET, pair.large)
        route = self._route(asked, pair.large, reason, fallbacks=fallbacks)
        smaller = fallbacks.get(FallbackReason.OVERLOADED)
        if smaller is not None and asked.may_degrade and self._is_shorter(asked, smaller.served, route.served):
            return smaller
        return route

    def _is_shorter(self, asked: RoutingInput, model: str, other: str) -> bool:
        """Whether `other` is saturated and `model` is predicted to answer sooner."""
        load = self._replicas.load(other, asked.service_class)
        if load.queue_depth <= self._saturated_queue:
            return False
        return self._replicas.load(model, asked.service_class).first_token_ns < load.first_token_ns

    def _route(
        self,
        asked: RoutingInput,
        name: str,
        reason: RouteReason,
        large: str | None = None,
        fallbacks: Mapping[FallbackReason, Route] = MappingProxyType({}),
        trial: CascadeTrial | None = None,
    ) -> Route:
        served = self._names.version(name, asked.sticky_id)
        all_large = served if large is None else self._names.version(large, asked.sticky_id)
        return Route(asked.name, name, served, reason, all_large, fallbacks, trial)


def may_use_adapter(caller: Principal, name: str, adapter: Adapter) -> bool:
    """Whether a key may use its tenant's adapter under a name: a key for the base model may, and one for the adapter
    or for an alias of it."""
    names = (name, adapter.model, adapter.name, qualified_name(adapter.name, caller.tenant_name))
    return any(map(caller.may_use, names))


def adapter_route(name: str, adapter: Adapter, sticky_id: str) -> Route:
    """The route to an adapter's base model, with the version for `sticky_id`."""
    weights = {str(number): float(weight) for number, weight in adapter.serving.items()}
    number = int(version_of(weights, f"{adapter.id}\0{sticky_id}"))
    version = adapter.version(number)
    assert version is not None, f"{adapter.id} serves version {number}, which does not exist"
    reason = RouteReason.VERSION if len(weights) > 1 else RouteReason.EXPLICIT
    model = adapter.model
    return Route(name, model, model, reason, model, adapter=RoutedAdapter(adapter, version))
