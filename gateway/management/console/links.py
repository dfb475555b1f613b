"""Links that log in to the console once, without a key to paste.

A link's token is 256 random bits. The database keeps its HMAC under the pepper, so a stolen database opens nothing. Its
session belongs to an administrator's key that exists for links alone: its plaintext is discarded, it is listed with the
others, and revoking it ends the sessions.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.management.console.tables import ConsoleLinkRow
from gateway.management.operations.admin_keys import find_admin_key, insert_admin_key
from gateway.management.operations.change import Changes
from gateway.management.operations.roles import Role
from gateway.management.operations.timestamps import instant
from gateway.tenancy.database import answering

LINK_LIFETIME = timedelta(minutes=10)
LINK_PATH = "/console/link"


@dataclass(frozen=True, slots=True)
class ConsoleLink:
    """A new link, below the gateway's address `url`. Only this value has its token."""

    url: str = field(repr=False)
    role: Role
    expires_at: datetime


class ConsoleLinks:
    """Every method raises `StoreUnavailable` if the database does not answer."""

    def __init__(
        self, database: AsyncEngine, pepper: bytes, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._database = database
        self._pepper = pepper
        self._hmac_key = hmac.digest(pepper, b"turnpike console links", "sha256")
        self._changes = Changes(database, pepper, now)
        self._now = now

    async def create(self, gateway_url: str, role: Role, owner: str, actor: str) -> ConsoleLink:
        """A link for `owner`, made by `actor` (as `Changes.change` has it). Audited, as is the key if it is new."""
        token = secrets.token_urlsafe(32)
        name = f"console links of {owner}"
        async with self._changes.change(actor, "") as change:
            key = await find_admin_key(change, name, role)
            if key is None:
                key = (await insert_admin_key(change, self._pepper, name, role)).record
            expires_at = change.at + LINK_LIFETIME
            row = {"digest": self._digest(token), "key_id": key.public_id, "expires_at": expires_at}
            await change.connection.execute(delete(ConsoleLinkRow).where(ConsoleLinkRow.expires_at <= change.at))
            await change.connection.execute(insert(ConsoleLinkRow).values(row))
            after = {"role": role.value, "expires_at": instant(expires_at)}
            change.record("create", "console_link", key.public_id, after=after)
        return ConsoleLink(f"{gateway_url.rstrip('/')}{LINK_PATH}?token={token}", role, expires_at)

    async def redeem(self, token: str) -> str | None:
        """Use up a link. The public id of its key; None: it is unknown, used or expired."""
        mine = ConsoleLinkRow.digest == self._digest(token)
        statement = delete(ConsoleLinkRow).where(mine, ConsoleLinkRow.expires_at > self._now())
        with answering():
            async with self._database.begin() as connection:
                key_id: str | None = await connection.scalar(statement.returning(ConsoleLinkRow.key_id))
        return key_id

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._hmac_key, token.encode(), "sha256")
