"""Forms of a tenant's policies, from the declarations of the settings."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import pairs_of
from gateway.management.console.screens import PageRequest, Redirect, Screens
from gateway.management.operations.policies import POLICIES, Aliases, Policy
from gateway.management.operations.schema import Boolean, Choice, Integer, Text

_EXAMPLE = "assistant = large-model"


async def policy_forms(page_request: PageRequest) -> list[Mapping[str, Any]]:
    """The policies of the tenant of the page, for `tenant.html`."""
    forms: list[Mapping[str, Any]] = []
    for policy in POLICIES:
        values = await page_request.actions.read(policy.read, page_request.path)
        fields = [_field(policy, name, values[name]) for name in policy.settings]
        may = page_request.may(policy.replace)
        forms.append({"act": policy.name, "title": policy.title, "fields": fields, "may_change": may})
    return forms


def declare_forms(screens: Screens, name: str) -> None:
    """Declare the form of each policy, on the screen `name`."""
    for policy in POLICIES:
        screens.post(name, policy.name)(_saves(policy))


def _saves(policy: Policy) -> Callable[[ConsoleContext, PageRequest], Awaitable[Redirect]]:
    async def save(context: ConsoleContext, page_request: PageRequest) -> Redirect:
        aliases = {
            name: [
                {"name": alias, "model": model}
                for alias, model in pairs_of(name, page_request.form.get(name), "=", _EXAMPLE)
            ]
            for name, setting in policy.settings.items()
            if isinstance(setting.kind, Aliases)
        }
        await page_request.actions.submit(policy.replace, page_request.form, page_request.path, aliases)
        return page_request.saved(f"{policy.title} settings updated.")

    return save


def _field(policy: Policy, name: str, value: Any) -> Mapping[str, Any]:
    """A field as the template shows it. `input`: its kind of input; `value`: in the input; `shown`: on the page."""
    setting, default = policy.settings[name], getattr(policy.table.record(), name)
    field: dict[str, Any] = {"name": name, "label": setting.label, "hint": setting.about, "options": ()}
    shown = setting.unset if value is None or value == "" else str(value)
    match setting.kind:
        case Boolean():
            return field | {"input": "box", "value": value, "shown": "yes" if value else "no"}
        case Choice(words):
            options = [(word, word) for word in words]
            if default is None:
                options = [("", setting.unset), *options]
            return field | {"input": "select", "value": value or "", "shown": shown, "options": options}
        case Aliases():
            lines = [f"{each['name']} = {each['model']}" for each in value]
            hint = f"{setting.about} One per line, as in: {_EXAMPLE}"
            return field | {
                "input": "textarea",
                "value": "\n".join(lines),
                "shown": ", ".join(lines) or "none",
                "hint": hint,
            }
        case Text(max_lines=lines) if lines > 1:
            return field | {"input": "textarea", "value": value, "shown": ", ".join(value.split("\n")) or setting.unset}
        case kind:
            input = "number" if isinstance(kind, Integer) else "text"
            return field | {"input": input, "value": "" if value is None else value, "shown": shown}
