"""The audit log: who changed what, from what to what, and whether the log is as it was written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import moment_of
from gateway.management.console.screens import Page, PageRequest, Screens
from gateway.management.operations.roles import AUDITORS

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
    found = await page_request.actions.read("listAudit", query=query)
    # Records are kept as text, which answers pass on unread.
    entries: list[dict[str, Any]] = orjson.loads(orjson.dumps(found["data"]))
    values = {
        "entries": [each | {"differences": differences(each["before"], each["after"])} for each in entries],
        "next": next_page("/audit", filters, found["next_cursor"]),
        "filters": filters,
        "equal_to": _EQUAL_TO,
    }
    return Page("audit.html", values)


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
