"""The console in this process, and in a real browser."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from playwright.async_api import Browser, Page

from tests.console.browser import CHROMIUM, Browsing, chromium, serving
from tests.console.house import House, open_house


@pytest.fixture(autouse=True)
def _errors_alone() -> Iterator[None]:
    """Unexpected log lines are printed, and shown with a test that fails."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


@pytest.fixture
async def console(sqlite_schema: Path, tmp_path: Path, anyio_backend: str) -> AsyncIterator[House]:
    """A gateway of the test's own, called in-process: `await console.page("/tenants", "viewer")`."""
    async with open_house(tmp_path, sqlite_schema) as house:
        yield house


@pytest.fixture(scope="session")
async def browser(anyio_backend: str) -> AsyncIterator[Browser]:
    """One chromium for all tests of a run; each page has a profile of its own."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    async with chromium() as browser:
        yield browser


@pytest.fixture
async def browsing(console: House, browser: Browser) -> AsyncIterator[Browsing]:
    """A browser before `console`: `page = await browsing.page("viewer")`. Fails a test whose pages complained."""
    async with serving(console) as url:
        browsing = Browsing(console, url, browser)
        try:
            yield browsing
        finally:
            for context in browser.contexts:
                await context.close()
        assert browsing.complaints == []


@pytest.fixture
async def browser_page(browsing: Browsing) -> Page:
    """Logged in as an administrator who may do everything."""
    return await browsing.page("admin")
