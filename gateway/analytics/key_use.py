"""When keys were last used, and what they spent since an instant. Both come from the hourly rollup."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gateway.analytics.store import Analytics
from gateway.analytics.sums import Grain, instant


@dataclass(frozen=True, slots=True)
class KeyUse:
    """`last_used_ms`: start of the last hour with a request of the key, Unix milliseconds."""

    last_used_ms: int
    spent_nanodollars: int


async def key_use(
    analytics: Analytics, key_ids: Collection[str], tenant_ids: Collection[str], *, since_ms: int
) -> Mapping[str, KeyUse]:
    """By public id, for those of `key_ids` that were ever used. `tenant_ids`: the tenants of the keys, which the index
    begins with. `since_ms`: the spending counts from this hour on."""
    rows = await analytics.query(
        f"""
        SELECT key_id, toUnixTimestamp(max(bucket)) * 1000,
            sumIf(cost_nanodollars, bucket >= {instant("since_ms")})
        FROM {Grain.HOUR.table}
        WHERE has(splitByChar(',', {{tenant_ids:String}}), tenant_id)
            AND has(splitByChar(',', {{key_ids:String}}), key_id)
        GROUP BY key_id HAVING sum(events) != 0
        """,
        {"key_ids": ",".join(key_ids), "tenant_ids": ",".join(tenant_ids), "since_ms": since_ms},
    )
    return {key_id: KeyUse(int(last_ms), int(spent)) for key_id, last_ms, spent in rows}
