"""URLs of the stores: which are valid, and the form that their drivers take."""

import re
from pathlib import Path
from urllib.parse import urlsplit

from gateway.errors import OperatorError

_ASYNC_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}


def normalise_database_url(url: str) -> str:
    """The URL with the async driver of the store (a plain `postgresql://` selects another driver).

    libpq's `sslmode=` becomes asyncpg's `ssl=`.

    Raises:
        ValueError: another database or driver, or an SQLite database that is not a file.
    """
    scheme, separator, rest = url.partition("://")
    driver = _ASYNC_DRIVERS.get(scheme)
    if not separator or driver is None:
        raise ValueError("must be an sqlite:///path or a postgresql://user:password@host/database URL")
    if driver == "sqlite+aiosqlite":
        path = rest.partition("?")[0].removeprefix("/")
        if path in {"", ":memory:"}:
            raise ValueError("an SQLite database must be a file, as in sqlite:////var/lib/turnpike/turnpike.db")
        return f"{driver}://{rest}"
    before, question, query = rest.partition("?")
    query = re.sub("(^|&)sslmode=", r"\1ssl=", query)
    return f"{driver}://{before}{question}{query}"


def is_redis_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is not a number
    except ValueError:
        return False
    database = parts.path.removeprefix("/")
    return parts.scheme == "unix" or (
        parts.scheme in {"redis", "rediss"} and (not database or (database.isascii() and database.isdecimal()))
    )


def require_sqlite_file(url: str) -> None:
    """Before a command that only reads: it should create no database.

    Raises:
        OperatorError: `url` names an SQLite database that does not exist.
    """
    driver, _, path = url.partition(":///")
    if driver.startswith("sqlite") and not Path(path).exists():
        raise OperatorError(
            f"there is no database {path}: turnpike serve and turnpike tenant create make one; see --data-dir"
        )
