"""Tiers of the tenants."""

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy.database import answering
from gateway.tenancy.records import Tier
from gateway.tenancy.tables import TenantRow


async def count_tenants_by_tier(database: AsyncEngine) -> Mapping[Tier, int]:
    """Number of active tenants in each tier.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    query = select(TenantRow.tier, func.count()).where(TenantRow.disabled_at.is_(None)).group_by(TenantRow.tier)
    with answering():
        async with database.connect() as connection:
            rows = (await connection.execute(query)).all()
    return {row[0]: row[1] for row in rows}
