"""A tenant that pays in advance is served up to what it paid."""

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.admission.book import limits_for
from gateway.admission.model import Measure
from gateway.billing.prepaid import PrepaidKeys
from gateway.tenancy import Limits
from tests.support.writers import CreditWriter, TenantWriter


async def test_credit_comes_with_the_key(database: AsyncEngine) -> None:
    store, credit = TenantWriter(database, b"p" * 32), CreditWriter(database)
    keys = {}
    for name in ("before", "after"):
        await store.create_tenant(name, "standard")
        keys[name] = (await store.create_key(name)).record.public_id
    await credit.add("before", 5_000, "first", "1")
    await credit.add("before", -1_000, "correction", "2")
    found = await PrepaidKeys(store, database).active_keys(list(keys.values()))
    before, after = (found[keys[name]].principal for name in ("before", "after"))
    assert (before.credit_nanodollars, after.credit_nanodollars) == (4_000, None)
    (quota,) = limits_for(before, ("m",), 100, Limits()).quotas
    assert (quota.scope.measure, quota.limit) == (Measure.CREDIT_NANODOLLARS, 4_000)
    assert limits_for(after, ("m",), 100, Limits()).quotas == ()


async def test_what_was_taken_back_is_no_credit(database: AsyncEngine) -> None:
    store = TenantWriter(database, b"p" * 32)
    await store.create_tenant("acme", "standard")
    key = (await store.create_key("acme")).record.public_id
    await CreditWriter(database).add("acme", -1, "an old debt", "1")
    principal = (await PrepaidKeys(store, database).active_keys([key]))[key].principal
    (quota,) = limits_for(principal, ("m",), 100, Limits()).quotas
    assert quota.limit == 0


async def test_unknown_keys_stay_unknown(database: AsyncEngine) -> None:
    assert await PrepaidKeys(TenantWriter(database, b"p" * 32), database).active_keys(["nobody"]) == {}
