"""A real browser before a real server: Debian's chromium without a window, driven by Playwright."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import uvicorn
from playwright.async_api import Browser, Page, async_playwright

from gateway.management.console.login import SESSION_COOKIE
from gateway.process.connection import server_config
from gateway.process.listener import bind
from tests.console.house import House

CHROMIUM = shutil.which("chromium")
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}
PATIENCE_MS = 10_000


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):
        """None: the tests keep theirs."""
        yield


@asynccontextmanager
async def serving(house: House) -> AsyncIterator[str]:
    """The house's application on a free loopback port, on this event loop. Yields its address."""
    config = server_config(house.app, house.services.drain)
    config.lifespan = "off"  # the house has begun it
    server = _Server(config)
    with closing(bind("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.force_exit = server.should_exit = True
            await task


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Browsing:
    """A browser before a house. `complaints` are errors and warnings of all its pages: exceptions, failed requests,
    what the content security policy forbade. A test that means one takes it out."""

    house: House
    url: str
    browser: Browser
    complaints: list[str] = field(default_factory=list)

    async def page(
        self, who: str = "admin", *, theme: str = "light", size: dict[str, int] = DESK, script: bool = True
    ) -> Page:
        """A page with a profile of its own, logged in as an owner of a key in the house ("": logged out)."""
        context = await self.browser.new_context(
            base_url=self.url,
            color_scheme=theme,
            viewport=size,
            java_script_enabled=script,
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )
        context.set_default_timeout(PATIENCE_MS)
        if who:
            cookie = {"name": SESSION_COOKIE, "value": self.house.token(who), "url": f"{self.url}/console"}
            await context.add_cookies([cookie])
        page = await context.new_page()
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        return page

    def _note(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.location.get('url')}: {message.text}")
