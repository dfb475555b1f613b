"""Adapters by the admin API: uploads in parts, versions with weights, rollback, limits, deletion."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.book import AdapterBook
from gateway.adapters.files import CONFIG_FILE, WEIGHTS_FILE
from gateway.adapters.hosting import AdapterHosting
from gateway.adapters.queries import KEPT_AFTER_DELETION, AdapterStore
from gateway.management.operations.adapter_uploads import MAX_PART_BYTES, sweep_at_start
from gateway.management.operations.change import Changes
from gateway.management.operations.context import AdminContext
from gateway.tenancy.records import Principal
from tests.gateway.admin.harness import UNKNOWN_TENANT, Admin, Clock, new_tenant
from tests.support.adapters import adapter_files, hosting, stated, write_folder
from tests.support.tenants import PEPPER

OCTETS = {"content-type": "application/octet-stream"}


@pytest.fixture
def host(tmp_path: Path) -> AdapterHosting:
    return hosting(tmp_path / "adapters", roots=(tmp_path / "root",))


@pytest.fixture
def context(context: AdminContext, host: AdapterHosting) -> AdminContext:
    return replace(context, adapters=host)


async def begin(admin: Admin, tenant: dict, files: dict[str, bytes], **members: Any) -> dict:
    body = {"name": "support", "model": "tiny", "files": stated(files), **members}
    return await admin.post(f"/tenants/{tenant['id']}/adapter-uploads", body)


async def send(admin: Admin, upload: dict, name: str, offset: int, content: bytes, status: int = 200) -> dict:
    path = f"/tenants/{upload['tenant_id']}/adapter-uploads/{upload['id']}/files/{name}"
    response = await admin.request("PUT", path, params={"offset": offset}, content=content, headers=OCTETS)
    assert response.status_code == status, response.text
    return response.json()


async def complete(admin: Admin, upload: dict, status: int = 200) -> dict:
    path = f"/tenants/{upload['tenant_id']}/adapter-uploads/{upload['id']}/complete"
    return await admin.post(path, status=status)


async def uploaded(admin: Admin, tenant: dict, files: dict[str, bytes] | None = None, **members: Any) -> dict:
    files = files or adapter_files()
    upload = await begin(admin, tenant, files, **members)
    for name, content in files.items():
        await send(admin, upload, name, 0, content)
    return await complete(admin, upload)


def folders(host: AdapterHosting) -> set[str]:
    return {entry.name for entry in host.files.folder.iterdir()} - {"uploads"}


async def test_an_upload_in_parts_becomes_an_adapter(admin: Admin, host: AdapterHosting) -> None:
    tenant, files = await new_tenant(admin), adapter_files(b"0123456789")
    upload = await begin(admin, tenant, files, name="acme/support")
    await send(admin, upload, CONFIG_FILE, 0, files[CONFIG_FILE])
    await send(admin, upload, WEIGHTS_FILE, 0, b"0123")
    resumed = await admin.get(f"/tenants/{tenant['id']}/adapter-uploads/{upload['id']}")
    assert [each["received_bytes"] for each in resumed["files"]] == [len(files[CONFIG_FILE]), 4]
    assert (await send(admin, upload, WEIGHTS_FILE, 4, b"456789"))["received_bytes"] == 10
    adapter = await complete(admin, upload)
    [version] = adapter["versions"]
    assert adapter["id"].startswith("support:")
    assert (adapter["name"], adapter["tenant"], adapter["model"]) == ("support", "acme", "tiny")
    assert (version["version"], version["rank"], version["weight"]) == (1, 8, 100)
    assert folders(host) == {version["digest"]}
    assert (host.files.source(version["digest"]).folder / WEIGHTS_FILE).read_bytes() == b"0123456789"
    assert await admin.get(f"/tenants/{tenant['id']}/adapters/support") == adapter
    assert (await admin.get("/adapters"))["data"] == [adapter]
    actions = [(each["action"], each["resource"]) for each in (await admin.get("/audit"))["data"]]
    assert actions[:2] == [("upload", "adapter"), ("create", "adapter_upload")]


async def test_what_is_wrong_with_a_part(admin: Admin) -> None:
    tenant, files = await new_tenant(admin), adapter_files(b"0123456789")
    upload = await begin(admin, tenant, files)
    await send(admin, upload, WEIGHTS_FILE, 0, b"01234")
    for offset, content, status, param in (
        (0, b"01234", 409, "offset"),
        (6, b"6", 409, "offset"),
        (5, b"567890", 400, "offset"),
        (2**53, b"", 400, "offset"),
        (5, b"x" * (MAX_PART_BYTES + 1), 413, None),
    ):
        error = (await send(admin, upload, WEIGHTS_FILE, offset, content, status))["error"]
        assert error["param"] == param, (offset, error)
    assert "must be 5" in (await send(admin, upload, WEIGHTS_FILE, 0, b"0", 409))["error"]["message"]
    for name in ("../../etc/passwd", "adapter_model.bin", "adapter_config.json%2F..%2Fx"):
        path = f"/tenants/{tenant['id']}/adapter-uploads/{upload['id']}/files/{name}"
        response = await admin.request("PUT", path, params={"offset": 0}, content=b"x", headers=OCTETS)
        assert response.status_code == 404
    await admin.refused(
        404,
        "PUT",
        f"/tenants/{UNKNOWN_TENANT}/adapter-uploads/{upload['id']}/files/{WEIGHTS_FILE}",
        params={"offset": 5},
    )
    path = f"/tenants/{tenant['id']}/adapter-uploads/{upload['id']}/files/{WEIGHTS_FILE}"
    await admin.refused(415, "PUT", path, params={"offset": 5}, json={})
    error = await admin.refused(409, "POST", f"/tenants/{tenant['id']}/adapter-uploads/{upload['id']}/complete")
    assert "not complete" in error["message"]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"name": "Support"}, 400, "name"),
        ({"name": "globex/support"}, 400, "name"),
        ({"name": "../x"}, 400, "name"),
        ({"name": "a" * 64}, 400, "name"),
        ({"name": "tiny"}, 400, "name"),
        ({"name": "auto"}, 400, "name"),
        ({"model": "huge"}, 400, "model"),
        ({"model": None}, 400, "model"),
        ({"files": stated({CONFIG_FILE: b"{}"}) * 2}, 400, "files"),
        ({"files": stated({CONFIG_FILE: b"{}", "x": b"x"})}, 400, "files[1].name"),
        ({"files": stated({CONFIG_FILE: b"x" * 1024**2 + b"x", WEIGHTS_FILE: b"x"})}, 400, "files"),
        ({"files": stated({CONFIG_FILE: b"{}", WEIGHTS_FILE: b"x" * 10_000})}, 400, "files"),
        ({"files": [{"name": CONFIG_FILE, "bytes": 2**60, "sha256": "0" * 64}]}, 400, "files"),
        ({"files": [{"name": CONFIG_FILE, "bytes": 1, "sha256": "../" * 21 + "a"}] * 2}, 400, "files[0].sha256"),
    ],
)
async def test_what_is_wrong_with_a_new_upload(admin: Admin, change: dict, status: int, param: str) -> None:
    tenant = await new_tenant(admin)
    body = {"name": "support", "model": "tiny", "files": stated(adapter_files())} | change
    error = await admin.refused(status, "POST", f"/tenants/{tenant['id']}/adapter-uploads", json=body)
    assert error["param"] == param, error


async def test_files_with_another_digest_or_that_the_engine_refuses(admin: Admin, host: AdapterHosting) -> None:
    tenant = await new_tenant(admin)
    for files, sent, code, said in (
        (adapter_files(b"right"), b"wrong", "invalid_value", "sha256"),
        (adapter_files(b"bad"), b"bad", "unsupported_adapter", "lora_A.weight has a NaN"),
        (adapter_files(rank=10**9), b"weights", "unsupported_adapter", "r is 1000000000"),
    ):
        upload = await begin(admin, tenant, files)
        await send(admin, upload, CONFIG_FILE, 0, files[CONFIG_FILE])
        await send(admin, upload, WEIGHTS_FILE, 0, sent)
        error = (await complete(admin, upload, 400))["error"]
        assert error["code"] == code
        assert said in error["message"]
        path = f"/tenants/{tenant['id']}/adapter-uploads/{upload['id']}"
        assert (await admin.request("DELETE", path)).status_code == 200
        await admin.refused(404, "GET", path)
    assert folders(host) == set()
    assert (await admin.get("/adapters"))["data"] == []


async def test_versions_share_requests_and_roll_back(admin: Admin, host: AdapterHosting) -> None:
    tenant = await new_tenant(admin)
    path = f"/tenants/{tenant['id']}/adapters/support"

    def weights(adapter: dict) -> list[int]:
        return [each["weight"] for each in adapter["versions"]]

    async def put(**shares: int) -> dict:
        stated = [{"version": int(name[1:]), "weight": weight} for name, weight in shares.items()]
        response = await admin.request("PUT", f"{path}/weights", json={"weights": stated})
        assert response.status_code == 200, response.text
        return response.json()

    first = await uploaded(admin, tenant)
    assert not first["can_roll_back"]
    await admin.refused(409, "POST", f"{path}/rollback")
    assert weights(await uploaded(admin, tenant, adapter_files(b"two"))) == [0, 100]
    assert weights(await uploaded(admin, tenant, adapter_files(b"three"), activate=False)) == [0, 100, 0]
    assert weights(await admin.post(f"{path}/rollback", status=200)) == [100, 0, 0]
    assert weights(await admin.post(f"{path}/rollback", status=200)) == [0, 100, 0]
    assert weights(await put(v2=90, v3=10)) == [0, 90, 10]
    await admin.refused(409, "DELETE", f"{path}/versions/3")
    assert (await admin.request("DELETE", f"{path}/versions/1")).status_code == 200
    await admin.refused(404, "DELETE", f"{path}/versions/1")
    error = await admin.refused(404, "PUT", f"{path}/weights", json={"weights": [{"version": 1, "weight": 1}]})
    assert error["code"] == "adapter_not_found"
    await admin.refused(400, "PUT", f"{path}/weights", json={"weights": [{"version": 2, "weight": 0}]})
    await admin.refused(400, "PUT", f"{path}/weights", json={"weights": [{"version": 2, "weight": 1}] * 2})
    fourth = await uploaded(admin, tenant, adapter_files(b"four"))
    assert [each["version"] for each in fourth["versions"]] == [2, 3, 4]
    error = (await complete(admin, await again(admin, tenant, adapter_files(b"four")), 409))["error"]
    assert error["code"] == "adapter_conflict"


async def again(admin: Admin, tenant: dict, files: dict[str, bytes]) -> dict:
    upload = await begin(admin, tenant, files)
    for name, content in files.items():
        await send(admin, upload, name, 0, content)
    return upload


async def test_a_repetition_of_a_completion_is_answered_as_the_first(admin: Admin) -> None:
    tenant = await new_tenant(admin)
    upload = await again(admin, tenant, adapter_files())
    path = f"/tenants/{tenant['id']}/adapter-uploads/{upload['id']}/complete"
    headers = {"idempotency-key": "once"}
    first, second = [await admin.request("POST", path, headers=headers) for _ in range(2)]
    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()
    await admin.refused(404, "POST", path)


async def test_a_tenants_limits(admin: Admin) -> None:
    tenant, other = await new_tenant(admin), await new_tenant(admin, "globex")
    for name in ("a", "b", "c"):
        await uploaded(admin, tenant, name=name)
    body = {"name": "d", "model": "tiny", "files": stated(adapter_files())}
    uploads = f"/tenants/{tenant['id']}/adapter-uploads"
    error = await admin.refused(409, "POST", uploads, json=body)
    assert (error["code"], error["param"]) == ("adapter_limit_exceeded", "name")
    await uploaded(admin, tenant, adapter_files(b"further version"), name="a")
    await uploaded(admin, other, name="d")
    limits = f"/tenants/{tenant['id']}/adapter-limits"
    changed = await admin.request("PUT", limits, json={"max_adapters": 10, "max_bytes": 500})
    assert changed.json() == {"max_adapters": 10, "max_bytes": 500}
    error = await admin.refused(409, "POST", uploads, json=body | {"files": stated(adapter_files(b"x" * 400))})
    assert (error["code"], error["param"]) == ("adapter_limit_exceeded", "files")
    await admin.request("PUT", limits, json={"max_adapters": 10})
    await uploaded(admin, tenant, name="d")


async def test_open_uploads_count_and_expire(admin: Admin, clock: Clock, host: AdapterHosting) -> None:
    tenant, files = await new_tenant(admin), adapter_files(b"x" * 9_000)
    first = await begin(admin, tenant, files)
    await send(admin, first, WEIGHTS_FILE, 0, b"x")
    await begin(admin, tenant, files)
    body = {"name": "support", "model": "tiny", "files": stated(files)}
    await admin.refused(409, "POST", f"/tenants/{tenant['id']}/adapter-uploads", json=body)
    assert host.files.upload_folder(first["id"]).is_dir()
    clock.now = clock.now.replace(day=clock.now.day + 2)
    await admin.refused(404, "GET", f"/tenants/{tenant['id']}/adapter-uploads/{first['id']}")
    await begin(admin, tenant, files)
    assert not host.files.upload_folder(first["id"]).exists()


async def test_a_name_is_free_after_deletion_and_files_outlive_it_for_a_while(
    admin: Admin, context: AdminContext, clock: Clock, host: AdapterHosting
) -> None:
    tenant = await new_tenant(admin)
    first = await uploaded(admin, tenant)
    digest = first["versions"][0]["digest"]
    path = f"/tenants/{tenant['id']}/adapters/support"
    assert (await admin.request("DELETE", path)).json() == {"id": first["id"], "name": "support"}
    await admin.refused(404, "GET", path)
    second = await uploaded(admin, tenant, adapter_files(b"other"))
    assert second["id"] != first["id"]
    assert folders(host) == {digest, second["versions"][0]["digest"]}
    clock.now += KEPT_AFTER_DELETION
    assert await sweep_at_start(Changes(context.database, PEPPER, clock), host) == 1
    assert folders(host) == {second["versions"][0]["digest"]}


async def test_equal_files_of_two_tenants_are_stored_once_and_outlive_either(
    admin: Admin, context: AdminContext, clock: Clock, host: AdapterHosting
) -> None:
    tenants = [await new_tenant(admin), await new_tenant(admin, "globex")]
    for tenant in tenants:
        await uploaded(admin, tenant)
    assert len(folders(host)) == 1
    await admin.request("DELETE", f"/tenants/{tenants[0]['id']}/adapters/support")
    clock.now += KEPT_AFTER_DELETION
    assert await sweep_at_start(Changes(context.database, PEPPER, clock), host) == 0
    assert len(folders(host)) == 1


async def test_what_an_ended_process_left_is_removed_at_the_start(
    admin: Admin, context: AdminContext, clock: Clock, host: AdapterHosting
) -> None:
    """Parts of an upload without a row; files that were renamed into place, and whose row was never committed."""
    tenant = await new_tenant(admin)
    kept = (await uploaded(admin, tenant))["versions"][0]["digest"]
    running = await begin(admin, tenant, adapter_files(b"other"))
    await send(admin, running, WEIGHTS_FILE, 0, b"ot")
    write_folder(host.files.folder / ("a" * 64), adapter_files())
    write_folder(host.files.upload_folder("b" * 32), {WEIGHTS_FILE: b"half"})
    assert await sweep_at_start(Changes(context.database, PEPPER, clock), host) == 2
    assert folders(host) == {kept}
    assert host.files.received(running["id"])[WEIGHTS_FILE] == 2


async def test_imports_only_from_the_roots(admin: Admin, host: AdapterHosting, tmp_path: Path) -> None:
    tenant = await new_tenant(admin)
    root = host.roots[0]
    inside = write_folder(root / "team" / "support", adapter_files())
    outside = write_folder(tmp_path / "secret", adapter_files(b"secret"))
    (root / "link").symlink_to(outside)
    path = f"/tenants/{tenant['id']}/adapter-imports"
    a_file = "team/support/adapter_config.json"
    for wrong in ("../secret", str(outside), "link", "nothing", ".", "/etc", a_file, "a" * 1000):
        error = await admin.refused(400, "POST", path, json={"name": "support", "model": "tiny", "path": wrong})
        assert error["param"] == "path", wrong
    for stated_path, name in (("team/support", "relative"), (str(inside), "absolute")):
        adapter = await admin.post(path, {"name": name, "model": "tiny", "path": stated_path})
        assert adapter["name"] == name
    write_folder(root / "half", {CONFIG_FILE: b"{}"})
    error = await admin.refused(400, "POST", path, json={"name": "half", "model": "tiny", "path": "half"})
    assert "adapter_model.safetensors" in error["message"]


async def test_without_roots_nothing_is_imported(admin: Admin, context: AdminContext, tmp_path: Path) -> None:
    closed = hosting(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="set roots in"):
        closed.resolve("x")


async def test_the_price_multiplier(admin: Admin) -> None:
    tenant = await new_tenant(admin)
    await uploaded(admin, tenant)
    path = f"/tenants/{tenant['id']}/adapters/support/price-multiplier"
    response = await admin.request("PUT", path, "billing", json={"multiplier": "1.250"})
    assert response.json()["price_multiplier"] == "1.25"
    assert (await admin.request("PUT", path, json={"multiplier": "100"})).json()["price_multiplier"] == "100"
    for wrong in ("-1", "1e3", "1001", "0.0000001"):
        await admin.refused(400, "PUT", path, json={"multiplier": wrong})


async def test_a_book_follows_the_changes(admin: Admin, context: AdminContext, host: AdapterHosting) -> None:
    tenant, other = await new_tenant(admin), await new_tenant(admin, "globex")
    book = AdapterBook(AdapterStore(context.database), host.files, refresh_s=0.01)
    mine = Principal(tenant["id"], "acme", "premium", "key")
    stranger = Principal(other["id"], "globex", "premium", "key")
    await book.load()
    assert book.find("support", mine) is None
    await uploaded(admin, tenant)
    book.start()
    async with asyncio.timeout(5):
        while book.find("support", mine) is None:
            await asyncio.sleep(0.01)
    assert book.find("acme/support", mine) is book.find("support", mine)
    for name in ("support", "acme/support", "globex/support"):
        assert book.find(name, stranger) is None
    await admin.request("DELETE", f"/tenants/{tenant['id']}/adapters/support")
    async with asyncio.timeout(5):
        while book.find("support", mine) is not None:
            await asyncio.sleep(0.01)
    await book.aclose()
