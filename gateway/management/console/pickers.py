"""Options of the console's selects: tenants, keys and models by name."""

from collections.abc import Iterable, Sequence

from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import words_of
from gateway.management.console.forms import Form
from gateway.management.console.screens import PageRequest

MAX_OPTIONS = 1000
"""Most tenants or keys in a select; a page of the API has at most 200."""

Options = Sequence[tuple[str, str]]


async def tenant_options(page_request: PageRequest) -> Options:
    """Ids and names of tenants, by name."""
    return [(each["id"], each["name"]) for each in await _all(page_request, "listTenants", {})]


async def key_options(page_request: PageRequest, tenant_id: str) -> Options:
    """Ids and names of a tenant's keys that are not revoked, by age."""
    keys = await _all(page_request, "listKeys", {"tenant_id": tenant_id, "revoked": "false"})
    return [(each["id"], f"{each['name'] or 'unnamed'} ({each['id']})") for each in keys]


def model_names(context: ConsoleContext) -> Sequence[str]:
    """Names that requests may ask for, aliases of single tenants aside."""
    return list(context.names.all_names(()))


def models_of(form: Form) -> list[str] | None:
    """The models of a form with a box for each served model and a text field for others; None: all models."""
    texts = (*form.every("models"), *form.every("other_models"))
    return list(dict.fromkeys(word for text in texts for word in words_of(text) or ())) or None


def with_option(options: Options, value: str) -> Options:
    """`options`, and `value` if it is missing: a link may name what a select does not list."""
    return options if not value or value in (each for each, _ in options) else [*options, (value, value)]


async def _all(page_request: PageRequest, operation: str, query: dict[str, str]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    while len(found) < MAX_OPTIONS:
        page = await page_request.actions.read(operation, query={**query, "limit": "200"})
        found += page["data"]
        if page["next_cursor"] is None:
            break
        query = {**query, "cursor": page["next_cursor"]}
    return found


def as_options(names: Iterable[str]) -> Options:
    """Each name as its own value."""
    return [(name, name) for name in names]
