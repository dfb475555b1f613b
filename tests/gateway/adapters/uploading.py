"""A program that uploads adapters until it is killed: python -m tests.gateway.adapters.uploading FOLDER"""

import asyncio
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from gateway.adapters.files import FILES
from gateway.adapters.limits import AdapterLimits
from gateway.config.store_urls import normalise_database_url
from gateway.management.operations.context import AdminContext
from gateway.management.operations.local import LocalOperations
from gateway.tenancy import open_database
from tests.support.adapters import adapter_files, hosting, stated
from tests.support.tenants import PEPPER

_NOTHING: Any = None


async def upload(folder: Path) -> None:
    database = open_database(normalise_database_url(f"sqlite:///{folder / 'turnpike.db'}"))
    host = hosting(folder / "adapters", max_bytes=10**9, limits=AdapterLimits())
    context = AdminContext(database, PEPPER, {}, _NOTHING, _NOTHING, _NOTHING, 0, adapters=host)
    operations = LocalOperations(context)
    [tenant] = (await operations.read("listTenants"))["data"]
    path = {"tenant_id": tenant["id"]}
    for number in itertools.count():
        files = adapter_files(f"{folder} {number} {os.getpid()}".encode() * 20_000)
        body = {"name": f"a{number % 7}", "model": "tiny", "files": stated(files)}
        begun = {**path, "upload_id": (await operations.change("createAdapterUpload", path, body))["id"]}
        for name in FILES:
            where = {**begun, "adapter_file": name}
            half = len(files[name]) // 2
            await operations.store("storeAdapterFile", files[name][:half], where, {"offset": "0"})
            await operations.store("storeAdapterFile", files[name][half:], where, {"offset": str(half)})
        await operations.change("completeAdapterUpload", begun)
        print("stored", flush=True)


if __name__ == "__main__":
    asyncio.run(upload(Path(sys.argv[1])))
