"""From a name, a question, a policy and the load to a route."""

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest

from engine.request import STANDARD, ServiceClass
from gateway.routing.names import ModelNames
from gateway.routing.question import Question
from gateway.routing.reason import RouteReason
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
from gateway.tenancy.policies import Preference, RoutingPolicy, TenantPolicies
from gateway.tenancy.records import Principal

NAMES = ModelNames(
    ("big", "small", "big-2", "other"), {"big": "small"}, {"versioned": {"big": 1, "big-2": 1}, "one": {"big-2": 1}}
)
THRESHOLDS = {Preference.QUALITY: 0.2, Preference.BALANCED: 0.5, Preference.ECONOMY: 0.8}


class LengthScore:
    """A hundredth for each character."""

    thresholds = MappingProxyType(THRESHOLDS)

    def of(self, question: Question) -> float:
        return len(question.text) / 100


@dataclass(frozen=True)
class Wait:
    first_token_ns: int


@dataclass
class Queues:
    depth: dict[str, int] = field(default_factory=dict)
    wait_ns: dict[str, int] = field(default_factory=dict)

    def queue_depth(self, model: str) -> int:
        return self.depth.get(model, 0)

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> Wait:
        return Wait(self.wait_ns.get(model, 0))


LONG = Queues({"big": 11, "big-2": 11}, {"big": 9, "big-2": 9})


def asked(name: str, chars: int = 50, policy: RoutingPolicy = RoutingPolicy(), **changes: Any) -> RoutingInput:  # noqa: B008
    caller = Principal(
        "t", "acme", "standard", "k", models=changes.pop("models", None), policies=TenantPolicies(policy)
    )
    request = RoutingInput(
        name, lambda: Question(text="x" * chars), caller, STANDARD, may_degrade=True, token_param=None, sticky_id="t"
    )
    return replace(request, **changes)


def route(request: RoutingInput, queues: Queues | None = None) -> Route:
    return Router(NAMES, LengthScore(), Replicas(queues or Queues()), saturated_queue=10).route(request)


def said(chosen: Route) -> tuple[str, str]:
    return chosen.served, chosen.reason.value


@pytest.mark.parametrize("name", ["big", "small", "other"])
def test_a_model_that_was_named_answers(name: str) -> None:
    """However easy the question, whatever the queue, for a tenant that does not say otherwise."""
    chosen = route(asked(name, chars=0), LONG)
    assert said(chosen) == (name, "explicit")
    assert not chosen.fallbacks


@pytest.mark.parametrize(
    ("preference", "chars", "served"),
    [
        (Preference.QUALITY, 19, "small"),
        (Preference.QUALITY, 20, "big"),
        (Preference.BALANCED, 49, "small"),
        (Preference.BALANCED, 50, "big"),
        (Preference.ECONOMY, 79, "small"),
        (Preference.ECONOMY, 80, "big"),
    ],
)
def test_auto_goes_by_the_score_and_the_preference(preference: Preference, chars: int, served: str) -> None:
    chosen = route(asked("auto", chars, RoutingPolicy(preference)))
    assert said(chosen) == (served, "complexity_large" if served == "big" else "complexity_small")
    assert (chosen.requested, chosen.routed, chosen.large) == ("auto", served, "big")


@pytest.mark.parametrize("name", ["auto", "big", "versioned", "mine"])
def test_a_long_queue_is_left_by_those_who_allow_it(name: str) -> None:
    allowing = RoutingPolicy(degrade=True, aliases={"mine": "big"})
    keeping = replace(allowing, degrade=False)
    assert said(route(asked(name, policy=allowing), LONG)) == ("small", "saturated")
    assert route(asked(name, policy=keeping), LONG).served != "small"
    assert route(asked(name, policy=allowing, may_degrade=False), LONG).served != "small"


def test_a_queue_is_long_past_its_bound_and_not_before() -> None:
    request = asked("big", policy=RoutingPolicy(degrade=True))
    at_the_bound = Queues({"big": 10}, {"big": 9})
    assert said(route(request, at_the_bound)) == ("big", "explicit")


def test_nobody_is_sent_from_a_long_queue_to_a_slower_one() -> None:
    both = Queues({"big": 20, "small": 40}, {"big": 5, "small": 5})
    assert said(route(asked("big", policy=RoutingPolicy(degrade=True)), both)) == ("big", "explicit")


@pytest.mark.parametrize(
    ("policy", "instead"),
    [
        (RoutingPolicy(), {}),
        (RoutingPolicy(degrade=True), {FallbackReason.OVERLOADED: "saturated"}),
        (RoutingPolicy(degrade_near_budget=True), {FallbackReason.BUDGET: "budget"}),
    ],
)
@pytest.mark.parametrize("name", ["auto", "big"])
def test_where_the_large_model_refuses(name: str, policy: RoutingPolicy, instead: dict[FallbackReason, str]) -> None:
    chosen = route(asked(name, policy=policy))
    assert {why: said(other) for why, other in chosen.fallbacks.items()} == {
        why: ("small", reason) for why, reason in instead.items()
    }


def test_where_the_small_model_refuses_the_large_one_is_there() -> None:
    chosen = route(asked("auto", chars=0))
    assert {why: said(other) for why, other in chosen.fallbacks.items()} == {
        FallbackReason.OVERLOADED: ("big", "saturated"),
        FallbackReason.CONTEXT: ("big", "context"),
    }


def test_a_cascade_begins_with_the_small_model_whatever_the_question() -> None:
    chosen = route(asked("auto", chars=100, policy=RoutingPolicy(cascade_percent=70)))
    assert said(chosen) == ("small", "cascade_accepted")
    assert (chosen.trial.percent, said(chosen.trial.escalation)) == (70, ("big", "cascade_escalated"))
    assert route(asked("big", policy=RoutingPolicy(cascade_percent=70))).trial is None


def test_versions_are_told_and_stay_with_who_asks() -> None:
    chosen = route(asked("one"))
    assert (chosen.requested, chosen.routed, *said(chosen)) == ("one", "one", "big-2", "version")
    served = {who: route(asked("versioned", sticky_id=who)).served for who in map(str, range(50))}
    assert set(served.values()) == {"big", "big-2"}
    assert served == {who: route(asked("versioned", sticky_id=who)).served for who in served}


@pytest.mark.parametrize(("allowed", "served"), [("big", "big"), ("small", "small")])
def test_a_key_for_one_of_a_pair_gets_that_one(allowed: str, served: str) -> None:
    policy = RoutingPolicy(degrade=True, degrade_near_budget=True, cascade_percent=50)
    for chars in (0, 100):
        chosen = route(asked("auto", chars, policy, models=frozenset({allowed})), LONG)
        assert said(chosen) == (served, "only_allowed")
        assert not chosen.fallbacks
        assert chosen.trial is None


@pytest.mark.parametrize("name", ["auto", "auto:big", "mine"])
def test_a_key_for_a_name_is_for_what_it_leads_to(name: str) -> None:
    policy = RoutingPolicy(aliases={"mine": "auto"})
    for chars, served in ((0, "small"), (100, "big")):
        assert route(asked(name, chars, policy, models=frozenset({name}))).served == served
    with pytest.raises(ModelNotAllowed):
        route(asked("big", policy=policy, models=frozenset({name})))


def test_a_small_model_that_is_not_for_the_key_does_not_stand_in() -> None:
    chosen = route(asked("big", policy=RoutingPolicy(degrade=True), models=frozenset({"big"})), LONG)
    assert said(chosen) == ("big", "explicit")
    assert not chosen.fallbacks


@pytest.mark.parametrize("name", ["other", "auto", "nothing", "mine"])
def test_a_key_for_other_models(name: str) -> None:
    policy = RoutingPolicy(aliases={"mine": "big"})
    with pytest.raises(ModelNotAllowed):
        route(asked(name, policy=policy, models=frozenset({"elsewhere"})))


@pytest.mark.parametrize("name", ["nothing", "auto:small", "mine"])
def test_a_name_that_leads_nowhere(name: str) -> None:
    with pytest.raises(UnknownModel):
        route(asked(name, policy=RoutingPolicy(aliases={"mine": "gone"})))


def test_token_ids_need_their_model_and_stay_with_it() -> None:
    with pytest.raises(NeedsModel) as refused:
        route(asked("auto", token_param="logit_bias"))
    assert refused.value.param == "logit_bias"
    named = route(asked("big", policy=RoutingPolicy(degrade=True), token_param="prompt"), LONG)
    assert said(named) == ("big", "explicit")
    assert not named.fallbacks


def test_no_question_is_scored_where_nothing_hangs_on_it() -> None:
    def never() -> Question:
        raise AssertionError("the question was looked at")

    assert route(asked("big", question=never)).reason is RouteReason.EXPLICIT
    assert route(asked("auto", policy=RoutingPolicy(cascade_percent=50), question=never)).served == "small"
