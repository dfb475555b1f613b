"""The console in a real browser."""

from playwright.async_api import Page, expect

from gateway.management.console.login import SESSION_COOKIE
from tests.console.browser import Browsing
from tests.console.furnished import busy


async def test_login_by_keyboard_alone_and_out_again(browsing: Browsing) -> None:
    page = await browsing.page("")
    await page.goto("/console")
    await expect(page.get_by_label("Key", exact=True)).to_be_focused()
    await page.keyboard.type(browsing.house.keys["viewer"])
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    await page.get_by_role("button", name="Log out").press("Enter")
    await expect(page.get_by_label("Key", exact=True)).to_be_visible()
    await page.goto("/console")
    await expect(page.get_by_label("Key", exact=True)).to_be_visible()


async def test_the_theme_is_switched_and_kept(browser_page: Page) -> None:
    await browser_page.goto("/console")
    light = await browser_page.evaluate("getComputedStyle(document.body).backgroundColor")
    await browser_page.get_by_label("Theme").select_option("dark")
    await browser_page.wait_for_selector("html[data-theme=dark]")
    dark = await browser_page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    await browser_page.goto("/console")
    assert await browser_page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


async def test_it_works_without_a_script(browsing: Browsing) -> None:
    page = await browsing.page("", script=False)
    await page.goto("/console/tenants")
    await page.get_by_label("Key", exact=True).fill(browsing.house.keys["admin"])
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Tenants")
    await page.get_by_label("Theme").select_option("dark")
    await page.get_by_role("button", name="Apply").click()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Tenants")
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Key", exact=True)).to_be_visible()


async def running(page: Page) -> str:
    return await page.locator(".stat", has_text="Running").locator("dd").inner_text()


async def test_what_runs_now_follows_by_itself_and_keeps_the_focus(browsing: Browsing) -> None:
    browsing.house.engine.said = {"tiny": busy(3, 0)}
    page = await browsing.page("viewer")
    await page.clock.install()
    await page.goto("/console")
    assert await running(page) == "3"
    table = page.get_by_role("region", name="Models").first
    await table.focus()
    browsing.house.engine.said = {"tiny": busy(5, 0)}
    async with page.expect_response("**/console/overview/now"):
        await page.clock.run_for(2000)
    await expect(page.locator(".stat", has_text="Running").locator("dd")).to_have_text("5")
    await expect(table).to_be_focused()


async def test_old_figures_say_that_they_are_old(browsing: Browsing) -> None:
    page = await browsing.page("viewer")
    await page.clock.install()
    await page.goto("/console")
    await page.route("**/console/overview/now", lambda route: route.abort())
    async with page.expect_event("requestfailed"):
        await page.clock.run_for(2000)
    await expect(page.locator("#now")).to_have_class("live stale")
    await page.unroute("**/console/overview/now")
    async with page.expect_response("**/console/overview/now"):
        await page.clock.run_for(4000)
    await expect(page.locator("#now")).to_have_class("live")
    browsing.complaints.remove(next(each for each in browsing.complaints if "ERR_FAILED" in each))


async def test_a_page_of_a_session_that_has_ended_comes_back_to_the_login(browsing: Browsing) -> None:
    page = await browsing.page("viewer")
    await page.clock.install()
    await page.goto("/console")
    await page.context.clear_cookies(name=SESSION_COOKIE)
    async with page.expect_navigation():
        await page.clock.run_for(2000)
    await expect(page.get_by_label("Key", exact=True)).to_be_visible()


async def test_a_script_that_somebody_smuggled_in_does_not_run(browsing: Browsing) -> None:
    """Were escaping to fail, the content security policy still stands."""
    page = await browsing.page("viewer")
    await page.goto("/console")
    await page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "document.title = 'smuggled'";
          document.body.append(script);
          document.body.setAttribute("style", "display: none");
        }"""
    )
    assert "smuggled" not in await page.title()
    assert await page.locator("h1").is_visible()
    assert [each for each in browsing.complaints if "Content Security Policy" in each] == browsing.complaints != []
    browsing.complaints.clear()
