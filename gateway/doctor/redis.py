"""Checks Redis, in which replicas share limits and sessions."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.settings import Settings
from gateway.doctor.clock import skew_s, with_skew
from gateway.doctor.finding import DEADLINE_S, Finding, failure, ok, warning
from gateway.extras import install, is_installed

OLDEST = (7, 0)
_AWAY = "start it, or correct TURNPIKE_REDIS_URL; until then each replica gives out its local share of the limits"
_SESSIONS = "Redis of sessions"
_SESSIONS_AWAY = "start it, or correct TURNPIKE_SESSIONS_REDIS_URL; until then turns on sessions get 503"


def redis(settings: Settings) -> Iterator[Finding]:
    """Check the Redis of limits, then that of sessions, which may be the same."""
    limits: Mapping[str, Any] = {}
    if (settings.redis_url or settings.sessions_redis_url) and not is_installed("redis"):
        yield failure("Redis", "its URL is set, and its client is not installed", install("redis"))
        return
    if settings.redis_url is None:
        yield ok("Redis", "not set: this gateway counts limits by itself; several of them need one")
    else:
        try:
            limits, skew = _asked(settings.redis_url.get_secret_value())
            yield with_skew(judged(limits), skew)
        except _Unusable as error:
            yield failure("Redis", str(error), _AWAY)
    if settings.sessions_redis_url is None:
        return
    try:
        sessions, skew = _asked(settings.sessions_redis_url.get_secret_value())
        yield with_skew(judged_for_sessions(sessions, limits), skew)
    except _Unusable as error:
        yield failure(_SESSIONS, str(error), _SESSIONS_AWAY)


class _Unusable(Exception):
    """Redis does not answer as expected. The message contains only the error's type."""


def _asked(url: str) -> tuple[Mapping[str, Any], float]:
    """The result of `INFO`, and the clock skew in seconds. Raises: _Unusable."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
    from redis.retry import Retry

    client = Redis.from_url(
        url, socket_timeout=DEADLINE_S, socket_connect_timeout=DEADLINE_S, retry=Retry(NoBackoff(), 0)
    )
    try:
        asked_s = time.time()
        seconds, microseconds = client.time()
        skew = skew_s(seconds + microseconds / 1e6, asked_s, time.time())
        return client.info(), skew
    except RedisError as error:
        raise _Unusable(f"does not answer as it should ({type(error).__name__})") from None
    finally:
        client.close()


def judged_for_sessions(info: Mapping[str, Any], limits: Mapping[str, Any]) -> Finding:
    """The most severe finding, from `INFO` of it and of the Redis of limits, which may be the same. A session that it
    evicts or loses starts again."""
    version = str(info.get("redis_version", "?"))
    if _is_old(version):
        return failure(_SESSIONS, f"{version} is too old", "install 7.0 or newer")
    if info.get("role") != "master":
        return failure(_SESSIONS, f"{version}, a replica, which takes no writes", "set TURNPIKE_SESSIONS_REDIS_URL")
    if "run_id" in info and info["run_id"] == limits.get("run_id"):
        detail = "the one of limits: what clients store takes memory that limits need"
        return warning(_SESSIONS, detail, "run a second Redis, and set TURNPIKE_SESSIONS_REDIS_URL to it")
    if not info.get("maxmemory"):
        detail = f"{version} without maxmemory: a tenant's sessions are bounded, and all tenants' together are not"
        return warning(_SESSIONS, detail, "CONFIG SET maxmemory 1gb, and in redis.conf")
    return ok(_SESSIONS, f"{version}, apart from limits, with its own maxmemory")


def _is_old(version: str) -> bool:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST


def judged(info: Mapping[str, Any]) -> Finding:
    """The most severe finding, from `INFO`."""
    version = str(info.get("redis_version", "?"))
    if _is_old(version):
        return failure("Redis", f"{version} is too old", "install 7.0 or newer")
    if info.get("role") != "master":
        return failure("Redis", f"{version}, a replica, which takes no writes", "set TURNPIKE_REDIS_URL to its master")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        bound = "is" if info.get("maxmemory") else "would be, were there a maxmemory,"
        detail = f"{version}, but what is held of limits {bound} evicted under {policy}"
        return warning("Redis", detail, "CONFIG SET maxmemory-policy noeviction, and in redis.conf")
    if info.get("rdb_last_bgsave_status") == "err" or info.get("aof_last_write_status") == "err":
        return warning("Redis", f"{version}, but it could not write its last snapshot", "look at its log and its disk")
    kept = "append-only file" if info.get("aof_enabled") else "snapshots alone, if any: a restart forgets the last"
    return ok("Redis", f"{version}, noeviction, kept by {kept}")
