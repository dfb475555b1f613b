"""Limits of a tenant on its adapters: their number and their bytes."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.adapters.errors import AdapterLimitExceeded
from gateway.adapters.tables import AdapterLimitsRow, AdapterRow, AdapterUploadRow, AdapterVersionRow
from gateway.tenancy.policies import InvalidPolicy, PolicyTable

MAX_OPEN_UPLOADS = 16
"""Of one tenant."""


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """A tenant's own limits on its adapters; None: as the settings. All versions count towards `max_bytes`.

    Raises:
        InvalidPolicy: a limit is below 0.
    """

    max_adapters: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_adapters", "max_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise InvalidPolicy(name, f"{name} must not be below 0")

    def over(self, default: "AdapterLimits") -> "AdapterLimits":
        """These limits, and those of `default` where none is stated."""
        return AdapterLimits(
            default.max_adapters if self.max_adapters is None else self.max_adapters,
            default.max_bytes if self.max_bytes is None else self.max_bytes,
        )


ADAPTER_LIMITS = PolicyTable(AdapterLimits, AdapterLimitsRow)
"""Read when an adapter is uploaded, so no `Principal` has it."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Use of the limits by a tenant. `bytes`: of all versions of its adapters. `uploads`: that are open."""

    adapters: int
    bytes: int
    uploads: int
    upload_bytes: int


async def adapter_use(connection: AsyncConnection, tenant_id: str) -> AdapterUse:
    """The adapters and uploads of a tenant now."""
    of_tenant = (AdapterRow.tenant_id == tenant_id, AdapterRow.deleted_at.is_(None))
    adapters = await connection.scalar(select(func.count()).select_from(AdapterRow).where(*of_tenant))
    stored = await connection.scalar(
        select(func.sum(AdapterVersionRow.bytes))
        .join(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
        .where(*of_tenant, AdapterVersionRow.deleted_at.is_(None))
    )
    files = (
        await connection.scalars(select(AdapterUploadRow.files).where(AdapterUploadRow.tenant_id == tenant_id))
    ).all()
    upload_bytes = sum(each["bytes"] for named in files for each in named.values())
    # PostgreSQL sums integers to a decimal number, exactly.
    return AdapterUse(adapters or 0, int(stored or 0), len(files), upload_bytes)


async def require_room(
    connection: AsyncConnection, tenant_id: str, default: AdapterLimits, *, is_new: bool, more_bytes: int
) -> None:
    """Check that a tenant may have a further version. `is_new`: under a new name. `default`: limits of the settings.
    The caller holds a lock on the tenant.

    Raises:
        AdapterLimitExceeded: it would have too many adapters, bytes or uploads.
    """
    use = await adapter_use(connection, tenant_id)
    limits = (await ADAPTER_LIMITS.read(connection, tenant_id)).over(default)
    if is_new and limits.max_adapters is not None and use.adapters >= limits.max_adapters:
        raise AdapterLimitExceeded(
            f"the tenant has {use.adapters} adapters, the limit is {limits.max_adapters}", "name"
        )
    total = use.bytes + use.upload_bytes + more_bytes
    if limits.max_bytes is not None and total > limits.max_bytes:
        raise AdapterLimitExceeded(
            f"the tenant's adapters and uploads would take {total} bytes, the limit is {limits.max_bytes}", "files"
        )
    if use.uploads >= MAX_OPEN_UPLOADS:
        raise AdapterLimitExceeded(f"the tenant has {use.uploads} open uploads, the limit is {MAX_OPEN_UPLOADS}")
