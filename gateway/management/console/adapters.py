"""A tenant's adapters: versions and their shares, rollback, price, upload and deletion."""

from typing import Any

from gateway.http.errors import invalid
from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import pairs_of
from gateway.management.console.screens import Page, PageRequest, Redirect, Screens
from gateway.management.operations.adapter_uploads import MAX_PART_BYTES
from gateway.management.operations.roles import READERS

SCREENS = Screens()


@SCREENS.get("/adapters", "adapters", "Adapters", READERS, section="Manage")
async def listing(context: ConsoleContext, page_request: PageRequest) -> Page:
    filters = page_request.query.given("model", "name")
    page = await page_request.actions.read("listAdapters", query={**filters, **page_request.query.given("cursor")})
    values = {
        "adapters": [_shown(each) for each in page["data"]],
        "next": next_page("/adapters", filters, page["next_cursor"]),
        "filters": filters,
    }
    return Page("adapters.html", values)


@SCREENS.get("/tenants/{tenant_id}/adapters", "tenant-adapters", "Adapters", READERS)
async def of_tenant(context: ConsoleContext, page_request: PageRequest) -> Page:
    actions, tenant_id = page_request.actions, page_request.path["tenant_id"]
    query = {"tenant_id": tenant_id, **page_request.query.given("cursor")}
    page = await actions.read("listAdapters", query=query)
    hosting = context.admin.adapters
    values = {
        "tenant": await actions.read("readTenant", page_request.path),
        "adapters": [_shown(each) for each in page["data"]],
        "next": next_page(f"/tenants/{tenant_id}/adapters", {}, page["next_cursor"]),
        "models": [] if hosting is None else list(hosting.models),
        "may_upload": hosting is not None and page_request.may("createAdapterUpload"),
        "max_bytes": 0 if hosting is None else hosting.max_bytes,
        "max_part_bytes": MAX_PART_BYTES,
        "may_import": hosting is not None and bool(hosting.roots) and page_request.may("importAdapter"),
    }
    return Page("tenant_adapters.html", values)


@SCREENS.post("tenant-adapters", "import")
async def import_folder(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    adapter = await page_request.actions.submit("importAdapter", page_request.form, page_request.path)
    return page_request.saved(f"Adapter {adapter['name']} added.")


@SCREENS.get("/tenants/{tenant_id}/adapters/{adapter_name}", "adapter", "Adapter", READERS)
async def one(context: ConsoleContext, page_request: PageRequest) -> Page:
    adapter = await page_request.actions.read("readAdapter", page_request.path)
    tenant_path = {"tenant_id": adapter["tenant_id"]}
    values = {
        "tenant": await page_request.actions.read("readTenant", tenant_path),
        "adapter": _shown(adapter),
        "may_change": page_request.may("deleteAdapter"),
        "may_price": page_request.may("setAdapterPriceMultiplier"),
    }
    return Page("adapter.html", values)


@SCREENS.post("adapter", "weights")
async def weights(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    pairs = pairs_of("weights", page_request.form.get("weights"), "=", "1 = 90")
    if not all(version.isdecimal() and weight.isdecimal() for version, weight in pairs):
        raise invalid("weights", "A line must be a version and its weight, as in 1 = 90.")
    stated = [{"version": int(version), "weight": int(weight)} for version, weight in pairs]
    await page_request.actions.change("replaceAdapterWeights", page_request.path, {"weights": stated})
    return page_request.saved("Weights updated.")


@SCREENS.post("adapter", "rollback")
async def rollback(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    await page_request.actions.change("rollbackAdapter", page_request.path)
    return page_request.saved("Rolled back to the earlier weights.")


@SCREENS.post("adapter", "price")
async def price(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    await page_request.actions.submit("setAdapterPriceMultiplier", page_request.form, page_request.path)
    return page_request.saved("Price multiplier updated.")


@SCREENS.post("adapter", "delete-version")
async def delete_version(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    version = page_request.form.get("version")
    await page_request.actions.change("deleteAdapterVersion", {**page_request.path, "adapter_version": version})
    return page_request.saved(f"Version {version} deleted.")


@SCREENS.post("adapter", "delete")
async def delete(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    deleted = await page_request.actions.change("deleteAdapter", page_request.path)
    return Redirect(f"/tenants/{page_request.path['tenant_id']}/adapters", f"Adapter {deleted['name']} deleted.")


def _shown(adapter: dict[str, Any]) -> dict[str, Any]:
    """With the share of each version in percent."""
    total = sum(version["weight"] for version in adapter["versions"]) or 1
    versions = [each | {"share": f"{100 * each['weight'] / total:.4g}"} for each in adapter["versions"]]
    lines = "\n".join(f"{each['version']} = {each['weight']}" for each in versions if each["weight"])
    return adapter | {"versions": versions, "weight_lines": lines, "bytes": sum(each["bytes"] for each in versions)}
