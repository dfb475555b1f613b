"""Administrators' keys: made and revoked on the command line, checked at the door."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.common.ids import pepper_id
from gateway.management.operations.change import Change, Changes
from gateway.management.operations.roles import Administrator, Role
from gateway.management.operations.timestamps import instant
from gateway.tenancy.changes import MAX_KEY_NAME_CHARS
from gateway.tenancy.database import answering
from gateway.tenancy.errors import InvalidName, UnknownAdminKey
from gateway.tenancy.keys import ADMIN_PREFIX, new_key
from gateway.tenancy.records import ActiveKey
from gateway.tenancy.tables import AdminKeyRow

USE_GRAIN = timedelta(minutes=1)
"""How exactly it is known when a key was last used."""


@dataclass(frozen=True, slots=True)
class AdminKeyRecord:
    """An administrator's key, without its secret."""

    public_id: str
    name: str
    role: Role
    last_four: str
    created_at: datetime
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CreatedAdminKey:
    """A new key. Its plaintext exists here and nowhere else."""

    record: AdminKeyRecord
    plaintext: str = field(repr=False)


class AdminKeyStore:
    """Every method raises `StoreUnavailable` when the database does not answer."""

    def __init__(
        self, database: AsyncEngine, pepper: bytes, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._database = database
        self._pepper = pepper
        self._changes = Changes(database, pepper, now)
        self._now = now
        self._noted: dict[str, datetime] = {}

    async def create(self, name: str, role: Role, actor: str) -> CreatedAdminKey:
        """A new key, made by `actor` (as `Changes.change` has it).

        Raises:
            InvalidName: not 1 to 128 printable characters.
        """
        async with self._changes.change(actor, "") as change:
            return await insert_admin_key(change, self._pepper, name, role)

    async def list_all(self) -> tuple[AdminKeyRecord, ...]:
        """All keys, revoked ones too, from the oldest."""
        with answering():
            async with self._database.connect() as connection:
                query = RECORDS.order_by(AdminKeyRow.created_at, AdminKeyRow.public_id)
                rows = (await connection.execute(query)).all()
        return tuple(map(admin_key_record, rows))

    async def revoke(self, public_id: str, actor: str) -> AdminKeyRecord:
        """Refuse a key from now on, for good. Revoking twice keeps the first time.

        Raises:
            UnknownAdminKey: no such key.
        """
        async with self._changes.change(actor, "") as change:
            return await mark_revoked(change, public_id)

    async def active_keys(self, public_ids: Sequence[str]) -> Mapping[str, ActiveKey[Administrator]]:
        """Those of `public_ids` that are not revoked."""
        query = select(AdminKeyRow.public_id, AdminKeyRow.digest, AdminKeyRow.name, AdminKeyRow.role).where(
            AdminKeyRow.public_id.in_(public_ids), AdminKeyRow.revoked_at.is_(None)
        )
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(query)).all()
        return {
            row.public_id: ActiveKey(row.digest, Administrator(row.public_id, row.name, Role(row.role))) for row in rows
        }

    async def note_use(self, public_id: str) -> None:
        """Remember that a key was used now, to the minute: one write a minute and key."""
        now = self._now()
        noted = self._noted.get(public_id)
        if noted is not None and now - noted < USE_GRAIN:
            return
        self._noted[public_id] = now
        statement = update(AdminKeyRow).where(AdminKeyRow.public_id == public_id).values(last_used_at=now)
        with answering():
            async with self._database.begin() as connection:
                await connection.execute(statement)


async def insert_admin_key(change: Change, pepper: bytes, name: str, role: Role) -> CreatedAdminKey:
    """
    Raises:
        InvalidName: not 1 to 128 printable characters.
    """
    if not 0 < len(name) <= MAX_KEY_NAME_CHARS or not name.isprintable():
        raise InvalidName(f"an administrator's key has a name of at most {MAX_KEY_NAME_CHARS} printable characters")
    key = new_key(ADMIN_PREFIX)
    record = AdminKeyRecord(key.public_id, name, role, key.last_four, change.at)
    row = {"digest": key.digest(pepper), "pepper_id": pepper_id(pepper), **asdict(record)}
    await change.connection.execute(insert(AdminKeyRow).values(row))
    change.record("create", "admin_key", record.public_id, after=_told(record))
    return CreatedAdminKey(record, key.plaintext)


async def mark_revoked(change: Change, public_id: str) -> AdminKeyRecord:
    """Revoking twice keeps the first time.

    Raises:
        UnknownAdminKey: no such key.
    """
    here = AdminKeyRow.public_id == public_id
    before = (await change.connection.execute(RECORDS.where(here))).first()
    if before is None:
        raise UnknownAdminKey("there is no administrator's key with that public id")
    in_use = AdminKeyRow.revoked_at.is_(None)
    await change.connection.execute(update(AdminKeyRow).where(here, in_use).values(revoked_at=change.at))
    after = admin_key_record((await change.connection.execute(RECORDS.where(here))).one())
    change.record("revoke", "admin_key", public_id, before=_told(admin_key_record(before)), after=_told(after))
    return after


async def find_admin_key(change: Change, name: str, role: Role) -> AdminKeyRecord | None:
    """The oldest key of that name and role that is not revoked."""
    query = RECORDS.where(AdminKeyRow.name == name, AdminKeyRow.role == role.value, AdminKeyRow.revoked_at.is_(None))
    found = (await change.connection.execute(query.order_by(AdminKeyRow.created_at).limit(1))).first()
    return None if found is None else admin_key_record(found)


def admin_key_record(row: Any) -> AdminKeyRecord:
    public_id, name, role, *rest = row
    return AdminKeyRecord(public_id, name, Role(role), *rest)


def _told(record: AdminKeyRecord) -> dict[str, Any]:
    return {"name": record.name, "role": record.role.value, "revoked_at": instant(record.revoked_at)}


RECORDS = select(*(getattr(AdminKeyRow, each.name) for each in fields(AdminKeyRecord)))
"""Rows for `admin_key_record`."""
