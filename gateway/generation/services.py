"""What requests are served with."""

from dataclasses import dataclass, field

from gateway.admission import Limiter
from gateway.analytics import Analytics
from gateway.billing.price_book import PriceBook
from gateway.generation.engine_client import EngineClient
from gateway.generation.text_pool import TextPool
from gateway.http.drain import Drain
from gateway.metering.journal.journal import Journal
from gateway.metering.reconciliation.books_watch import BooksWatch
from gateway.metering.relay.relay import Relay
from gateway.sessions import Sessions
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.records import Principal


@dataclass(frozen=True, slots=True)
class Services:
    """Whoever makes them has loaded `prices`; the application starts them with its lifespan, and ends them.

    `relay` is None where nothing takes the journal's events away, `books` where journal and store are not compared.
    """

    engine: EngineClient
    authenticator: Authenticator[Principal]
    limiter: Limiter
    prices: PriceBook
    journal: Journal
    analytics: Analytics
    relay: Relay | None
    sessions: Sessions
    metrics: Metrics
    drain: Drain = field(default_factory=Drain)
    texts: TextPool = field(default_factory=TextPool)
    books: BooksWatch | None = None
