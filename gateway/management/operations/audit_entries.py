"""Reads of the audit log. Only changes write to it."""

from typing import Any

import orjson
from sqlalchemy import select

from gateway.management.operations.audit import AuditLog
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import AUDITORS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import Anything, Instant, Integer, Member, Text, answer, nullable, optional
from gateway.management.operations.tables import AuditRow
from gateway.management.operations.timestamps import instant
from gateway.management.operations.wire import TENANT_ID

_NEWEST_FIRST = Listing("audit", (AuditRow.sequence,), descending=True)
_WORD = Text(32)
_EQUAL_TO = ("actor", "action", "resource", "resource_id", "tenant_id")

ENTRY = answer(
    "AuditEntry",
    {
        "sequence": Member(Integer(1), "Counts from 1 without a gap."),
        "at": Instant(),
        "actor": Member(
            _WORD, "An administrator's key, by its public id; `command-line:` and the user's name; or `settings`."
        ),
        "request_id": Text(128, 0),
        "action": Text(64),
        "resource": _WORD,
        "resource_id": Text(128),
        "tenant_id": nullable(TENANT_ID),
        "before": Member(Anything(), "Null for a created record."),
        "after": Anything(),
    },
)
VERIFICATION = answer(
    "AuditVerification",
    {"first_broken": nullable(Integer(1), "First entry that is altered or missing; null: none.")},
)


ROUTES = Routes()
_FILTERS = {
    "actor": optional(_WORD),
    "action": optional(Text(64)),
    "resource": optional(_WORD),
    "resource_id": optional(Text(128)),
    "tenant_id": optional(TENANT_ID),
    "since": optional(Instant()),
    "until": optional(Instant(), "Exclusive."),
}


@ROUTES.get("/audit", AUDITORS, page_of("AuditPage", ENTRY), query={**PAGE_QUERY, **_FILTERS})
async def list_audit(context: AdminContext, call: OperationInput) -> Any:
    """List audit entries, newest first."""
    statement = select(*AuditRow.__table__.columns)
    for name in _EQUAL_TO:
        if call.query[name] is not None:
            statement = statement.where(getattr(AuditRow, name) == call.query[name])
    if call.query["since"] is not None:
        statement = statement.where(AuditRow.at >= call.query["since"])
    if call.query["until"] is not None:
        statement = statement.where(AuditRow.at < call.query["until"])
    async with context.reading() as connection:
        return await _NEWEST_FIRST.page(connection, statement, call.query, context.cursors, _wire)


@ROUTES.get("/audit/verification", AUDITORS, VERIFICATION)
async def verify_audit(context: AdminContext, call: OperationInput) -> Any:
    """Verify that no audit entry was altered or removed. Reads the whole log."""
    async with context.reading() as connection:
        return {"first_broken": await AuditLog(context.pepper).verify(connection)}


def _wire(row: Any) -> dict[str, Any]:
    records = {name: getattr(row, name) for name in ("before", "after")}
    return {
        **{name: getattr(row, name) for name in ENTRY.members},
        "at": instant(row.at),
        **{name: None if text is None else orjson.Fragment(text) for name, text in records.items()},
    }
