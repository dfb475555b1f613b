"""Constructs the services from settings."""

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.adapters.book import AdapterBook
from gateway.adapters.hosting import AdapterHosting
from gateway.adapters.queries import AdapterStore
from gateway.admission.restoring import restore_spending
from gateway.analytics import Analytics, open_analytics
from gateway.analytics.opening import is_embedded
from gateway.analytics.prepared import PreparedAnalytics
from gateway.batches.batches import Batches
from gateway.batches.store import BatchStore
from gateway.billing.credit import CreditStore
from gateway.billing.prepaid import PrepaidKeys
from gateway.billing.price_book import PriceBook
from gateway.billing.price_store import PriceStore
from gateway.common.timestamps import unix_ms
from gateway.config.safety import share_a_redis
from gateway.config.service_classes import unserved_tiers
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.files.contents import LocalContents
from gateway.files.store import FileLimits, FileStore
from gateway.generation.engine_client import EngineClient
from gateway.generation.health import is_ready
from gateway.generation.route_stage import model_names
from gateway.generation.services import Services
from gateway.http.drain import Drain
from gateway.management.http.app import AdminApp
from gateway.management.operations.adapter_uploads import sweep_at_start
from gateway.management.operations.change import Changes
from gateway.management.operations.context import context_from, hosting_of
from gateway.management.operations.prices import declare_prices
from gateway.metering.journal.journal import Journal
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.metrics import BooksCollector, RelayCollector
from gateway.metering.reconciliation.reconciliation_monitor import ReconciliationMonitor
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.metering.relay.destination import Destination
from gateway.metering.relay.kafka_destination import KafkaDestination
from gateway.metering.relay.relay import Relay
from gateway.metering.signature import EventSigner, SignaturePolicy
from gateway.process.catalog import DEFAULT_PRICES
from gateway.process.open_limiter import open_limiter
from gateway.process.open_sessions import open_sessions
from gateway.refusals.metrics import RefusalCollector
from gateway.refusals.refusal_log import RefusalLog
from gateway.sessions.metrics import SessionCollector
from gateway.telemetry.health import HealthCollector
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import Authenticator, TenantStore
from gateway.tenancy.key_watch import KeyWatch
from gateway.tenancy.records import Principal
from gateway.tenancy.tiers import count_tenants_by_tier
from gateway.upstreams.fleet import Fleet, LocalEngine
from gateway.upstreams.metrics import UpstreamCollector
from gateway.upstreams.opening import open_upstreams

FREE = (Decimal(0), Decimal(0), Decimal(0))
"""Dollars per million tokens of input, cached input and output."""

_log = structlog.get_logger("turnpike.serve")


class Unpriced(OperatorError):
    """A served model has no price."""


async def open_services(
    settings: Settings,
    local: LocalEngine | None,
    database: AsyncEngine,
    pepper: bytes,
    *,
    shares_engine: bool = False,
) -> tuple[Services, AdminApp]:
    """The services and the admin API, on the event loop that serves them. The application starts and stops both; the
    caller owns the database. `local`: the loaded engine; None if all models are upstreams. `shares_engine`: the metrics
    are without those of `local`, which several processes have.

    Raises:
        OperatorError: a served model has no price, the journal cannot be written, or the database is unavailable.
    """
    upstreams = open_upstreams(settings)
    engine: LocalEngine = local if local is not None and not upstreams else Fleet(local, upstreams)
    store = TenantStore(database, pepper)
    await _warn_of_refused(settings, store, database)
    prices = await open_prices(settings, engine.models, database, Changes(database, pepper))
    analytics = open_usage_store(settings)
    journal = open_journal(settings)
    signatures = SignaturePolicy(EventSigner(pepper), settings.usage_accept_unsigned_until)
    relay = Relay(journal, _destination(settings, analytics, signatures.signer))
    limiter = open_limiter(settings, journal.source)
    sessions = open_sessions(settings)
    if share_a_redis(settings):
        _log.warning("limits and sessions share the memory of one Redis: set sessions_redis_url to another one")
    metrics = Metrics(Fleet(None, upstreams).stats if shares_engine else engine.stats, limiter.counts)
    metrics.registry.register(RelayCollector(journal, relay))
    metrics.registry.register(SessionCollector(sessions.counts))
    books, drain = open_books(settings, analytics, signatures), Drain()
    if books is not None:
        metrics.registry.register(BooksCollector(books))
    health = HealthCollector(lambda: not drain.begun and is_ready(engine, journal), lambda: engine.health)
    metrics.registry.register(health)
    if upstreams:
        metrics.registry.register(UpstreamCollector(upstreams))
    refusals = RefusalLog(analytics, journal.source)
    metrics.registry.register(RefusalCollector(refusals))
    prepaid_since_ms = {id: unix_ms(each.since) for id, each in (await CreditStore(database).all_prepaid()).items()}
    await restore_spending(limiter, journal, await store.lineages(), prepaid_since_ms)
    hosting = adapter_hosting(settings, engine)
    await open_adapters(hosting, Changes(database, pepper))
    adapters = AdapterBook(AdapterStore(database), hosting.files)
    await adapters.load()
    keys = PrepaidKeys(store, database, journal.follow_credit)
    authenticator: Authenticator[Principal] = Authenticator(keys, pepper, revoked=store)
    files = open_files(settings, database)
    services = Services(
        engine=engine,
        authenticator=authenticator,
        key_watch=KeyWatch(authenticator.why_ended),
        limiter=limiter,
        prices=prices,
        journal=journal,
        analytics=analytics,
        relay=relay,
        sessions=sessions,
        metrics=metrics,
        refusals=refusals,
        drain=drain,
        books=books,
        adapters=adapters,
        upstreams=upstreams,
        files=files,
        batches=Batches(
            BatchStore(database), keys, settings.files_folder / "batches", settings.batches, settings.max_body_bytes
        ),
    )
    return services, AdminApp(context_from(settings, database, pepper, analytics, limiter, engine.models, hosting))


def adapter_hosting(settings: Settings, engine: EngineClient) -> AdapterHosting:
    """The hosting of tenants' adapters on a loaded engine: of its models that take adapters."""
    details = {name: model.details for name, model in engine.models.items() if engine.adapter_slots(name)}
    checkpoints = {name: each.path for name, each in details.items() if each is not None}
    return hosting_of(settings, checkpoints, model_names(engine, settings).is_taken)


async def open_adapters(hosting: AdapterHosting, changes: Changes) -> None:
    """Remove what an ended process left in the folder of adapters.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    if hosting.files.folder.is_dir() and (removed := await sweep_at_start(changes, hosting)):
        _log.info("removed files of adapters that nothing names", folders=removed)


def open_files(settings: Settings, database: AsyncEngine) -> FileStore:
    """The files of tenants."""
    stated = settings.files
    contents = LocalContents(settings.files_folder / "contents", stated.min_free)
    return FileStore(database, contents, FileLimits(stated.tenant_files, stated.tenant_bytes))


async def open_prices(
    settings: Settings, models: Iterable[str], database: AsyncEngine, changes: Changes, *, free: bool = False
) -> PriceBook:
    """Put the settings' prices into effect and load the price book. The default models have default prices; any other
    without a price gets the price 0 if `free`.

    Raises:
        Unpriced: a served model has no price.
    """
    for version in await declare_prices(changes, settings.prices):
        _log.info("price takes effect", version=version.id)
    book = PriceBook(PriceStore(database))
    await book.load()
    unpriced = book.unpriced(models, datetime.now(UTC))
    known = {} if settings.served_names else DEFAULT_PRICES
    if missing := [name for name in unpriced if name not in known and not free]:
        name = missing[0]
        raise Unpriced(
            f"the model {name} has no price: turnpike price set {name} --input DOLLARS --output DOLLARS "
            "(or, without bills, turnpike serve --free)"
        )
    if unpriced:
        for version in await declare_prices(changes, {name: known.get(name, FREE) for name in unpriced}):
            _log.info("price takes effect", version=version.id)
        await book.load()
    return book


def open_journal(settings: Settings) -> Journal:
    """Raises: JournalUnavailable, JournalInUse."""
    return Journal(
        settings.journal_path,
        interval_ms=settings.journal_interval_ms,
        min_free_bytes=settings.journal_min_free,
        retention_days=settings.journal_retention_days,
    )


def open_usage_store(settings: Settings) -> Analytics:
    """The usage store; it connects on first use."""
    return PreparedAnalytics(open_analytics(settings.analytics_url.get_secret_value()))


def open_books(settings: Settings, analytics: Analytics, signatures: SignaturePolicy) -> ReconciliationMonitor | None:
    """The monitor; None if sinks deliver the journal's events to another store than this gateway's."""
    if settings.kafka_url is not None and is_embedded(settings.analytics_url.get_secret_value()):
        _log.warning("usage goes to Kafka and analytics_url names no server: reconciliation is off")
        return None
    return ReconciliationMonitor(settings.journal_path, analytics, signatures, every_s=settings.reconcile_every_s)


def _destination(settings: Settings, analytics: Analytics, signer: EventSigner) -> Destination:
    if settings.kafka_url is None:
        return AnalyticsDestination(analytics, signer)
    return KafkaDestination(KafkaCluster.open(settings.kafka_url.get_secret_value()), settings.kafka_topic, signer)


async def _warn_of_refused(settings: Settings, store: TenantStore, database: AsyncEngine) -> None:
    if strangers := await store.count_keys_of_other_peppers():
        _log.warning("keys made under another pepper are refused; see turnpike doctor", keys=strangers)
    if unserved := unserved_tiers(settings.service_classes, await count_tenants_by_tier(database)):
        _log.warning("requests of tenants whose tier is no service class are refused", tenants_by_tier=unserved)
