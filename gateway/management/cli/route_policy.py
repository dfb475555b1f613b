"""turnpike route show, set: tenants' routing policies."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.management.cli.options import DataDir, settings_from
from gateway.management.cli.output import print_json
from gateway.management.cli.store import with_database, with_operations

if TYPE_CHECKING:
    from gateway.management.operations.local import LocalOperations
    from gateway.tenancy.routing_policy import RoutingPolicy

OFF = "off"


def show(tenant: Annotated[str, typer.Argument(help="The tenant's name.")], data_dir: DataDir = None) -> None:
    """Show a tenant's routing policy as JSON."""
    from gateway.tenancy.routing_policies import RoutingPolicyTable

    policy = with_database(
        settings_from(data_dir=data_dir), lambda database: RoutingPolicyTable(database).policy_of(tenant)
    )
    _print(policy)


def set_policy(
    tenant: Annotated[str, typer.Argument(help="The tenant's name.")],
    preference: Annotated[
        str | None, typer.Option("--preference", help="Preference for routed requests: quality, balanced or economy.")
    ] = None,
    degrade: Annotated[
        bool | None,
        typer.Option("--degrade/--no-degrade", help="Fall back to the small model when the large one is overloaded."),
    ] = None,
    near_budget: Annotated[
        bool | None,
        typer.Option("--near-budget/--no-near-budget", help="Fall back to the small model near the end of a budget."),
    ] = None,
    cascade: Annotated[
        str | None,
        typer.Option(
            "--cascade",
            metavar="PERCENT",
            help="Ask the small model first, and the large one if its confidence is below PERCENT; or off.",
        ),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option("--alias", metavar="NAME=MODEL", help="Alias of a model for this tenant. Repeatable."),
    ] = None,
    no_alias: Annotated[
        list[str] | None, typer.Option("--no-alias", metavar="NAME", help="Remove an alias. Repeatable.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Change a tenant's routing policy, and show it. Running gateways apply it within 5 seconds."""
    from gateway.management.operations.routing import PolicyChange

    given: dict[str, Any] = {"degrade": degrade, "degrade_near_budget": near_budget}
    changes = {name: value for name, value in given.items() if value is not None}
    if preference is not None:
        changes["preference"] = _preference(preference)
    if cascade is not None:
        changes["cascade_percent"] = _percent(cascade)
    added, dropped = _aliases(alias or []), no_alias or []
    if not (changes or added or dropped):
        raise typer.BadParameter("give at least one thing to change")

    async def change(operations: "LocalOperations") -> dict[str, Any]:
        path = await operations.path_of(tenant)
        body = PolicyChange(changes, added, dropped)
        changed: dict[str, Any] = await operations.change("replaceRoutingPolicy", path, body)
        return changed

    changed = with_operations(settings_from(data_dir=data_dir), change)
    print_json({**changed, "aliases": {alias["name"]: alias["model"] for alias in changed["aliases"]}})


def _preference(text: str) -> Any:
    from gateway.tenancy.routing_policy import Preference

    if text not in set(Preference):
        raise typer.BadParameter(f"--preference is one of {', '.join(Preference)}")
    return Preference(text)


def _percent(text: str) -> int | None:
    """
    Raises:
        typer.BadParameter: neither a whole number nor `off`.
    """
    if text == OFF:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"--cascade takes a whole number of percent, or {OFF}")
    return int(text)


def _aliases(options: list[str]) -> dict[str, str]:
    aliases = {}
    for option in options:
        name, equals, model = option.partition("=")
        if not (name and equals and model):
            raise typer.BadParameter(f"{option!r} is not NAME=MODEL, as in --alias gpt-4o=auto")
        aliases[name] = model
    return aliases


def _print(policy: "RoutingPolicy") -> None:
    """Print the policy as JSON."""
    stated = {
        "preference": policy.preference.value,
        "degrade": policy.degrade,
        "degrade_near_budget": policy.degrade_near_budget,
        "cascade_percent": policy.cascade_percent,
        "aliases": dict(sorted(policy.aliases.items())),
    }
    print_json(stated)
