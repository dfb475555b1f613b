"""Opens the store that a URL names."""

import importlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gateway.analytics.absent import AbsentClickHouse
from gateway.analytics.errors import InvalidAnalyticsURL
from gateway.analytics.store import Analytics
from gateway.extras import is_installed, require

DEFAULT_PORTS = {"http": 8123, "https": 8443}
DEFAULT_USER = DEFAULT_DATABASE = "default"
MEMORY_URL = "chdb://memory"


def open_analytics(url: str) -> Analytics:
    """The store at `http(s)://user:password@host:port/database`, `chdb:///absolute/folder` or `chdb://memory`. Connects
    on first use; the caller closes it. Call it on the event loop that uses the store.

    Without the extra of the embedded engine, that store is always away.

    Raises:
        InvalidAnalyticsURL: the URL has another form.
        MissingExtra: the client of ClickHouse servers is not installed.
    """
    scheme = url.partition("://")[0]
    # The drivers are slow to import, and a gateway needs one of them.
    if scheme in DEFAULT_PORTS:
        require("clickhouse", "a ClickHouse server")
        from gateway.analytics.clickhouse import ClickHouse, ServerAddress

        parts = urlsplit(url)
        try:
            port = parts.port or DEFAULT_PORTS[scheme]
        except ValueError:
            raise InvalidAnalyticsURL("the port of the ClickHouse URL is not a port") from None
        database = unquote(parts.path).strip("/")
        if not parts.hostname or "/" in database or parts.query or parts.fragment:
            raise InvalidAnalyticsURL("a ClickHouse URL is http(s)://user:password@host:port/database")
        user, password = unquote(parts.username or DEFAULT_USER), unquote(parts.password or "")
        return ClickHouse(ServerAddress(scheme, parts.hostname, port, user, password, database or DEFAULT_DATABASE))
    folder = unquote(url.removeprefix("chdb://"))
    if url != MEMORY_URL and (scheme != "chdb" or not folder.startswith("/") or "?" in folder):
        raise InvalidAnalyticsURL("must be http(s)://user:password@host:port/database or chdb:///absolute/folder")
    if not is_installed("embedded"):
        return AbsentClickHouse()
    from gateway.analytics.embedded import EmbeddedClickHouse

    return EmbeddedClickHouse(None if url == MEMORY_URL else Path(folder))


def is_embedded(url: str) -> bool:
    """Whether the store at `url` runs in the process that opens it."""
    return url.startswith("chdb://")


def preload(url: str) -> None:
    """Import the library of the store at `url`. The embedded engine is a library of 500 MB whose import blocks the
    interpreter for a good part of a second, so it is imported before the first request."""
    if is_embedded(url) and is_installed("embedded"):
        importlib.import_module("gateway.analytics.embedded")
        importlib.import_module("chdb")
