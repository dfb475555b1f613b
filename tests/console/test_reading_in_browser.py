"""Charts, times and lists in a real browser: at the width of the screen, with values under the pointer, up to date."""

import itertools

from playwright.async_api import Page, expect

from tests.console.browser import PHONE, Browsing
from tests.console.events import ago_ms, of_tenant, used
from tests.console.house import ACME, GLOBEX


async def with_usage(browsing: Browsing) -> None:
    """A request of an hour ago, and one of just now."""
    await used(
        browsing.house,
        of_tenant(browsing.house, ACME, 1, ago_ms(hours=1)),
        of_tenant(browsing.house, GLOBEX, 2, ago_ms(minutes=1)),
    )


async def test_the_newest_bar_is_on_a_phones_screen_without_scripts(browsing: Browsing) -> None:
    await with_usage(browsing)
    page = await browsing.page("viewer", size=PHONE, script=False)
    for path in ("", "/usage"):
        await page.goto(f"/console{path}")
        bars = page.locator("[data-chart]").first.locator(".shapes rect:not(.place)")
        box = await bars.last.bounding_box()
        assert box is not None
        assert box["width"] > 0
        assert PHONE["width"] / 2 < box["x"] < box["x"] + box["width"] <= PHONE["width"]
        plot = page.locator(".plot").first
        assert await plot.evaluate("each => each.scrollWidth <= each.clientWidth")
        labels = await page.locator(".x-axis").first.locator("text:visible").all()
        boxes = [await each.bounding_box() for each in labels]
        assert len(boxes) >= 2
        for left, right in itertools.pairwise(boxes):
            assert left["x"] + left["width"] < right["x"], "labels do not overlap"


async def test_a_phone_shows_the_current_page_in_the_list_of_pages(browsing: Browsing) -> None:
    page = await browsing.page("viewer", size=PHONE)
    for path in ("", "/invoices", "/settings"):
        await page.goto(f"/console{path}")
        await expect(page.locator(".sections [aria-current]")).to_be_in_viewport(ratio=1)


async def test_a_phone_shows_the_whole_caption_of_a_wide_table(browsing: Browsing) -> None:
    page = await browsing.page("viewer", size=PHONE)
    await page.goto("/console/limits")
    table, caption = page.locator(".table").first, page.locator("caption").first
    assert await table.evaluate("each => each.scrollWidth > each.clientWidth"), "the table is wider than the screen"
    for scrolled in (0, 1000):
        await table.evaluate("(each, left) => { each.scrollLeft = left }", scrolled)
        frame, box = await table.bounding_box(), await caption.bounding_box()
        assert frame is not None
        assert box is not None
        assert frame["x"] <= box["x"]
        assert box["x"] + box["width"] <= frame["x"] + frame["width"]


async def test_a_place_of_a_chart_tells_its_values(browsing: Browsing) -> None:
    await with_usage(browsing)
    page = await browsing.page("viewer")
    await page.goto("/console/usage")
    chart = page.locator("[data-chart]").first
    place = chart.locator("rect.place").last
    await place.hover()
    title = (await place.locator("title").text_content() or "").split()
    shown = await chart.locator("output").inner_text()
    assert shown.startswith(" ".join(title[:2]))
    assert "completion: " in shown
    await page.mouse.move(0, 0)
    await expect(chart.locator("output")).to_have_text("")


async def requests_shown(page: Page) -> str:
    return await page.locator(".stat", has_text="Requests").first.locator("dd").inner_text()


async def test_a_page_follows_by_itself_and_keeps_what_is_open(browsing: Browsing) -> None:
    await with_usage(browsing)
    page = await browsing.page("viewer")
    await page.clock.install()
    await page.goto("/console/usage")
    assert await requests_shown(page) == "2"
    values = page.locator("details", has_text="Values").first
    await values.locator("summary").click()
    await used(browsing.house, of_tenant(browsing.house, ACME, 3, ago_ms(minutes=1)))
    async with page.expect_response("**/console/usage"):
        await page.clock.run_for(30_000)
    await expect(page.locator(".stat", has_text="Requests").first.locator("dd")).to_have_text("3")
    await expect(values).to_have_attribute("open", "")


async def test_a_text_that_is_selected_is_not_replaced(browsing: Browsing) -> None:
    await with_usage(browsing)
    page = await browsing.page("viewer")
    await page.clock.install()
    await page.goto("/console/requests")
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('#requests td a'))")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    await page.clock.run_for(20_000)
    assert "requests" not in asked
    await page.evaluate("getSelection().removeAllRanges()")
    async with page.expect_response("**/console/requests"):
        await page.clock.run_for(12_000)


async def test_a_page_after_the_first_stays_as_it_is(browsing: Browsing) -> None:
    await used(browsing.house, *(of_tenant(browsing.house, ACME, n, ago_ms(minutes=n)) for n in range(1, 60)))
    page = await browsing.page("viewer")
    await page.goto("/console/requests")
    await expect(page.locator("[data-live]")).to_have_count(1)
    await page.get_by_role("link", name="Next page").click()
    await expect(page.locator("#requests")).to_be_visible()
    await expect(page.locator("[data-live]")).to_have_count(0)


async def test_requests_fit_the_desk(browsing: Browsing) -> None:
    await with_usage(browsing)
    page = await browsing.page("admin")
    await page.goto("/console/requests")
    table = page.get_by_role("region", name="Requests")
    assert await table.evaluate("each => each.scrollWidth <= each.clientWidth")


async def test_an_id_is_copied_from_its_name(browsing: Browsing) -> None:
    await with_usage(browsing)
    page = await browsing.page("admin")
    await page.goto("/console/usage?by=tenant")
    id = browsing.house.tenant[GLOBEX].id
    await page.get_by_role("button", name=f"Copy the id {id}").click()
    assert await page.evaluate("navigator.clipboard.readText()") == id


async def test_a_time_ago_grows_and_has_the_exact_one(browsing: Browsing) -> None:
    await with_usage(browsing)
    page = await browsing.page("admin")
    await page.clock.install()
    await page.goto("/console/requests")
    time = page.locator("time[data-ago]").first
    assert (await time.get_attribute("title") or "").endswith(" UTC")
    before = await time.inner_text()
    await page.route("**/console/requests", lambda route: route.fulfill(status=503))
    await page.clock.run_for(200_000)
    assert await time.inner_text() != before
    browsing.complaints.clear()


async def test_a_request_is_found_by_its_id_though_it_is_old(browsing: Browsing) -> None:
    await used(browsing.house, of_tenant(browsing.house, ACME, 7, ago_ms(days=60)))
    page = await browsing.page("viewer", script=False)
    await page.goto("/console/requests")
    await expect(page.locator(".empty")).to_be_visible()
    await page.get_by_label("Request id").fill("http_7")
    await page.get_by_role("button", name="Find").click()
    await expect(page.get_by_role("link", name="req_7")).to_be_visible()
