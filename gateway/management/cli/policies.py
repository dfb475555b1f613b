"""turnpike route show, set; turnpike session show, set: tenants' policies.

The options of `set` are the settings that `gateway.management.operations.policies` declares. They are made when the
command is used, because the declarations take a while to import.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.management.cli.app import run_nested
from gateway.management.cli.options import DataDir, settings_from
from gateway.management.cli.output import print_json
from gateway.management.cli.store import with_database, with_operations

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.management.operations.local import LocalOperations
    from gateway.management.operations.policies import Policy, Setting

Tenant = Annotated[str, typer.Argument(help="The tenant's name.")]


def commands_of(policy: str) -> Mapping[str, Callable[..., None]]:
    """The commands on a policy, by name."""

    def show(tenant: Tenant, data_dir: DataDir = None) -> None:
        """Show a tenant's policy as JSON."""
        declared = _declared(policy)
        _print(with_database(settings_from(data_dir=data_dir), lambda database: _read(declared, database, tenant)))

    def set_policy(context: typer.Context) -> None:
        """Change a tenant's policy, and show it. Running gateways apply it within 5 seconds."""
        run_nested(_setter(_declared(policy)), context)

    return {"show": show, "set": set_policy}


def _declared(policy: str) -> "Policy":
    from gateway.management.operations.policies import POLICIES

    return next(each for each in POLICIES if each.name == policy)


def _setter(policy: "Policy") -> Callable[..., None]:
    """The command with the options of all settings."""

    def set_policy(**given: Any) -> None:
        """Change a tenant's policy, and show it. Running gateways apply it within 5 seconds."""
        tenant, data_dir = given.pop("tenant"), given.pop("data_dir")
        edits = {name: _edit(policy, name, given) for name in policy.settings}
        if not any(edits.values()):
            raise typer.BadParameter("give at least one setting to change")

        def alter(before: Any) -> Any:
            return replace(before, **{name: edit(getattr(before, name)) for name, edit in edits.items() if edit})

        async def change(operations: "LocalOperations") -> Any:
            await operations.change(policy.replace, await operations.path_of(tenant), alter)
            return await _read(policy, operations.context.database, tenant)

        _print(with_operations(settings_from(data_dir=data_dir), change))

    options = {key: each for name, setting in policy.settings.items() for key, each in _options(name, setting).items()}
    hints = {"tenant": Tenant, **options, "data_dir": DataDir}
    set_policy.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # it tells the options
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hint,
                default=inspect.Parameter.empty if name == "tenant" else None,
            )
            for name, hint in hints.items()
        ]
    )
    set_policy.__annotations__ = hints
    return set_policy


def _options(name: str, setting: "Setting") -> Mapping[str, Any]:
    """The options of a setting, by the parameter that receives each."""
    from gateway.management.operations.policies import Aliases
    from gateway.management.operations.schema import Boolean, Choice

    option, about = _option(name, setting), setting.about
    match setting.kind:
        case Boolean():
            return {name: Annotated[bool | None, typer.Option(f"{option}/{_negated(option)}", help=about)]}
        case Aliases():
            added = typer.Option(option, metavar="NAME=MODEL", help=f"{about} Repeatable.")
            removed = typer.Option(_negated(option), metavar="NAME", help="Alias to remove. Repeatable.")
            return {name: Annotated[list[str] | None, added], _negated(name): Annotated[list[str] | None, removed]}
        case kind:
            words = kind.words if isinstance(kind, Choice) else ("N",)
            metavar = "|".join((*words, setting.unset))
            return {name: Annotated[str | None, typer.Option(option, metavar=metavar, help=about)]}


def _edit(policy: "Policy", name: str, given: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    """The change of a setting, from its old value to its new one; None: its options are not given.

    Raises:
        typer.BadParameter: the setting does not take the value.
    """
    from gateway.http.errors import APIError
    from gateway.management.operations.policies import Aliases

    setting, value = policy.settings[name], given[name]
    if isinstance(setting.kind, Aliases):
        added, removed = _aliases(value or []), given[_negated(name)] or []
        if not (added or removed):
            return None
        return lambda old: {key: model for key, model in old.items() if key not in removed} | added
    if value is None:
        return None
    if isinstance(value, str):
        if value == setting.unset:
            return lambda _: getattr(policy.table.record(), name)
        try:
            value = setting.kind.read(setting.kind.from_text(value), _option(name, setting))
        except APIError as error:
            raise typer.BadParameter(f"{error.message.rstrip('.')}; {setting.unset} removes the setting") from None
    return lambda _: value


def _aliases(options: Sequence[str]) -> dict[str, str]:
    aliases = {}
    for option in options:
        name, equals, model = option.partition("=")
        if not (name and equals and model):
            raise typer.BadParameter(f"{option!r} is not NAME=MODEL, as in --alias gpt-4o=auto")
        aliases[name] = model
    return aliases


def _option(name: str, setting: "Setting") -> str:
    return f"--{setting.option or name.replace('_', '-')}"


def _negated(name: str) -> str:
    """The switch or the parameter that undoes another."""
    return f"--no-{name[2:]}" if name.startswith("--") else f"no_{name}"


async def _read(policy: "Policy", database: "AsyncEngine", tenant: str) -> Any:
    from gateway.tenancy.database import answering
    from gateway.tenancy.queries import tenant_id_of

    with answering():
        async with database.connect() as connection:
            return await policy.table.read(connection, await tenant_id_of(connection, tenant))


def _print(policy: Any) -> None:
    values = {each.name: getattr(policy, each.name) for each in fields(policy)}
    print_json(
        {name: dict(sorted(value.items())) if isinstance(value, Mapping) else value for name, value in values.items()}
    )
