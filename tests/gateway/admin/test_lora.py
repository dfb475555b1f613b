"""vLLM's load_lora_adapter and unload_lora_adapter: with an administrator's key, and from the roots alone."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http.access import AccessPolicy
from gateway.http.middleware import ErrorMiddleware
from gateway.management.http.lora import LOAD_PATH, UNLOAD_PATH, LoraAdapters
from gateway.management.operations.context import AdminContext
from gateway.telemetry.outcomes import RequestOutcomes
from tests.gateway.admin.harness import Admin, new_tenant, unrecorded
from tests.support.adapters import adapter_files, hosting, write_folder
from tests.support.writers import TenantWriter


@pytest.fixture
def context(context: AdminContext, tmp_path: Path) -> AdminContext:
    roots = (tmp_path / "root", tmp_path / "absent")
    return replace(context, adapters=hosting(tmp_path / "adapters", roots=roots))


@pytest.fixture
async def http(admin: Admin) -> AsyncIterator[httpx.AsyncClient]:
    app = ErrorMiddleware(LoraAdapters(admin.app), RequestOutcomes(), unrecorded, AccessPolicy())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://turnpike") as client:
        yield client


async def send(http: httpx.AsyncClient, admin: Admin, path: str, role: str = "admin", **body: Any) -> httpx.Response:
    return await http.post(path, json=body, headers={"authorization": f"Bearer {admin.keys[role]}"})


async def test_load_and_unload(http: httpx.AsyncClient, admin: Admin, tmp_path: Path) -> None:
    await new_tenant(admin)
    inside = write_folder(tmp_path / "root" / "a", adapter_files())
    named = {"lora_name": "acme/support", "base_model_name": "tiny"}
    answer = await send(http, admin, LOAD_PATH, **named, lora_path=str(inside))
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'acme/support' added successfully.")
    answer = await send(http, admin, LOAD_PATH, **named, lora_path="a")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_name")
    write_folder(inside, adapter_files(b"new"))
    answer = await send(http, admin, LOAD_PATH, **named, lora_path="a", load_inplace=True)
    assert answer.status_code == 200
    [adapter] = (await admin.get("/adapters"))["data"]
    assert [version["weight"] for version in adapter["versions"]] == [0, 100]
    answer = await send(http, admin, UNLOAD_PATH, lora_name="acme/support", lora_int_id=7)
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'acme/support' removed successfully.")
    assert (await send(http, admin, UNLOAD_PATH, lora_name="acme/support")).status_code == 404
    actions = [each["action"] for each in (await admin.get("/audit"))["data"]]
    assert actions[:3] == ["delete", "upload", "upload"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"lora_name": "acme/support"}, 400, "lora_path"),
        ({"lora_path": "a"}, 400, "lora_name"),
        ({"lora_name": "support", "lora_path": "a"}, 400, "lora_name"),
        ({"lora_name": "unknown/support", "lora_path": "a"}, 404, "lora_name"),
        ({"lora_name": "acme/../x", "lora_path": "a"}, 400, "lora_name"),
        ({"lora_name": "acme/support", "lora_path": "../secret"}, 400, "lora_path"),
        ({"lora_name": "acme/support", "lora_path": "/etc"}, 400, "lora_path"),
        ({"lora_name": "acme/support", "lora_path": "link", "base_model_name": "tiny"}, 400, "lora_path"),
        ({"lora_name": "acme/support", "lora_path": "a"}, 400, "base_model_name"),
        ({"lora_name": "acme/support", "lora_path": "bad", "base_model_name": "tiny"}, 400, "lora_path"),
        ({"lora_name": "acme/support", "lora_path": "a", "trust": True}, 400, "trust"),
    ],
)
async def test_what_is_refused(
    http: httpx.AsyncClient, admin: Admin, tmp_path: Path, body: dict, status: int, param: str
) -> None:
    await new_tenant(admin)
    write_folder(tmp_path / "root" / "a", adapter_files())
    write_folder(tmp_path / "root" / "bad", adapter_files(b"bad"))
    outside = write_folder(tmp_path / "secret", adapter_files())
    (tmp_path / "root" / "link").symlink_to(outside)
    answer = await send(http, admin, LOAD_PATH, **body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert (await admin.get("/adapters"))["data"] == []


async def test_only_an_administrator_may(http: httpx.AsyncClient, admin: Admin, store: TenantWriter) -> None:
    await new_tenant(admin)
    body = {"lora_name": "acme/support", "lora_path": "a"}
    tenants = (await store.create_key("acme")).plaintext
    for key in (None, tenants, "tpa-unknown"):
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        assert (await http.post(LOAD_PATH, json=body, headers=headers)).status_code == 401
    for role in ("viewer", "billing"):
        assert (await send(http, admin, LOAD_PATH, role, **body)).status_code == 403
        assert (await send(http, admin, UNLOAD_PATH, role, lora_name="acme/support")).status_code == 403
    get = await http.get(LOAD_PATH, headers={"authorization": f"Bearer {admin.keys['admin']}"})
    assert get.status_code == 405


async def test_without_roots_the_answer_says_so(admin: Admin, context: AdminContext, tmp_path: Path) -> None:
    await new_tenant(admin)
    host = hosting(tmp_path / "none")
    with pytest.raises(Exception, match=r"set roots in \[adapters\]"):
        host.resolve(str(tmp_path))
