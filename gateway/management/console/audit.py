"""The audit log: who changed what, from what to what, and whether the log is as it was written."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import orjson
from sqlalchemy import select

from gateway.management.console.addresses import address, next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import moment_of
from gateway.management.console.names import Names, Options, names_of, pickers_of, resolved, with_option
from gateway.management.console.screens import Page, PageRequest, Screens
from gateway.management.operations.roles import AUDITORS
from gateway.management.operations.tables import AuditRow

EVERY_S = 30
MAX_LATEST = 2000
"""Entries whose actors, actions and resources the filters offer."""
_OFFERED = ("actor", "action", "resource")
_EQUAL_TO = ("actor", "action", "resource", "resource_id", "tenant_id")


@dataclass(frozen=True, slots=True)
class Difference:
    """A changed member of a record. None: the record lacks it."""

    name: str
    before: str | None
    after: str | None


SCREENS = Screens()


@SCREENS.get("/audit", "audit", "Audit log", AUDITORS, section="Operate")
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    filters = page_request.query.given(*_EQUAL_TO, "since", "until")
    query = {**filters, **page_request.query.given("cursor")}
    for name in ("since", "until"):
        if moment := moment_of(query.get(name, "")):
            query[name] = moment
    found = await page_request.actions.read("listAudit", query=await resolved(context, page_request, query))
    # Records are kept as text, which answers pass on unread.
    entries: list[dict[str, Any]] = orjson.loads(orjson.dumps(found["data"]))
    options = await _options(context, filters)
    names = await _names(context, page_request, entries, [each for each, _ in options["actor"]])
    options["actor"] = [(each, names.administrators.get(each, each)) for each, _ in options["actor"]]
    values = {
        "entries": [each | {"differences": differences(each["before"], each["after"])} for each in entries],
        "next": next_page("/audit", filters, found["next_cursor"]),
        "filters": filters,
        "options": options,
        "pickers": await pickers_of(context, page_request, filters),
        "names": names,
        "object_name": partial(object_name, names),
        "every_s": 0 if page_request.query.get("cursor") else EVERY_S,
    }
    return Page("audit.html", values)


async def _options(context: ConsoleContext, filters: Mapping[str, str]) -> dict[str, Options]:
    """Actors, actions and resources of the latest entries, for the filters."""
    columns = {name: getattr(AuditRow, name) for name in _OFFERED}
    latest = select(*columns.values()).order_by(AuditRow.sequence.desc()).limit(MAX_LATEST)
    async with context.admin.reading() as connection:
        rows = (await connection.execute(latest)).all()
    found = {name: sorted({str(getattr(row, name)) for row in rows}) for name in columns}
    return {name: with_option([(each, each) for each in texts], filters.get(name)) for name, texts in found.items()}


async def _names(
    context: ConsoleContext, page_request: PageRequest, entries: Sequence[Mapping[str, Any]], actors: Sequence[str]
) -> Names:
    def ids(resource: str) -> set[str]:
        return {each["resource_id"] for each in entries if each["resource"] == resource}

    return await names_of(
        context,
        page_request,
        tenants=ids("tenant") | {each["tenant_id"] for each in entries if each["tenant_id"]},
        keys=ids("key"),
        administrators=ids("admin_key") | {each["actor"] for each in entries} | set(actors),
    )


def object_name(names: Names, entry: Mapping[str, Any]) -> tuple[str, str]:
    """The name of the record that was changed, and the address of its page, or nothing."""
    id = entry["resource_id"]
    match entry["resource"]:
        case "tenant":
            return names.tenant(id), address(f"/tenants/{quote(id)}") if id in names.tenants else ""
        case "key":
            return names.key(id), address(f"/keys/{quote(id)}") if id in names.keys else ""
        case "admin_key":
            return names.administrators.get(id, id), ""
        case "invoice":
            return id, address(f"/invoices/{quote(id)}")
        case _:
            return names.tenant(id), ""


@SCREENS.get("/audit/verification", "audit_verification", "Verification of the audit log", AUDITORS)
async def verification(context: ConsoleContext, page_request: PageRequest) -> Page:
    answer = await page_request.actions.read("verifyAudit")
    return Page("audit_verification.html", {"first_broken": answer["first_broken"]})


def differences(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[Difference]:
    """The members that differ, by path, as in `aliases[0].model`. Nulls of a created record are left out."""
    left, right = dict(_flat("", before or {})), dict(_flat("", after or {}))
    if before is None:
        return [Difference(name, None, text) for name, text in right.items() if text != "null"]
    names = list(dict.fromkeys([*left, *right]))
    return [Difference(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)]


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and (value or not path):
        for name, each in value.items():
            yield from _flat(f"{path}.{name}" if path else name, each)
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from _flat(f"{path}[{index}]", each)
    else:
        yield path, value if isinstance(value, str) else orjson.dumps(value).decode()
