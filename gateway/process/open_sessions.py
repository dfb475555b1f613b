"""Constructs the session store from settings."""

from gateway.config.settings import Settings
from gateway.extras import require
from gateway.sessions.memory import MemorySessionStore
from gateway.sessions.sessions import Sessions


def open_sessions(settings: Settings) -> Sessions:
    """Sessions in the settings' Redis, or in this process without one. It connects on first use; the caller closes it.
    Must be called on the event loop that uses it.

    Raises:
        MissingExtra: Redis' client is not installed.
    """
    if settings.sessions_redis_url is None:
        return Sessions(MemorySessionStore(), wait_s=settings.session_wait_s)

    require("redis", "sessions_redis_url")
    # Imported on demand: the client is slow to import and optional.
    from gateway.sessions.redis_store import RedisSessionStore

    store = RedisSessionStore.open(settings.sessions_redis_url.get_secret_value())
    return Sessions(store, wait_s=settings.session_wait_s)
