"""The stores and settings that operations work on."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.adapters.files import AdapterFiles
from gateway.adapters.hosting import AdapterHosting
from gateway.adapters.limits import AdapterLimits
from gateway.admission import Limiter
from gateway.analytics import Analytics
from gateway.billing.analytics_usage import AnalyticsUsage
from gateway.billing.invoicing import Invoicing
from gateway.billing.terms import NO_TERMS, InvoiceTerms, parse_tax_rate
from gateway.common.party import Party
from gateway.management.operations.change import Change
from gateway.management.operations.paging import Cursors
from gateway.metering.signature import EventSigner, SignaturePolicy
from gateway.tenancy.changes import TenantChanges
from gateway.tenancy.database import answering
from gateway.tenancy.limits import Limits

if TYPE_CHECKING:
    from gateway.config.settings import Settings


@dataclass(frozen=True, slots=True)
class AdminContext:
    """`tiers` are the classes of service that a tenant can be in, each with what binds its tenants where nothing is
    stated for them. `limiter` knows where counters stand. `declared_prices`: models whose price the settings
    state. `served_models`: those that this gateway serves; None: not known. `journal_path`: of this gateway's usage.
    `invoice_grace_s`, `gpu_hour_dollars` and `accept_unsigned_until` are settings; `invoice_terms` is made of some.
    `adapters`: None: this process takes no adapters."""

    database: AsyncEngine
    pepper: bytes = field(repr=False)
    tiers: Mapping[str, Limits]
    analytics: Analytics
    journal_path: Path
    limiter: Limiter
    invoice_grace_s: int
    gpu_hour_dollars: Decimal | None = None
    declared_prices: frozenset[str] = frozenset()
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    accept_unsigned_until: datetime | None = None
    served_models: frozenset[str] | None = None
    invoice_terms: InvoiceTerms = NO_TERMS
    adapters: AdapterHosting | None = None

    @property
    def signatures(self) -> SignaturePolicy:
        """Of usage events."""
        return SignaturePolicy(EventSigner(self.pepper), self.accept_unsigned_until)

    @property
    def invoicing(self) -> Invoicing:
        usage = AnalyticsUsage(self.analytics)
        return Invoicing(self.database, usage, grace_s=self.invoice_grace_s, terms=self.invoice_terms, now=self.now)

    @property
    def cursors(self) -> Cursors:
        return Cursors(self.pepper)

    def tenants(self, change: Change) -> TenantChanges:
        return TenantChanges(change.connection, self.pepper, lambda: change.at)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        with answering():
            async with self.database.connect() as connection:
                yield connection


def context_from(
    settings: "Settings",
    database: AsyncEngine,
    pepper: bytes,
    analytics: Analytics,
    limiter: Limiter,
    served_models: Iterable[str] | None,
    adapters: AdapterHosting | None = None,
) -> AdminContext:
    """The context of a process with these settings, on what it has opened by them."""
    return AdminContext(
        database,
        pepper,
        {name: Limits(context_tokens=stated.context_tokens) for name, stated in settings.service_classes.items()},
        analytics,
        settings.journal_path,
        limiter,
        settings.invoice_grace_s,
        settings.gpu_hour_dollars,
        frozenset(settings.prices),
        accept_unsigned_until=settings.usage_accept_unsigned_until,
        served_models=None if served_models is None else frozenset(served_models),
        invoice_terms=terms_from(settings),
        adapters=adapters,
    )


def terms_from(settings: "Settings") -> InvoiceTerms:
    """The terms of invoices, without a bill-to, which is each tenant's own."""
    issuer = Party(settings.issuer_name, settings.issuer_address, settings.issuer_tax_id)
    return InvoiceTerms(
        issuer, payment_days=settings.invoice_payment_days, tax_rate=parse_tax_rate(settings.invoice_tax_percent)
    )


def hosting_of(
    settings: "Settings", checkpoints: Mapping[str, Path], is_taken: Callable[[str], bool]
) -> AdapterHosting:
    """The hosting of adapters by the settings. `checkpoints`: of the models that take adapters. `is_taken`: whether a
    name leads to a model for all tenants."""
    stated = settings.adapters
    return AdapterHosting(
        AdapterFiles(settings.adapters_folder),
        checkpoints,
        is_taken,
        stated.max_rank,
        stated.max_bytes,
        AdapterLimits(stated.tenant_adapters, stated.tenant_bytes),
        stated.roots,
    )
