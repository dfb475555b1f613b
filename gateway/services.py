"""What requests are served with."""

from dataclasses import dataclass, field

from gateway.admin.app import AdminApp
from gateway.admission import Limiter
from gateway.analytics import Analytics
from gateway.api.engine_client import EngineClient
from gateway.api.text_pool import TextPool
from gateway.billing.price_book import PriceBook
from gateway.drain import Drain
from gateway.metering.books_watch import BooksWatch
from gateway.metering.journal import Journal
from gateway.metering.relay import Relay
from gateway.sessions import Sessions
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.records import Principal


@dataclass(frozen=True, slots=True)
class Services:
    """Whoever makes them has loaded `prices`; the application starts them with its lifespan, and ends them.

    `relay` is None where nothing takes the journal's events away, `admin` where there is no admin API, `books` where
    nobody looks whether they agree.
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
    admin: AdminApp | None = None
    drain: Drain = field(default_factory=Drain)
    texts: TextPool = field(default_factory=TextPool)
    books: BooksWatch | None = None
