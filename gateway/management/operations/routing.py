"""A tenant's routing policy: preference, stand-in, cascade, aliases."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.roles import ADMINS, READERS
from gateway.management.operations.routes import OperationInput, Route
from gateway.management.operations.schema import (
    Boolean,
    Choice,
    Integer,
    Kind,
    ListOf,
    Member,
    Record,
    Text,
    answer,
    nullable,
    optional,
)
from gateway.tenancy.queries import require_tenant
from gateway.tenancy.routing_policies import read_policy, write_policy
from gateway.tenancy.routing_policy import MAX_ALIASES, MODEL_NAME, InvalidPolicy, Preference, RoutingPolicy

_NAME = Text(128, pattern=MODEL_NAME)
_ALIAS = answer("ModelAlias", {"name": _NAME, "model": Member(_NAME, "A model, `auto`, or `auto:` and a large model.")})
_PREFERENCE = Choice(tuple(Preference))
_PERCENT = Integer(1, 99)
_ALIASES = ListOf(_ALIAS, MAX_ALIASES)
_CASCADE = "The small model answers first; below this certainty in percent, the large one does. "

_POLICY: dict[str, Member | Kind] = {
    "preference": Member(_PREFERENCE, "Of a routed question: what counts where it is neither easy nor hard."),
    "degrade": Member(Boolean(), "The small model may stand in where the large one's queue is long."),
    "degrade_near_budget": Member(Boolean(), "It may where a budget has too little left for the large one."),
    "cascade_percent": nullable(_PERCENT, _CASCADE + "Null: no question is answered twice."),
    "aliases": Member(_ALIASES, "Names of the tenant's own."),
}
ROUTING_POLICY = answer("RoutingPolicy", _POLICY)


def policy_of(
    preference: str | None,
    degrade: bool | None,
    degrade_near_budget: bool | None,
    cascade_percent: int | None,
    aliases: list[dict[str, Any]] | None,
) -> RoutingPolicy:
    """A routing policy. Omitted fields have their defaults.

    Raises:
        InvalidPolicy: an alias is given twice.
    """
    pairs = [(each["name"], each["model"]) for each in aliases or ()]
    if len(dict(pairs)) < len(pairs):
        raise InvalidPolicy("aliases", "an alias is given twice")
    return RoutingPolicy(
        Preference.BALANCED if preference is None else Preference(preference),
        bool(degrade),
        bool(degrade_near_budget),
        cascade_percent,
        dict(pairs),
    )


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A change of some of a policy. `fields`: new values by the field's name, without the aliases."""

    fields: Mapping[str, Any]
    added_aliases: Mapping[str, str]
    removed_aliases: Collection[str]

    def applied_to(self, policy: RoutingPolicy) -> RoutingPolicy:
        """
        Raises:
            InvalidPolicy: a field of the changed policy is out of range.
        """
        kept = {name: model for name, model in policy.aliases.items() if name not in self.removed_aliases}
        return replace(policy, **self.fields, aliases=kept | dict(self.added_aliases))


class RoutingPolicies:
    """Handlers."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    async def read(self, call: OperationInput) -> Any:
        tenant_id = call.path["tenant_id"]
        async with self._context.reading() as connection:
            await require_tenant(connection, tenant_id)
            return _wire(await read_policy(connection, tenant_id))

    async def replace(self, change: Change, call: OperationInput) -> Any:
        body: RoutingPolicy | PolicyChange = call.body
        tenant = await self._context.tenants(change).tenant(call.path["tenant_id"])
        before = await read_policy(change.connection, tenant.id)
        after = body.applied_to(before) if isinstance(body, PolicyChange) else body
        await write_policy(change.connection, tenant.id, after)
        told = [_wire(before), _wire(after)]
        change.record("replace", "routing_policy", tenant.id, tenant_id=tenant.id, before=told[0], after=told[1])
        return told[1]


def _wire(policy: RoutingPolicy) -> dict[str, Any]:
    return {
        "preference": policy.preference.value,
        "degrade": policy.degrade,
        "degrade_near_budget": policy.degrade_near_budget,
        "cascade_percent": policy.cascade_percent,
        "aliases": [{"name": name, "model": model} for name, model in sorted(policy.aliases.items())],
    }


def routing_routes(context: AdminContext) -> list[Route]:
    policies = RoutingPolicies(context)
    path = "/tenants/{tenant_id}/routing"
    return [
        Route(
            name="readRoutingPolicy",
            about="Read how a tenant's requests find their model.",
            method="GET",
            path=path,
            allowed=READERS,
            answer=ROUTING_POLICY,
            read=policies.read,
        ),
        Route(
            name="replaceRoutingPolicy",
            about="State how a tenant's requests find their model; what is left out is as by default. Gateways follow "
            "within 5 seconds.",
            method="PUT",
            path=path,
            allowed=ADMINS,
            body=Record(
                "NewRoutingPolicy",
                policy_of,
                {
                    "preference": optional(_PREFERENCE, "balanced by default."),
                    "degrade": optional(Boolean(), "false by default."),
                    "degrade_near_budget": optional(Boolean(), "false by default."),
                    "cascade_percent": optional(_PERCENT, _CASCADE + "Left out: no question is answered twice."),
                    "aliases": optional(_ALIASES, "None by default."),
                },
            ),
            answer=ROUTING_POLICY,
            write=policies.replace,
        ),
    ]
