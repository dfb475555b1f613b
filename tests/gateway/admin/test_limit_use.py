"""Where counters stand, as an administrator sees it."""

from typing import Any

import pytest

from gateway.admission import Demand, Limiter, Measure, Quota, Scope, StoreAway
from gateway.tenancy import ScopeKind
from tests.gateway.admin.harness import UNKNOWN_TENANT, Admin, new_tenant
from tests.support.writers import TenantWriter


def of(use: dict[str, Any]) -> dict[tuple[str, str, str], tuple[int, int, int, int]]:
    return {
        (each["kind"], each["scope_id"], each["name"]): (each["limit"], each["used"], each["held"], each["remaining"])
        for each in use["data"]
    }


async def test_what_is_stated_and_what_the_tier_has(admin: Admin, store: TenantWriter) -> None:
    tenant = await new_tenant(admin, tier="standard")
    path = f"/tenants/{tenant['id']}/limits"
    key = (await store.create_key("acme")).record.public_id
    for body in (
        {"kind": "tenant", "tokens_per_day": 1000, "context_tokens": 64},
        {"kind": "key", "scope_id": key, "requests_per_minute": 5},
        {"kind": "model", "scope_id": "m", "nanodollars_per_month": 7},
    ):
        assert (await admin.request("PUT", path, json=body)).status_code == 200
    await admin.post(f"/tenants/{tenant['id']}/credit", {"nanodollars": 9, "reason": "paid"})
    use = await admin.get(f"{path}/use", "viewer")
    assert (use["tenant_id"], use["tier"]) == (tenant["id"], "standard")
    assert of(use) == {
        ("tenant", "", "tokens_per_day"): (1000, 0, 0, 1000),
        ("tenant", "", "concurrent"): (4, 0, 0, 4),  # the tier's
        ("key", key, "requests_per_minute"): (5, 0, 0, 5),
        ("model", "m", "nanodollars_per_month"): (7, 0, 0, 7),
        ("tenant", "", "credit_nanodollars"): (9, 0, 0, 9),
    }


async def test_what_is_used_and_what_is_held(admin: Admin, limiter: Limiter) -> None:
    tenant = await new_tenant(admin)
    path = f"/tenants/{tenant['id']}/limits"
    await admin.request("PUT", path, json={"kind": "tenant", "tokens_per_day": 1000})
    quota = Quota(Scope(tenant["id"], ScopeKind.TENANT, "", Measure.TOKENS_PER_DAY), 1000)
    demand = Demand(quota, 10, 1)
    hold = await limiter.hold("first", (demand,), minimum_tokens=1, desired_tokens=90)
    await limiter.settle(hold, 30)
    await limiter.hold("second", (demand,), minimum_tokens=1, desired_tokens=40)
    use = await admin.get(f"{path}/use")
    assert of(use) == {("tenant", "", "tokens_per_day"): (1000, 80, 50, 920)}
    assert 0 < use["data"][0]["reset_ms"] <= 86_400_000


async def test_a_tenant_that_nothing_binds(admin: Admin) -> None:
    tenant = await new_tenant(admin)
    assert (await admin.get(f"/tenants/{tenant['id']}/limits/use"))["data"] == []
    error = await admin.refused(404, "GET", f"/tenants/{UNKNOWN_TENANT}/limits/use")
    assert error["code"] == "tenant_not_found"


async def test_while_the_limit_store_is_down(admin: Admin, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(quotas: object) -> None:
        raise StoreAway("away")

    monkeypatch.setattr(limiter, "usage", away)
    tenant = await new_tenant(admin)
    error = await admin.refused(503, "GET", f"/tenants/{tenant['id']}/limits/use")
    assert error["message"].startswith("The store of limits")
