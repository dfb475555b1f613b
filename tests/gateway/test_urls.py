"""URLs of stores with several hosts, of which one may be an IPv6 address."""

import pytest

from gateway.config.settings import Settings
from gateway.urls import StoreUrl


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("kafka://one,two:1234,[::1]:5", ("kafka", "", "", ("one", "two:1234", "[::1]:5"), "", "")),
        (
            "kafkas://us%40er:p%3Aw@one,[::1]?sasl=plain",
            ("kafkas", "us%40er", "p%3Aw", ("one", "[::1]"), "", "sasl=plain"),
        ),
        ("postgresql://u:p@a,[::1]:5/db?ssl=require", ("postgresql", "u", "p", ("a", "[::1]:5"), "/db", "ssl=require")),
        ("redis://:word@[::1]:6379/1", ("redis", "", "word", ("[::1]:6379",), "/1", "")),
        ("unix:///run/redis.sock?db=2", ("unix", "", "", (), "/run/redis.sock", "db=2")),
        ("sqlite+aiosqlite:////var/lib/t.db", ("sqlite+aiosqlite", "", "", (), "//var/lib/t.db", "")),
        ("one:9092", ("one", "", "", (), "9092", "")),
        ("", ("", "", "", (), "", "")),
    ],
)
def test_the_parts_of_a_url(url: str, parts: tuple[object, ...]) -> None:
    assert StoreUrl.split(url) == parts


def test_a_password_is_secret_whatever_the_hosts_are(no_settings: None) -> None:
    settings = Settings(
        database_url="postgresql://u:first@a,[::1]:5432/turnpike", kafka_url="kafka://u:second@one,[::1]:5"
    )
    assert {"first", "second"} <= set(settings.secret_values())
