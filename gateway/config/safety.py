"""Unsafe settings: those that the program rejects at the start, and those that it warns of."""

import stat
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr

from gateway.config.setting_sources import CONFIG_FILE
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.urls import StoreUrl

PLACEHOLDERS = (
    *("change", "replace", "example", "placeholder", "default", "insecure", "secret", "pepper", "password"),
    *("turnpike", "12345678", "abcdefgh"),
)
"""Words of placeholders in documentation. A random pepper contains none of them."""

MIN_DISTINCT = 8
"""Minimum number of distinct bytes of a pepper. 32 random hexadecimal digits have more."""

_TLS_SCHEMES = frozenset(("rediss", "kafkas", "https"))
_TLS_MODES = frozenset(("require", "verify-ca", "verify-full"))
_LOCAL_SCHEMES = frozenset(("sqlite+aiosqlite", "chdb", "unix"))


class UnsafeSettings(OperatorError):
    """Settings that others could exploit. The message names the remedy and contains no secret."""


def refuse_unsafe(address: str, pepper: bytes, *, demo: bool) -> None:
    """Check a server on `address`, the numeric address that it listens on.

    Raises:
        UnsafeSettings: other machines can reach it, and it has a demo key or a placeholder as pepper.
    """
    if ip_address(address.partition("%")[0]).is_loopback:
        return
    if demo:
        raise UnsafeSettings(
            f"--demo creates a key without limits, and other machines can reach {address}: "
            "serve on 127.0.0.1, or create a tenant and a key with turnpike tenant create and turnpike key create"
        )
    if is_placeholder(pepper):
        raise UnsafeSettings(
            f"key_pepper is a placeholder, and other machines can reach {address}: "
            "set it to the output of openssl rand -hex 32, and create new keys"
        )


def refuse_unshared(settings: Settings, *, demo: bool) -> None:
    """Check that several gateway processes share what they must.

    Raises:
        OperatorError: with `gateway_processes` above 1, a store is of one process alone.
    """
    if settings.gateway_processes == 1:
        return
    for is_shared, name, remedy in (
        (settings.redis_url is not None, "redis_url", "limits would count in each process: set it to a Redis"),
        (settings.sessions_redis_url is not None, "sessions_redis_url", "each would have its own sessions: set it"),
        (
            not settings.database_url.get_secret_value().startswith("sqlite"),
            "database_url",
            "SQLite is for one process: set it to a postgresql:// URL",
        ),
        (
            not settings.analytics_url.get_secret_value().startswith("chdb"),
            "analytics_url",
            "the embedded store is for one process: set it to the URL of a ClickHouse server",
        ),
        (settings.engine_process is not False, "engine_process", "they share an engine process: leave it unset"),
        (not demo, "--demo", "it is for one process"),
        (not (settings.grpc_listen or "").endswith(":0"), "grpc_listen", "they share a port: state one"),
    ):
        if not is_shared:
            raise OperatorError(f"gateway_processes is {settings.gateway_processes}, and {name}: {remedy}")


def is_placeholder(pepper: bytes) -> bool:
    """Whether the pepper was written by hand rather than generated."""
    text = pepper.decode(errors="replace").lower()
    return len(set(pepper)) < MIN_DISTINCT or any(word in text for word in PLACEHOLDERS)


def stores_without_tls(settings: Settings) -> list[str]:
    """Names of the settings whose connections leave this machine unencrypted."""
    urls = _secret_urls(settings)
    return [name for name, url in urls if not _is_private(url)]


def readable_secrets(settings: Settings) -> list[Path]:
    """Configuration files with a secret that every user of this machine can read."""
    files = dict.fromkeys(path.resolve() for path in (Path(CONFIG_FILE), settings.data_dir / CONFIG_FILE))
    return [path for path in files if _is_world_readable(path)]


def share_a_redis(settings: Settings) -> bool:
    """Whether limits and sessions use the same Redis server, by address."""
    if settings.redis_url is None or settings.sessions_redis_url is None:
        return False
    return _server(settings.redis_url.get_secret_value()) == _server(settings.sessions_redis_url.get_secret_value())


def _server(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return (parts.path, None, 0) if parts.scheme == "unix" else ("", parts.hostname, parts.port or 6379)


def _secret_urls(settings: Settings) -> Iterator[tuple[str, str]]:
    for name in ("database_url", "redis_url", "sessions_redis_url", "kafka_url", "analytics_url"):
        value: SecretStr | None = getattr(settings, name)
        if value is not None and not (name == "sessions_redis_url" and value == settings.redis_url):
            yield name, value.get_secret_value()
    for name, upstream in settings.upstreams.items():
        yield f"upstreams.{name}", upstream.url


def _is_private(url: str) -> bool:
    """Whether a connection is local or always encrypted."""
    scheme = url.partition("://")[0]
    if scheme in _LOCAL_SCHEMES or scheme in _TLS_SCHEMES:
        return True
    parts = StoreUrl.split(url)
    options = parse_qs(parts.query)
    if scheme.startswith("postgresql") and _TLS_MODES.intersection(options.get("ssl", ())):
        return True
    return all(_is_local(host) for host in [*parts.hosts, *options.get("host", ())] if host)


def _is_local(host: str) -> bool:
    """Whether a host, with or without port, or a socket directory is local."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name == "localhost" or name.startswith("/"):
        return True
    with suppress(ValueError):
        return ip_address(name).is_loopback
    return False


def _is_world_readable(path: Path) -> bool:
    try:
        if not path.stat().st_mode & stat.S_IROTH:
            return False
        stated = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return False
    upstreams = stated.get("upstreams")
    if isinstance(upstreams, dict) and any("api_key" in each for each in upstreams.values() if isinstance(each, dict)):
        return True
    return "key_pepper" in stated or any(
        StoreUrl.split(value).password
        for name, value in stated.items()
        if name.endswith("_url") and isinstance(value, str)
    )
