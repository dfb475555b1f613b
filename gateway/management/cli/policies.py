"""turnpike route show, set; turnpike session show, set; turnpike bill-to show, set: tenants' policies.

The options of `set` are the settings that `gateway.management.operations.policies` declares. They are made when the
command is used, because the declarations take a while to import.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.management.cli.app import run_nested
from gateway.management.cli.managed import managed
from gateway.management.cli.options import TenantOption
from gateway.management.cli.output import print_json

if TYPE_CHECKING:
    from gateway.management.client import AdminClient
    from gateway.management.operations.policies import Policy, Setting


def commands_of(policy: str) -> Mapping[str, Callable[..., None]]:
    """The commands on a policy, by name."""

    @managed
    def show(client: "AdminClient", tenant: TenantOption) -> None:
        """Show these settings of a tenant as JSON."""
        print_json(client.read(_declared(policy).read, client.tenant_path(tenant)))

    def set_policy(context: typer.Context) -> None:
        """Change settings of a tenant, and show them. Running gateways apply them within 5 seconds."""
        run_nested(_setter(_declared(policy)), context)

    return {"show": show, "set": set_policy}


def _declared(policy: str) -> "Policy":
    from gateway.management.operations.policies import POLICIES

    return next(each for each in POLICIES if each.name == policy)


def _setter(policy: "Policy") -> Callable[..., None]:
    """The command with the options of all settings."""

    def set_policy(client: "AdminClient", /, tenant: str, **given: Any) -> None:
        """Change settings of a tenant, and show them. Running gateways apply them within 5 seconds."""
        body = _body(policy, given)
        if not body:
            raise typer.BadParameter("give at least one setting to change")
        print_json(client.change(policy.update, client.tenant_path(tenant), body))

    options = {key: each for name, setting in policy.settings.items() for key, each in _options(name, setting).items()}
    keyword = inspect.Parameter.KEYWORD_ONLY
    set_policy.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # it tells the options
        [
            inspect.Parameter("client", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("tenant", keyword, annotation=TenantOption),
            *(inspect.Parameter(name, keyword, annotation=hint, default=None) for name, hint in options.items()),
        ]
    )
    return managed(set_policy)


def _options(name: str, setting: "Setting") -> Mapping[str, Any]:
    """The options of a setting, by the parameter that receives each."""
    from gateway.management.operations.policies import Aliases
    from gateway.management.operations.schema import Boolean, Choice, Text

    option, about = _option(name, setting), setting.about
    match setting.kind:
        case Boolean():
            return {name: Annotated[bool | None, typer.Option(f"{option}/{_negated(option)}", help=about)]}
        case Aliases():
            added = typer.Option(option, metavar="NAME=MODEL", help=f"{about} Repeatable.")
            removed = typer.Option(_negated(option), metavar="NAME", help="Alias to remove. Repeatable.")
            return {name: Annotated[list[str] | None, added], _negated(name): Annotated[list[str] | None, removed]}
        case kind:
            words = kind.words if isinstance(kind, Choice) else ("TEXT",) if isinstance(kind, Text) else ("N",)
            metavar = "|".join((*words, setting.unset))
            return {name: Annotated[str | None, typer.Option(option, metavar=metavar, help=about)]}


def _body(policy: "Policy", given: Mapping[str, Any]) -> dict[str, Any]:
    """The members of the policy's update that the options state.

    Raises:
        typer.BadParameter: a setting does not take its value.
    """
    from gateway.http.errors import APIError
    from gateway.management.operations.policies import UNSET, Aliases

    body: dict[str, Any] = {}
    for name, setting in policy.settings.items():
        value = given[name]
        if isinstance(setting.kind, Aliases):
            if value:
                body[name] = _aliases(value)
            if removed := given[_negated(name)]:
                body[f"remove_{name}"] = removed
        elif value is not None and value == setting.unset:
            body.setdefault(UNSET, []).append(name)
        elif value is not None:
            value = setting.kind.from_text(value) if isinstance(value, str) else value
            try:
                setting.kind.read(value, _option(name, setting))
            except APIError as error:
                message = f"{error.message.rstrip('.')}; {setting.unset} removes the setting"
                raise typer.BadParameter(message) from None
            body[name] = value
    return body


def _aliases(options: Sequence[str]) -> list[dict[str, str]]:
    """
    Raises:
        typer.BadParameter: one that is not NAME=MODEL.
    """
    aliases = {}
    for option in options:
        name, equals, model = option.partition("=")
        if not (name and equals and model):
            raise typer.BadParameter(f"{option!r} is not NAME=MODEL, as in --alias gpt-4o=auto")
        aliases[name] = model
    return [{"name": name, "model": model} for name, model in aliases.items()]


def _option(name: str, setting: "Setting") -> str:
    return f"--{setting.option or name.replace('_', '-')}"


def _negated(name: str) -> str:
    """The switch or the parameter that undoes another."""
    return f"--no-{name[2:]}" if name.startswith("--") else f"no_{name}"
