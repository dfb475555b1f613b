"""Constructs the limiter from settings."""

from gateway.admission.limiter import Limiter
from gateway.admission.local_share import LocalShare
from gateway.admission.memory import MemoryStore
from gateway.config.settings import Settings
from gateway.extras import require


def open_limiter(settings: Settings, replica: str) -> Limiter:
    """A limiter on the settings' Redis, or in this process without one. It connects on first use; the caller closes it.
    Must be called on the event loop that uses it. `replica`: permanent name of this process.

    Raises:
        MissingExtra: Redis' client is not installed.
    """
    if settings.redis_url is None:
        return Limiter(MemoryStore())

    require("redis", "redis_url")
    # Imported on demand: the client is slow to import and optional.
    from gateway.admission.redis_store import RedisStore

    shared = RedisStore.open(settings.redis_url.get_secret_value(), replica)
    return Limiter(LocalShare(shared, settings.limits_local_share))
