"""Kill -9 while adapters are uploaded: what is stored is whole, and what is not is removed at the start."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from gateway.adapters.files import FILES
from gateway.adapters.queries import AdapterStore
from gateway.config.store_urls import normalise_database_url
from gateway.management.operations.adapter_uploads import sweep_at_start
from gateway.management.operations.change import Changes
from gateway.tenancy import open_database
from tests.support.adapters import digest_of, hosting
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter

KILLS = 4


def upload_until_killed(folder: Path, after_s: float) -> None:
    program = [sys.executable, "-m", "tests.gateway.adapters.uploading", str(folder)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as uploading:
        assert uploading.stdout is not None
        assert uploading.stdout.readline() == b"stored\n"
        time.sleep(after_s)
        uploading.kill()


async def test_nothing_is_half_stored(sqlite_schema: Path, tmp_path: Path) -> None:
    shutil.copyfile(sqlite_schema, tmp_path / "turnpike.db")
    database = open_database(normalise_database_url(f"sqlite:///{tmp_path / 'turnpike.db'}"))
    await TenantWriter(database, PEPPER).create_tenant("acme", "standard")
    host, chance, stored = hosting(tmp_path / "adapters"), random.Random(3), 0
    for _ in range(KILLS):
        upload_until_killed(tmp_path, 0.3 * chance.random())
        await sweep_at_start(Changes(database, PEPPER), host)
        named = {version.digest for adapter in await AdapterStore(database).adapters() for version in adapter.versions}
        assert {entry.name for entry in host.files.folder.iterdir()} - {"uploads"} == named
        for digest in named:
            contents = [(host.files.folder / digest / name).read_bytes() for name in FILES]
            assert digest_of(b"".join(contents)) == digest
        assert len(named) >= stored
        stored = len(named)
    assert stored > 0
    await database.dispose()
