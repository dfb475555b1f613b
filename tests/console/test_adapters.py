"""The pages of adapters: versions shared, rolled back, priced, deleted; folders imported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.management.http.app import AdminApp
from tests.console.furnished import own_adapter
from tests.console.house import ACME, House
from tests.support.adapters import adapter_files, hosting, write_folder


@pytest.fixture
async def page(console: House) -> str:
    await own_adapter(console, {"tenant_id": console.tenant[ACME].id})
    return f"/tenants/{console.tenant[ACME].id}/adapters/support"


async def weights_of(console: House) -> list[int]:
    [adapter] = await adapters_of(console)
    return [version["weight"] for version in adapter["versions"]]


async def adapters_of(console: House) -> Any:
    read = console.admin.operations
    administrator = await console.admin.authenticate(console.keys["admin"])
    return (await read.read("listAdapters", administrator))["data"]


async def test_versions_are_shared_rolled_back_and_deleted(console: House, page: str) -> None:
    assert "v2" not in await console.page("/adapters")
    assert "2 (90 %)" in await console.page("/adapters")
    assert (await console.post(page, "weights", weights="1 = 1\n3 = 3")).status_code == 303
    assert await weights_of(console) == [1, 0, 3]
    await console.post(page, "rollback")
    assert await weights_of(console) == [0, 90, 10]
    assert (await console.post(page, "delete-version", version="1")).status_code == 303
    assert await weights_of(console) == [90, 10]
    refused = await console.post(page, "weights", weights="one = two")
    assert "as in 1 = 90" in refused.text


async def test_the_price_and_the_end(console: House, page: str) -> None:
    assert (await console.post(page, "price", multiplier="1.25")).status_code == 303
    assert "× 1.25" in await console.page(page)
    assert (await console.post(page, "price", "billing", multiplier="2")).status_code == 303
    assert (await console.post(page, "delete", "billing")).status_code == 403
    assert (await console.post(page, "delete")).status_code == 303
    await console.page(page, status=404)
    assert await adapters_of(console) == []


async def test_an_import_from_a_root(console: House, tmp_path: Path) -> None:
    context = console.admin.context
    host = hosting(tmp_path / "adapters", roots=(tmp_path / "root",))
    admin = AdminApp(replace(context, adapters=host))
    write_folder(tmp_path / "root" / "mine", adapter_files())
    administrator = await console.admin.authenticate(console.keys["admin"])
    path = {"tenant_id": console.tenant[ACME].id}
    body = {"name": "mine", "path": "mine", "model": "tiny"}
    added = await admin.operations.change("importAdapter", administrator, "req", path, body)
    assert added["name"] == "mine"
    assert "mine" in await console.page(f"/tenants/{path['tenant_id']}/adapters")
