"""Conversion of the driver's errors to this package's."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from clickhouse_connect.driver.exceptions import ClickHouseError, Error, OperationalError

from gateway.analytics.errors import AnalyticsAway, AnalyticsError, AnalyticsRefused

_AWAY_CODES = frozenset(
    {
        74,  # CANNOT_READ_FROM_FILE_DESCRIPTOR
        75,  # CANNOT_WRITE_TO_FILE_DESCRIPTOR
        76,  # CANNOT_OPEN_FILE
        159,  # TIMEOUT_EXCEEDED
        160,  # TOO_SLOW
        173,  # CANNOT_ALLOCATE_MEMORY
        201,  # QUOTA_EXCEEDED
        202,  # TOO_MANY_SIMULTANEOUS_QUERIES
        209,  # SOCKET_TIMEOUT
        210,  # NETWORK_ERROR
        236,  # ABORTED
        241,  # MEMORY_LIMIT_EXCEEDED
        242,  # TABLE_IS_READ_ONLY
        243,  # NOT_ENOUGH_SPACE
        252,  # TOO_MANY_PARTS
        279,  # ALL_CONNECTION_TRIES_FAILED
        285,  # TOO_FEW_LIVE_REPLICAS
        319,  # UNKNOWN_STATUS_OF_INSERT
        394,  # QUERY_WAS_CANCELLED
        425,  # SYSTEM_ERROR
        999,  # KEEPER_EXCEPTION
    }
)
_LOCKED_OUT_CODES = frozenset(
    {
        192,  # UNKNOWN_USER
        193,  # WRONG_PASSWORD
        194,  # REQUIRED_PASSWORD
        497,  # ACCESS_DENIED
        516,  # AUTHENTICATION_FAILED
    }
)
_MAX_TEXT_CHARS = 500
_DECORATION = re.compile(
    r"^.*?(?=Code: \d+\.)|\s*\(version [^()]*(\([^()]*\))?[^()]*\)|\s*\(for url \S*\)|\s+$", re.DOTALL
)


@contextmanager
def answering() -> Iterator[None]:
    """Turn every failure of a store into `AnalyticsAway` or `AnalyticsRefused`.

    The store's message on a statement is kept. The driver's message on a connection is dropped, as it may name hosts
    and users.
    """
    try:
        yield
    except AnalyticsError:
        raise
    except ClickHouseError as error:
        raise _verdict(error) from error
    except OSError as error:
        raise AnalyticsAway(f"ClickHouse does not answer ({type(error).__name__})") from error
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        # The driver cannot convert the value to the stated type.
        raise AnalyticsRefused(
            f"data of another type than its column or parameter: {error}"[:_MAX_TEXT_CHARS]
        ) from error


def _verdict(error: ClickHouseError) -> AnalyticsError:
    code = error.code if isinstance(error, Error) else None
    if code in _LOCKED_OUT_CODES:
        return AnalyticsAway(f"ClickHouse does not let this user in (code {code})")
    if code in _AWAY_CODES:
        return AnalyticsAway(f"ClickHouse cannot answer now: {_text(error)}")
    if code is not None:
        return AnalyticsRefused(_text(error), code)
    if isinstance(error, OperationalError) or "HTTP status" in str(error):
        return AnalyticsAway(f"ClickHouse does not answer ({type(error.__cause__ or error).__name__})")
    return AnalyticsRefused(_text(error))


def _text(error: ClickHouseError) -> str:
    return " ".join(_DECORATION.sub("", str(error)).split())[:_MAX_TEXT_CHARS]
