"""Redis, where replicas share limits and sessions."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.doctor.clock import skew_s, with_skew
from gateway.doctor.finding import DEADLINE_S, Finding, failure, ok, warning
from gateway.settings import Settings

OLDEST = (7, 0)
_AWAY = "start it, or correct TURNPIKE_REDIS_URL; until then each replica gives out its local share of the limits"


def redis(settings: Settings) -> Iterator[Finding]:
    if settings.redis_url is None:
        yield ok("Redis", "not set: this gateway counts limits by itself; several of them need one")
        return
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
    from redis.retry import Retry

    client = Redis.from_url(
        settings.redis_url.get_secret_value(),
        socket_timeout=DEADLINE_S,
        socket_connect_timeout=DEADLINE_S,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        asked_s = time.time()
        seconds, microseconds = client.time()
        skew = skew_s(seconds + microseconds / 1e6, asked_s, time.time())
        yield with_skew(judged(client.info()), skew)
    except RedisError as error:
        yield failure("Redis", f"does not answer as it should ({type(error).__name__})", _AWAY)
    finally:
        client.close()


def judged(info: Mapping[str, Any]) -> Finding:
    """By what `INFO` says; the worst comes first."""
    version = str(info.get("redis_version", "?"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
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
