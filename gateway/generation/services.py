"""The services that requests use."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.adapters.book import AdapterBook, no_adapters
from gateway.admission import Limiter
from gateway.analytics import Analytics
from gateway.batches.batches import Batches
from gateway.billing.price_book import PriceBook
from gateway.files.store import FileStore
from gateway.generation.engine_client import EngineClient
from gateway.generation.text_pool import TextPool
from gateway.http.drain import Drain
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.usage_log import UsageLog
from gateway.metering.reconciliation.reconciliation_monitor import ReconciliationMonitor
from gateway.metering.relay.relay import Relay
from gateway.refusals.refusal_log import RefusalLog
from gateway.sessions import Sessions
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.key_watch import KeyWatch
from gateway.tenancy.records import Principal


class Upstream(Protocol):
    """A model that another server runs, and its health: `up`, `down` or `misconfigured`."""

    @property
    def name(self) -> str: ...

    @property
    def health(self) -> str: ...

    def start(self) -> None:
        """Begin health checks, on the event loop."""
        ...

    async def aclose(self) -> None:
        """End them, and close the connections."""
        ...


class AllMetrics(Protocol):
    """The metrics of all processes that share the port."""

    async def render(self) -> bytes:
        """The body of `/metrics`."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """Created with `prices` and `adapters` loaded. The application starts and closes them with its lifespan.

    `relay`: None if no destination of usage events is configured. `books`: None if journal and store are not compared.
    `upstreams`: of the models of `engine`, those that other servers run. `all_metrics`: None if no other process serves
    the port. `usage_log`: records the usage of requests; None: the journal does. `files`, `batches`: None if there
    are none.
    """

    engine: EngineClient
    authenticator: Authenticator[Principal]
    key_watch: KeyWatch
    limiter: Limiter
    prices: PriceBook
    journal: Journal
    analytics: Analytics
    relay: Relay | None
    sessions: Sessions
    metrics: Metrics
    refusals: RefusalLog
    drain: Drain = field(default_factory=Drain)
    texts: TextPool = field(default_factory=TextPool)
    books: ReconciliationMonitor | None = None
    adapters: AdapterBook = field(default_factory=no_adapters)
    upstreams: Sequence[Upstream] = ()
    all_metrics: AllMetrics | None = None
    usage_log: UsageLog | None = None
    files: FileStore | None = None
    batches: Batches | None = None
