"""The audit log: who changed what, when, from what to what. Lines are added and never changed.

Each line's digest is an HMAC under the pepper of the line and of the digest before it, so that a writer of the
database who does not know the pepper cannot alter, insert or remove a line undetected. (Truncation of the log is
detected only by comparison with its former length.)
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.management.operations.tables import AuditRow
from gateway.management.operations.timestamps import instant

_FIRST = bytes(32)
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of one thing. `before` is None for what was created. Neither holds a secret."""

    action: str
    resource: str
    resource_id: str
    tenant_id: str | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


class AuditLog:
    """Adds to the log, and checks it. The caller sees to it that one transaction adds at a time."""

    def __init__(self, pepper: bytes) -> None:
        self._key = hmac.digest(pepper, b"turnpike audit log", "sha256")

    async def append(
        self, connection: AsyncConnection, actor: str, request_id: str, at: datetime, entries: Sequence[Entry]
    ) -> None:
        if not entries:
            return
        last = (
            await connection.execute(
                select(AuditRow.sequence, AuditRow.digest).order_by(AuditRow.sequence.desc()).limit(1)
            )
        ).first()
        sequence, digest = (0, _FIRST) if last is None else (last.sequence, last.digest)
        rows = []
        for entry in entries:
            sequence += 1
            row = {
                "sequence": sequence,
                "at": at,
                "actor": actor,
                "request_id": request_id,
                "action": entry.action,
                "resource": entry.resource,
                "resource_id": entry.resource_id,
                "tenant_id": entry.tenant_id,
                "before": _text(entry.before),
                "after": _text(entry.after),
            }
            digest = self._digest(digest, row)
            rows.append(row | {"digest": digest})
        await connection.execute(insert(AuditRow), rows)

    async def verify(self, connection: AsyncConnection) -> int | None:
        """The sequence of the first line that is not as it was written, or that is missing; None: all are there."""
        expected, digest = 1, _FIRST
        while True:
            query = select(*AuditRow.__table__.columns).where(AuditRow.sequence >= expected)
            rows = (await connection.execute(query.order_by(AuditRow.sequence).limit(_PAGE))).mappings().all()
            for row in rows:
                digest = self._digest(digest, dict(row))
                if row["sequence"] != expected or row["digest"] != digest:
                    return expected
                expected += 1
            if len(rows) < _PAGE:
                return None

    def _digest(self, previous: bytes, row: Mapping[str, Any]) -> bytes:
        told = [
            row["sequence"],
            instant(row["at"]),
            *(row[name] for name in ("actor", "request_id", "action", "resource", "resource_id", "tenant_id")),
            row["before"],
            row["after"],
        ]
        return hmac.digest(self._key, previous + orjson.dumps(told), "sha256")


def _text(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
