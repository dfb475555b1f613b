"""Tenants' routing policies, through the API."""

import pytest

from gateway.tenancy.policies import MAX_ALIASES, Preference, RoutingPolicy
from tests.gateway.admin.harness import UNKNOWN_TENANT, Admin, new_tenant
from tests.support.writers import TenantWriter

DEFAULT = {
    "preference": "balanced",
    "degrade": False,
    "degrade_near_budget": False,
    "cascade_percent": None,
    "aliases": [],
}


async def path_of_acme(admin: Admin) -> str:
    return f"/tenants/{(await new_tenant(admin))['id']}/routing"


async def test_a_policy_is_stated_as_a_whole_and_reaches_the_tenants_keys(admin: Admin, store: TenantWriter) -> None:
    path = await path_of_acme(admin)
    assert await admin.get(path, role="viewer") == DEFAULT
    stated = {
        "preference": "economy",
        "degrade": True,
        "degrade_near_budget": True,
        "cascade_percent": 80,
        "aliases": [{"name": "gpt-4o", "model": "auto"}, {"name": "gpt-4o-mini", "model": "org/small"}],
    }
    assert (await admin.request("PUT", path, json=stated)).json() == stated
    assert await admin.get(path) == stated
    key = (await store.create_key("acme")).record.public_id
    routing = (await store.active_keys([key]))[key].principal.policies.routing
    aliases = {"gpt-4o": "auto", "gpt-4o-mini": "org/small"}
    assert routing == RoutingPolicy(Preference.ECONOMY, True, True, 80, aliases)

    assert (await admin.request("PUT", path, json={"degrade": True})).json() == DEFAULT | {"degrade": True}
    assert (await admin.request("PUT", path, json={})).json() == DEFAULT


async def test_each_change_is_in_the_audit_log(admin: Admin) -> None:
    path = await path_of_acme(admin)
    for _ in range(2):
        await admin.request("PUT", path, json={"degrade": True})
    entries = (await admin.get("/audit", params={"resource": "routing_policy"}))["data"]
    assert [(each["before"], each["after"]) for each in entries] == [(DEFAULT, DEFAULT | {"degrade": True})]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"preference": "cheap"}, "preference"),
        ({"degrade": 1}, "degrade"),
        ({"degrade_near_budget": "yes"}, "degrade_near_budget"),
        ({"cascade_percent": 0}, "cascade_percent"),
        ({"cascade_percent": 100}, "cascade_percent"),
        ({"cascade_percent": 0.5}, "cascade_percent"),
        ({"aliases": {"a": "b"}}, "aliases"),
        ({"aliases": [{"name": "a"}]}, "aliases[0].model"),
        ({"aliases": [{"name": "a b", "model": "m"}]}, "aliases[0].name"),
        ({"aliases": [{"name": "a", "model": "m"}, {"name": "a", "model": "n"}]}, "aliases"),
        ({"aliases": [{"name": f"a{i}", "model": "m"} for i in range(MAX_ALIASES + 1)]}, "aliases"),
        ({"fallback": "m"}, "fallback"),
    ],
)
async def test_the_field_at_fault_is_named_and_nothing_changes(admin: Admin, body: dict, param: str) -> None:
    path = await path_of_acme(admin)
    assert (await admin.refused(400, "PUT", path, json=body))["param"] == param
    assert await admin.get(path) == DEFAULT


async def test_who_may(admin: Admin) -> None:
    path = await path_of_acme(admin)
    for role in ("viewer", "billing"):
        assert (await admin.refused(403, "PUT", path, role=role, json={}))["code"] == "role_not_allowed"
    for method, rest in (("GET", {}), ("PUT", {"json": {}})):
        refused = await admin.refused(404, method, f"/tenants/{UNKNOWN_TENANT}/routing", **rest)
        assert refused["code"] == "tenant_not_found"
