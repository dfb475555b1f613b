"""Requests that may be sent again: `Idempotency-Key`.

The answer is written in the transaction of its effect, so there is never one without the other, whatever crashes. As
changes are made one at a time, the second of two equal requests finds the first's answer. It is kept for a day, for the
administrator's key that sent it. Secrets are not kept: where the first answer held one, a repetition holds null.
"""

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import delete, insert, select

from gateway.http.errors import APIError, invalid
from gateway.management.operations.change import Change
from gateway.management.operations.tables import IdempotentRow

HEADER = "Idempotency-Key"
MAX_CHARS = 255
KEPT = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Repetition:
    """A request under a key. `fingerprint` is of all that decides its effect."""

    actor: str
    key: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    status: int
    body: bytes


def repetition_of(
    actor: str, header: str | None, method: str, path: str, query: str, body: object
) -> Repetition | None:
    """None: the client did not ask for it.

    Raises:
        APIError: 400, the header is not 1 to 255 visible ASCII characters.
    """
    if header is None:
        return None
    if not (0 < len(header) <= MAX_CHARS and all("!" <= char <= "~" for char in header)):
        raise invalid(HEADER, f"{HEADER} must be 1 to {MAX_CHARS} visible ASCII characters.")
    told = orjson.dumps([method, path, query, body], option=orjson.OPT_SORT_KEYS)
    return Repetition(actor, header, hashlib.sha256(told).digest())


async def kept_answer(change: Change, repetition: Repetition) -> KeptAnswer | None:
    """The answer to the first of these requests, if there was one within a day.

    Raises:
        APIError: 409, the key stands for another request.
    """
    await change.connection.execute(delete(IdempotentRow).where(IdempotentRow.created_at < change.at - KEPT))
    query = select(IdempotentRow.fingerprint, IdempotentRow.status, IdempotentRow.answer).where(
        IdempotentRow.actor == repetition.actor, IdempotentRow.key == repetition.key
    )
    row = (await change.connection.execute(query)).first()
    if row is None:
        return None
    if row.fingerprint != repetition.fingerprint:
        raise APIError(409, f"This {HEADER} was used for another request.", param=HEADER, code="idempotency_key_reused")
    return KeptAnswer(row.status, row.answer.encode())


async def keep(change: Change, repetition: Repetition, status: int, answer: Any) -> None:
    """Keep an answer, which holds no secret any more."""
    row = {
        "actor": repetition.actor,
        "key": repetition.key,
        "fingerprint": repetition.fingerprint,
        "status": status,
        "answer": orjson.dumps(answer).decode(),
        "created_at": change.at,
    }
    await change.connection.execute(insert(IdempotentRow).values(row))
