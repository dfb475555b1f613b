"""A tenant's setting of its sessions, through the API."""

from tests.gateway.admin.harness import UNKNOWN_TENANT, Admin, new_tenant
from tests.support.writers import TenantWriter


async def test_it_is_stated_read_and_taken_back(admin: Admin, store: TenantWriter) -> None:
    tenant = await new_tenant(admin)
    path = f"/tenants/{tenant['id']}/session-window"
    key = (await store.create_key("acme")).record.public_id
    assert await admin.get(path) == {"window": None}
    for window in ("summary", "sliding", None):
        answer = await admin.request("PUT", path, json={} if window is None else {"window": window})
        assert (answer.status_code, answer.json()) == (200, {"window": window})
        assert await admin.get(path) == {"window": window}
        assert (await store.active_keys([key]))[key].principal.policies.session.window == window


async def test_what_cannot_be_is_refused(admin: Admin) -> None:
    tenant = await new_tenant(admin)
    path = f"/tenants/{tenant['id']}/session-window"
    error = await admin.refused(400, "PUT", path, json={"window": "forever"})
    assert error["param"] == "window"
    await admin.refused(404, "PUT", f"/tenants/{UNKNOWN_TENANT}/session-window", json={"window": "summary"})
    await admin.refused(404, "GET", f"/tenants/{UNKNOWN_TENANT}/session-window")
    assert await admin.get(path) == {"window": None}
