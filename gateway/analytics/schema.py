"""The store's tables: `migrations/clickhouse/NNNN_name.sql`, applied in order and recorded in `schema_versions`.

There are neither transactions nor locks over several statements. Each statement must therefore be idempotent (`IF NOT
EXISTS`), even if another process runs it at the same time. A file is recorded after all of its statements; if a process
dies before that, the next one repeats the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from gateway.analytics.errors import AnalyticsSchemaMismatch
from gateway.analytics.store import Analytics

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_STATEMENT_END = re.compile(r";\s*(?:\n|\Z)")
_VERSIONS_TABLE = """
CREATE TABLE IF NOT EXISTS schema_versions
(
    version UInt32,
    name String,
    sha256 String,
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY version
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of statements."""

    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """Hash of the file, in hexadecimal digits."""
        return sha256(self.sql.encode()).hexdigest()

    @property
    def statements(self) -> tuple[str, ...]:
        """The file's statements in order."""
        return tuple(text for text in map(str.strip, _STATEMENT_END.split(self.sql)) if text)


async def migrate(analytics: Analytics) -> None:
    """Migrate the tables to this program's version.

    Raises:
        AnalyticsSchemaMismatch: they are of a newer version, or an applied file has been changed.
        AnalyticsAway: the store does not answer.
        AnalyticsRefused: the store rejects a statement.
    """
    await analytics.command(_VERSIONS_TABLE)
    applied: dict[int, str] = dict(
        await analytics.query("SELECT version, any(sha256) FROM schema_versions GROUP BY version")
    )
    migrations = {migration.version: migration for migration in shipped_migrations()}
    if newer := sorted(set(applied) - set(migrations)):
        raise AnalyticsSchemaMismatch(f"the usage tables are of version {newer[-1]}, newer than this program knows")
    for version, migration in sorted(migrations.items()):
        if version not in applied:
            for statement in migration.statements:
                await analytics.command(statement)
            await analytics.insert(
                "schema_versions", ["version", "name", "sha256"], [[version, migration.name, migration.sha256]]
            )
        elif applied[version] != migration.sha256:
            raise AnalyticsSchemaMismatch(
                f"{version:04}_{migration.name}.sql is not what the usage tables were made by"
            )


def shipped_migrations() -> Iterator[Migration]:
    """The migrations in the package, in no particular order."""
    for file in (files("migrations") / "clickhouse").iterdir():
        if found := _FILE_NAME.fullmatch(file.name):
            yield Migration(int(found[1]), found[2], file.read_text(encoding="utf-8"))
