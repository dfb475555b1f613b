"""The services that the console's pages read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from gateway.adapters.book import AdapterBook, no_adapters
from gateway.admission import Limiter
from gateway.analytics import Analytics
from gateway.billing.price_book import PriceBook
from gateway.config.settings import Settings
from gateway.generation.engine_client import EngineClient
from gateway.generation.service_classes import TierClasses
from gateway.generation.services import Upstream
from gateway.management.console.scheduler_figures import Looks
from gateway.management.console.sessions import ConsoleSessions
from gateway.management.operations.context import AdminContext
from gateway.management.operations.operations import Operations
from gateway.metering.journal.journal import Journal
from gateway.metering.reconciliation.reconciliation_monitor import ReconciliationMonitor
from gateway.metering.relay.relay import Relay
from gateway.routing.names import ModelNames
from gateway.routing.score import ComplexityScore
from gateway.sessions import Sessions
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.records import Principal


@dataclass(frozen=True, slots=True)
class ConsoleContext:
    """`operations` are the admin API's, `admin` what those work on. `chat` is the endpoint of `/v1/chat/completions`,
    for a `TenantProxy` to lead to. `registry`: the metrics of this process. `looks`: samples of the scheduler, which
    all its viewers share. `upstreams`: by name, the models that other servers run."""

    operations: Operations
    admin: AdminContext = field(repr=False)
    engine: EngineClient
    limiter: Limiter
    classes: TierClasses
    names: ModelNames
    score: ComplexityScore
    prices: PriceBook
    journal: Journal
    analytics: Analytics
    relay: Relay | None
    books: ReconciliationMonitor | None
    sessions: Sessions
    chat: ASGIApp
    authenticator: Authenticator[Principal]
    console_sessions: ConsoleSessions
    registry: CollectorRegistry
    settings: Settings
    adapters: AdapterBook = field(default_factory=no_adapters)
    upstreams: Mapping[str, Upstream] = field(default_factory=dict)
    looks: Looks = field(default_factory=Looks)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
