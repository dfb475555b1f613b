"""Names of the actors in the audit log."""

from collections.abc import Collection, Mapping

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.tenancy.tables import AdminKeyRow


async def actor_names(connection: AsyncConnection, actors: Collection[str]) -> Mapping[str, str]:
    """By actor: the name of the administrator's key. Actors without a key (`command-line:...`, `settings`) have their
    own text as a name."""
    query = select(AdminKeyRow.public_id, AdminKeyRow.name).where(AdminKeyRow.public_id.in_(sorted(set(actors))))
    keys = {row.public_id: row.name for row in await connection.execute(query)}
    return {actor: keys.get(actor, actor) for actor in actors}
