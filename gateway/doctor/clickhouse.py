"""Checks ClickHouse, the usage store."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from gateway.analytics import open_analytics
from gateway.analytics.schema import shipped_migrations
from gateway.config.settings import Settings
from gateway.doctor.clock import skew_s, with_skew
from gateway.doctor.finding import DEADLINE_S, Finding, failure, ok, warning
from gateway.errors import OperatorError
from gateway.extras import MissingExtra, install, is_installed

_REMEDY = "start it, or correct TURNPIKE_ANALYTICS_URL; until then usage waits in the journal"
_TABLES = "SELECT count() FROM system.tables WHERE database = currentDatabase() AND name = 'schema_versions'"


def clickhouse(settings: Settings) -> Iterator[Finding]:
    url = settings.analytics_url.get_secret_value()
    if url.startswith("chdb://"):
        if not is_installed("embedded"):
            detail = "the embedded store is not installed: usage waits in the journal, and there are no invoices"
            yield warning("ClickHouse", detail, install("embedded"))
            return
        # Not opened: only one process may use the folder, and a gateway may be running.
        folder = Path(unquote(url.removeprefix("chdb://")))
        made = "" if folder.exists() else ", made on first use"
        yield ok("ClickHouse", f"inside the gateway, in {folder}{made}; one gateway alone can use it")
        return
    try:
        yield asyncio.run(_examined(url))
    except TimeoutError:
        yield failure("ClickHouse", f"does not answer within {DEADLINE_S:.0f} s", _REMEDY)
    except MissingExtra as error:
        yield failure("ClickHouse", str(error), install("clickhouse"))
    except OperatorError as error:
        yield failure("ClickHouse", str(error), _REMEDY)


async def _examined(url: str) -> Finding:
    analytics = open_analytics(url)
    try:
        async with asyncio.timeout(DEADLINE_S):
            asked_s = time.time()
            ((version, now_s),) = await analytics.query("SELECT version(), toFloat64(now64(6))")
            skew = skew_s(now_s, asked_s, time.time())
            ((prepared,),) = await analytics.query(_TABLES)
            schema = 0
            if prepared:
                ((schema,),) = await analytics.query("SELECT max(version) FROM schema_versions")
    finally:
        await analytics.aclose()
    return with_skew(judged(version, schema), skew)


def judged(version: str, schema: int) -> Finding:
    """`schema`: version of the last applied migration, 0 without any."""
    newest = max(each.version for each in shipped_migrations())
    if schema > newest:
        detail = f"{version}, tables of version {schema}: a newer version of this program has been here"
        return failure("ClickHouse", detail, "install that version")
    if schema < newest:
        detail = f"{version}, tables of version {schema or 'none'}, not {newest}"
        return warning("ClickHouse", detail, "none needed: turnpike serve and turnpike sink bring them up to date")
    return ok("ClickHouse", f"{version}, tables of version {schema}")
