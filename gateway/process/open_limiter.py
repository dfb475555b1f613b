"""From settings to a limiter."""

from gateway.admission.limiter import Limiter
from gateway.admission.local_share import LocalShare
from gateway.admission.memory import MemoryStore
from gateway.config.settings import Settings


def open_limiter(settings: Settings, replica: str) -> Limiter:
    """Limits in Redis where the settings name one, else in this process. Connects on first use; the caller closes it.
    To be called on the event loop that it is used on. `replica`: a lasting name of this process."""
    if settings.redis_url is None:
        return Limiter(MemoryStore())

    # The client takes a while to import, and few need it.
    from gateway.admission.redis_store import RedisStore

    shared = RedisStore.open(settings.redis_url.get_secret_value(), replica)
    return Limiter(LocalShare(shared, settings.limits_local_share))
