"""From settings to sessions."""

from gateway.config.settings import Settings
from gateway.sessions.memory import MemorySessionStore
from gateway.sessions.sessions import Sessions


def open_sessions(settings: Settings) -> Sessions:
    """In Redis where the settings name one, else in this process. Connects on first use; the caller closes it. To be
    called on the event loop that it is used on."""
    if settings.sessions_redis_url is None:
        return Sessions(MemorySessionStore(), wait_s=settings.session_wait_s)

    # The client takes a while to import, and few need it.
    from gateway.sessions.redis_store import RedisSessionStore

    store = RedisSessionStore.open(settings.sessions_redis_url.get_secret_value())
    return Sessions(store, wait_s=settings.session_wait_s)
