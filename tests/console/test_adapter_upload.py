"""Uploads of adapters by a page: in parts, resumed, by administrators and from our pages alone."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from gateway.management.console.login import SESSION_COOKIE
from gateway.management.console.own_requests import CSRF_HEADER
from tests.console.browser import PATIENCE_MS, Browsing
from tests.console.house import ACME, ORIGIN, House, open_house
from tests.support.adapters import adapter_files, hosting, stated

FILES = adapter_files(bytes(range(256)) * 20)


@pytest.fixture
async def console(sqlite_schema: Path, tmp_path: Path, anyio_backend: str) -> AsyncIterator[House]:
    async with open_house(tmp_path, sqlite_schema, adapters=hosting(tmp_path / "adapters")) as house:
        yield house


def address(console: House) -> str:
    return f"/console/tenants/{console.tenant[ACME].id}/adapter-uploads"


async def send(console: House, method: str, path: str, who: str = "admin", **rest: Any):
    headers = {"origin": ORIGIN, CSRF_HEADER: console.csrf(who), "cookie": f"{SESSION_COOKIE}={console.token(who)}"}
    headers |= rest.pop("headers", {})
    return await console.http.request(method, address(console) + path, headers=headers, **rest)


async def fill(page: Page, console: House, files: dict[str, bytes], name: str = "mine") -> None:
    await page.goto(f"/console/tenants/{console.tenant[ACME].id}/adapters")
    await page.evaluate("document.getElementById('adapter-upload').dataset.partBytes = 2000")
    await page.get_by_text("Upload an adapter", exact=True).click()
    await page.get_by_label("Name", exact=False).first.fill(name)
    await page.get_by_label("Base model").first.fill("tiny")
    given = [
        {"name": each, "mimeType": "application/octet-stream", "buffer": content} for each, content in files.items()
    ]
    await page.set_input_files("#upload-files", given)


async def test_a_page_uploads_an_adapter_in_parts(browsing: Browsing, console: House) -> None:
    page = await browsing.page("admin")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "PUT" else None)
    await fill(page, console, FILES)
    await page.get_by_role("button", name="Upload").click()
    await page.wait_for_url(re.compile("/adapters/mine$"))
    await expect(page.locator("main")).to_contain_text("mine")
    assert [url.partition("offset=")[2] for url in sent] == ["0", "0", "2000", "4000"]


async def test_a_lost_part_is_sent_again(browsing: Browsing, console: House) -> None:
    page = await browsing.page("admin")
    lost = 0

    async def lose(route: Route) -> None:
        nonlocal lost
        if route.request.method == "PUT" and "offset=2000" in route.request.url and not lost:
            lost += 1
            await route.fetch()  # it has arrived; its answer has not
            await route.abort()
        else:
            await route.continue_()

    await page.route("**/adapter-uploads/**", lose)
    await fill(page, console, FILES)
    await page.get_by_role("button", name="Upload").click()
    await page.wait_for_url(re.compile("/adapters/mine$"))
    assert lost == 1
    browsing.complaints[:] = [each for each in browsing.complaints if "ERR_FAILED" not in each]


async def test_an_upload_that_was_left_is_resumed(browsing: Browsing, console: House) -> None:
    page = await browsing.page("admin")
    begun: list[str] = []
    sent: list[str] = []

    def note(request: Any) -> None:
        if request.method == "POST" and request.url.endswith("/adapter-uploads"):
            begun.append(request.url)
        if request.method == "PUT":
            sent.append(request.url.partition("offset=")[2])

    page.on("request", note)
    left = asyncio.Event()

    async def stop(route: Route) -> None:
        if "offset=4000" in route.request.url and not left.is_set():
            await page.goto("about:blank")
            await route.abort()  # without it, a slow browser still sends what it held for the page that is gone
            left.set()
        else:
            await route.continue_()

    await page.route("**/adapter-uploads/**", stop)
    await fill(page, console, FILES)
    await page.get_by_role("button", name="Upload").click()
    await asyncio.wait_for(left.wait(), PATIENCE_MS / 1000)
    await fill(page, console, FILES)
    await page.get_by_role("button", name="Upload").click()
    await page.wait_for_url(re.compile("/adapters/mine$"))
    assert len(begun) == 1
    assert sent == ["0", "0", "2000", "4000", "4000"]
    browsing.complaints.clear()  # of the request that the page was left in


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"adapter_config.json": FILES["adapter_config.json"]}, "adapter_model.safetensors is missing."),
        (adapter_files(b"bad"), "has a NaN"),
        (adapter_files(b"x" * 20_000), "the limit is 10000"),
    ],
)
async def test_a_refusal_is_shown(browsing: Browsing, console: House, files: dict[str, bytes], told: str) -> None:
    page = await browsing.page("admin")
    await fill(page, console, files)
    await page.get_by_role("button", name="Upload").click()
    await expect(page.locator("#upload-status")).to_contain_text(told)
    await expect(page.get_by_role("button", name="Upload")).to_be_enabled()
    browsing.complaints[:] = [each for each in browsing.complaints if "status of 4" not in each]


async def test_without_scripts_the_page_names_the_command(browsing: Browsing, console: House) -> None:
    page = await browsing.page("admin", script=False)
    await page.goto(f"/console/tenants/{console.tenant[ACME].id}/adapters")
    await page.get_by_text("Upload an adapter", exact=True).click()
    await expect(page.get_by_text("turnpike adapter upload FOLDER")).to_be_visible()
    await expect(page.locator("#adapter-upload")).to_be_hidden()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({CSRF_HEADER: ""}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"cookie": ""}, 401),
    ],
)
async def test_requests_of_other_pages_are_refused(console: House, headers: dict[str, str], status: int) -> None:
    body = {"name": "mine", "files": stated(FILES)}
    answer = await send(console, "POST", "", json=body, headers=headers)
    assert (answer.status_code, answer.json().keys()) == (status, {"error"})
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("who", ["billing", "viewer", ACME])
async def test_only_administrators_with_that_role_upload(console: House, who: str) -> None:
    answer = await send(console, "POST", "", who, json={"name": "mine", "files": stated(FILES)})
    assert answer.status_code == 403
    if who != ACME:
        assert "Upload an adapter" not in await console.page(f"/tenants/{console.tenant[ACME].id}/adapters", who)


@pytest.mark.parametrize("path", ["/%2e%2e/keys", "/0/complete/more", "s"])
async def test_no_other_path_of_the_api_is_served(console: House, path: str) -> None:
    assert (await send(console, "GET", path)).status_code == 404
