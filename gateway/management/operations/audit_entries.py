"""Reads of the audit log. Only changes write to it."""

from typing import Any

import orjson
from sqlalchemy import select

from gateway.management.operations.audit import AuditLog
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import AUDITORS
from gateway.management.operations.routes import OperationInput, Route
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
        "sequence": Member(Integer(1), "1, 2, 3, without a gap."),
        "at": Instant(),
        "actor": Member(
            _WORD, "An administrator's key, by its public id; `command-line:` and the user's name; or `settings`."
        ),
        "request_id": Text(128, 0),
        "action": Text(64),
        "resource": _WORD,
        "resource_id": Text(128),
        "tenant_id": nullable(TENANT_ID),
        "before": Member(Anything(), "Null for what was created."),
        "after": Anything(),
    },
)
VERIFICATION = answer(
    "AuditVerification",
    {"first_broken": nullable(Integer(1), "The first line that is altered, or missing; null: none is.")},
)


class AuditEntries:
    """Handlers."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._log = AuditLog(context.pepper)

    async def list_all(self, call: OperationInput) -> Any:
        statement = select(*AuditRow.__table__.columns)
        for name in _EQUAL_TO:
            if call.query[name] is not None:
                statement = statement.where(getattr(AuditRow, name) == call.query[name])
        if call.query["since"] is not None:
            statement = statement.where(AuditRow.at >= call.query["since"])
        if call.query["until"] is not None:
            statement = statement.where(AuditRow.at < call.query["until"])
        async with self._context.reading() as connection:
            return await _NEWEST_FIRST.page(connection, statement, call.query, self._context.cursors, _wire)

    async def verify(self, call: OperationInput) -> Any:
        async with self._context.reading() as connection:
            return {"first_broken": await self._log.verify(connection)}


def _wire(row: Any) -> dict[str, Any]:
    return {
        "sequence": row.sequence,
        "at": instant(row.at),
        "actor": row.actor,
        "request_id": row.request_id,
        "action": row.action,
        "resource": row.resource,
        "resource_id": row.resource_id,
        "tenant_id": row.tenant_id,
        "before": None if row.before is None else orjson.Fragment(row.before),
        "after": None if row.after is None else orjson.Fragment(row.after),
    }


def audit_routes(context: AdminContext) -> list[Route]:
    entries = AuditEntries(context)
    filters = {
        "actor": optional(_WORD),
        "action": optional(Text(64)),
        "resource": optional(_WORD),
        "resource_id": optional(Text(128)),
        "tenant_id": optional(TENANT_ID),
        "since": optional(Instant()),
        "until": optional(Instant(), "Not included."),
    }
    return [
        Route(
            name="listAudit",
            about="List who changed what, the newest first.",
            method="GET",
            path="/audit",
            allowed=AUDITORS,
            query={**PAGE_QUERY, **filters},
            answer=page_of("AuditPage", ENTRY),
            read=entries.list_all,
        ),
        Route(
            name="verifyAudit",
            about="Check that no line of the audit log was altered or taken out. Reads all of it.",
            method="GET",
            path="/audit/verification",
            allowed=AUDITORS,
            answer=VERIFICATION,
            read=entries.verify,
        ),
    ]
