"""Tenants' policies: the settings of `gateway.tenancy.policies`, each declared once for the API, the console's form and
the command line."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.adapters.limits import ADAPTER_LIMITS
from gateway.common.model_names import MODEL_NAME
from gateway.common.party import MAX_ADDRESS_CHARS, MAX_ADDRESS_LINES, MAX_NAME_CHARS, MAX_TAX_ID_CHARS
from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.roles import ADMINS, FINANCE, READERS, Role
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
    optional,
)
from gateway.sessions.policy import SessionWindow
from gateway.tenancy.policies import BILL_TO, MAX_ALIASES, POLICY_TABLES, InvalidPolicy, PolicyTable, Preference
from gateway.tenancy.queries import require_tenant

UNSET = "unset"
"""Member of an update: the settings that get their default."""

_NAME = Text(128, pattern=MODEL_NAME)
_ALIAS = answer("ModelAlias", {"name": _NAME, "model": Member(_NAME, "A model, `auto`, or `auto:` and a large model.")})


class Aliases(ListOf):
    """Names of models, each with the model that it stands for. JSON: an array of `ModelAlias`; read: a mapping."""

    def read(self, value: object, path: str) -> Any:
        pairs = [(each["name"], each["model"]) for each in ListOf.read(self, value, path)]
        if len(dict(pairs)) < len(pairs):
            raise InvalidPolicy(path, "an alias is given twice")
        return dict(pairs)


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a policy. `label`: its name in the console. `option`: its name on the command line if not the
    field's. `unset`: the word for None there and in the console."""

    kind: Kind
    label: str
    about: str
    option: str = ""
    unset: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The operations of one policy. `name`: its form in the console. `schema`: its name in the OpenAPI document,
    and the end of its operations' names. `settings`: by the field of the record. `writers`: roles that change it.
    `applied`: when a change takes effect."""

    name: str
    title: str
    schema: str
    path: str
    resource: str
    about: str
    settings: Mapping[str, Setting]
    table: PolicyTable[Any]
    writers: frozenset[Role] = ADMINS
    applied: str = "Gateways apply it within 5 seconds."

    @property
    def read(self) -> str:
        """The operation that reads the policy."""
        return f"read{self.schema}"

    @property
    def replace(self) -> str:
        """The operation that replaces the policy."""
        return f"replace{self.schema}"

    @property
    def update(self) -> str:
        """The operation that changes some settings of the policy."""
        return f"update{self.schema}"

    def wire(self, policy: Any) -> dict[str, Any]:
        """The policy as JSON members."""
        return {name: _wire(getattr(policy, name)) for name in self.settings}

    def routes(self, context: AdminContext) -> list[Route]:
        """Its read, its replacement and its update."""
        default = self.wire(self.table.record())
        answered = answer(
            self.schema,
            {
                name: Member(each.kind, each.about, nullable=default[name] is None)
                for name, each in self.settings.items()
            },
        )
        members = {name: optional(each.kind, each.about) for name, each in self.settings.items()}

        async def read(call: OperationInput) -> Any:
            tenant_id = call.path["tenant_id"]
            async with context.reading() as connection:
                await require_tenant(connection, tenant_id)
                return self.wire(await self.table.read(connection, tenant_id))

        async def write(change: Change, call: OperationInput) -> Any:
            """`call.body`: a function from the old policy to the new one."""
            tenant = await context.tenants(change).tenant(call.path["tenant_id"])
            before = await self.table.read(change.connection, tenant.id)
            after = call.body(before)
            await self.table.write(change.connection, tenant.id, after)
            told = [self.wire(before), self.wire(after)]
            return change.record(
                "replace", self.resource, tenant.id, tenant_id=tenant.id, before=told[0], after=told[1]
            )

        common: dict[str, Any] = {"path": f"/tenants/{{tenant_id}}/{self.path}", "answer": answered}
        return [
            Route(
                name=self.read,
                about=f"Read {self.about}.",
                method="GET",
                allowed=READERS,
                read=read,
                **common,
            ),
            Route(
                name=self.replace,
                about=f"Replace {self.about}. An omitted member is set to its default. {self.applied}",
                method="PUT",
                allowed=self.writers,
                body=Record(f"New{self.schema}", self._replacement, members),
                write=write,
                **common,
            ),
            Route(
                name=self.update,
                about=f"Change {self.about}. An omitted member stays. {self.applied}",
                method="PATCH",
                allowed=self.writers,
                body=Record(f"{self.schema}Change", self._changed, {**members, **self._removals()}),
                write=write,
                **common,
            ),
        ]

    def _replacement(self, **members: Any) -> Callable[[Any], Any]:
        policy = self.table.record(**{name: value for name, value in members.items() if value is not None})
        return lambda _: policy

    def _removals(self) -> dict[str, Member]:
        """Members of an update that remove: settings, and aliases by name."""
        names = tuple(name for name, each in self.settings.items() if not isinstance(each.kind, Aliases))
        maps = [name for name in self.settings if name not in names]
        return {
            UNSET: optional(ListOf(Choice(names), len(names)), "Settings to set to their default."),
            **{f"remove_{name}": optional(ListOf(_NAME, MAX_ALIASES), f"Of {name}: names to remove.") for name in maps},
        }

    def _changed(self, **members: Any) -> Callable[[Any], Any]:
        default = self.table.record()
        unset = {name: getattr(default, name) for name in members.pop(UNSET) or ()}
        if both := [name for name in unset if members[name] is not None]:
            raise InvalidPolicy(UNSET, f"{UNSET} names a setting that the request sets: {both[0]}")

        def change(before: Any) -> Any:
            changes = dict(unset)
            for name, each in self.settings.items():
                if isinstance(each.kind, Aliases):
                    removed = members[f"remove_{name}"] or ()
                    kept = {key: model for key, model in getattr(before, name).items() if key not in removed}
                    changes[name] = kept | (members[name] or {})
                elif members[name] is not None:
                    changes[name] = members[name]
            return dataclasses.replace(before, **changes)

        return change


def _wire(value: Any) -> Any:
    match value:
        case Mapping():
            return [{"name": name, "model": model} for name, model in sorted(value.items())]
        case StrEnum():
            return value.value
        case _:
            return value


POLICIES = (
    Policy(
        name="routing",
        title="Routing",
        schema="RoutingPolicy",
        path="routing",
        resource="routing_policy",
        about="a tenant's routing policy",
        table=POLICY_TABLES["routing"],
        settings={
            "preference": Setting(
                Choice(tuple(Preference)),
                "Preference",
                "Trade-off between quality and cost for routed requests of medium difficulty. Default: balanced.",
            ),
            "degrade": Setting(
                Boolean(), "Overload fallback", "Fall back to the small model when the large one is overloaded."
            ),
            "degrade_near_budget": Setting(
                Boolean(),
                "Budget fallback",
                "Fall back to the small model near the end of a budget.",
                option="near-budget",
            ),
            "cascade_percent": Setting(
                Integer(1, 99),
                "Cascade threshold (%)",
                "Ask the small model first, and the large one if the confidence is below this percentage. Default: no "
                "cascade.",
                option="cascade",
                unset="off",
            ),
            "aliases": Setting(
                Aliases(_ALIAS, MAX_ALIASES), "Aliases", "The tenant's own names for models.", option="alias"
            ),
        },
    ),
    Policy(
        name="session",
        title="Session",
        schema="SessionWindow",
        path="session-window",
        resource="session_window",
        about="a tenant's policy for sessions that exceed the context window",
        table=POLICY_TABLES["session"],
        settings={
            "window": Setting(
                Choice(tuple(SessionWindow)),
                "Session window",
                "sliding drops the oldest turns; summary has a model summarise them, at the tenant's cost. Default: "
                "the setting session_window.",
            )
        },
    ),
    Policy(
        name="adapters",
        title="Adapters",
        schema="AdapterLimits",
        path="adapter-limits",
        resource="adapter_limits",
        about="the limits on a tenant's adapters",
        table=ADAPTER_LIMITS,
        applied="It holds for uploads from then on.",
        settings={
            "max_adapters": Setting(
                Integer(0, 1_000_000),
                "Adapters",
                "Maximum number of adapters. Default: the setting tenant_adapters of [adapters].",
            ),
            "max_bytes": Setting(
                Integer(0, 2**53 - 1),
                "Bytes of adapters",
                "Maximum size of all versions of its adapters. Default: the setting tenant_bytes of [adapters].",
            ),
        },
    ),
    Policy(
        name="bill_to",
        title="Bill-to",
        schema="BillTo",
        path="bill-to",
        resource="bill_to",
        about="the name and address that a tenant's invoices are billed to",
        table=BILL_TO,
        writers=FINANCE,
        applied="Invoices that are final keep what they have.",
        settings={
            "name": Setting(Text(MAX_NAME_CHARS, 0), "Name", "Name on invoices.", unset="none"),
            "address": Setting(
                Text(MAX_ADDRESS_CHARS, 0, max_lines=MAX_ADDRESS_LINES),
                "Address",
                "Address on invoices, in lines.",
                unset="none",
            ),
            "tax_id": Setting(
                Text(MAX_TAX_ID_CHARS, 0), "Tax id", "Tax id on invoices, such as a VAT number.", unset="none"
            ),
        },
    ),
)


def policy_routes(context: AdminContext) -> list[Route]:
    return [route for policy in POLICIES for route in policy.routes(context)]
