"""Pictures of the console for the documentation: `python -m tests.console.screenshots [FOLDER]`.

With `--all FOLDER [NAME...]`: whole pages, of every screen or of those with the names, at 1280 and 390 pixels, light
and dark, for an administrator and a tenant. They are of a house in which something has happened, with a fake engine.
They need chromium.
"""

import argparse
import asyncio
import io
import itertools
import logging
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import structlog
from PIL import Image

from gateway.config.store_urls import normalise_database_url
from gateway.tenancy.schema import upgrade
from tests.console.browser import CHROMIUM, PHONE, Browsing, chromium, serving
from tests.console.furnished import Furnished, address, console_of, furnish
from tests.console.house import ACME, open_house
from tests.support.servers import settle_sqlite

FOLDER = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 150_000
SIZE = {"width": 1200, "height": 780}
COLOURS = 192
"""Of a picture's palette: flat pages lose nothing that is seen."""
TERMS = {
    "issuer_name": "Turnpike Inc.",
    "issuer_address": "1 Toll Road\nSpringfield",
    "issuer_tax_id": "US987654321",
    "invoice_tax_percent": 19,
}
ANSWER = "The capital of France is Paris."


@dataclass(frozen=True)
class Shot:
    """`console-NAME.png`. `path` is below /console, with names of `Furnished.parts` in braces."""

    name: str
    path: str = ""
    who: str = "admin"
    theme: str = "light"
    phone: bool = False
    height: int = SIZE["height"]
    question: str = ""
    """Asked on the page first, and answered."""


SHOTS = (
    Shot("overview", height=1360),
    Shot("overview-dark", theme="dark", height=1360),
    Shot("overview-phone", phone=True),
    Shot("tenant", "/tenants/{tenant_id}"),
    Shot("limits", "/tenants/{tenant_id}/limits"),
    Shot("usage", "/usage?window=day&by=model"),
    Shot("usage-dark", "/usage?window=day&by=model", theme="dark"),
    Shot("requests", "/requests"),
    Shot("scheduler-dark", "/scheduler", theme="dark"),
    Shot("routing", "/routing"),
    Shot("invoice", "/invoices/{invoice_number}", height=900),
    Shot("audit", "/audit"),
    Shot("playground", "/playground", who=ACME, question="What is the capital of France?"),
)


WIDTHS = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


async def take_every_screen(here: Path, folder: Path, names: Collection[str]) -> None:
    """`NAME-WHO-WIDTH-THEME.png`."""
    async with open_house(here, here / "blank.db", **TERMS) as house:
        furnished = await furnish(house)
        async with serving(house) as url, chromium() as browser:
            browsing = Browsing(house, url, browser)
            for who, size, theme in itertools.product(("admin", ACME), WIDTHS, ("light", "dark")):
                page = await browsing.page(who, theme=theme, size=WIDTHS[size])
                for screen in console_of(furnished).screens:
                    if names and screen.name not in names:
                        continue
                    answer = await house.get(address(screen, furnished), who)
                    if not answer.text.startswith("<!doctype html>") or answer.status_code != 200:
                        continue
                    await page.goto(f"/console{address(screen, furnished)}")
                    await page.screenshot(path=folder / f"{screen.name}-{who}-{size}-{theme}.png", full_page=True)
                await page.context.close()
            assert browsing.complaints == [], browsing.complaints


async def take(browsing: Browsing, furnished: Furnished, shot: Shot) -> bytes:
    page = await browsing.page(shot.who, theme=shot.theme, size=PHONE if shot.phone else SIZE | {"height": shot.height})
    answer = await page.goto("/console" + shot.path.format(**furnished.parts))
    assert answer.ok, f"{shot.path}: {answer.status}"
    if shot.question:
        await page.get_by_label("Question").fill(shot.question)
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text(ANSWER).wait_for()
        await page.wait_for_load_state("networkidle")
    taken = await page.screenshot()
    await page.context.close()
    small = io.BytesIO()
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    return small.getvalue()


async def take_all(here: Path, folder: Path) -> None:
    async with open_house(here, here / "blank.db", **TERMS) as house:
        furnished = await furnish(house)
        house.engine.reply = ANSWER
        async with serving(house) as url, chromium() as browser:
            browsing = Browsing(house, url, browser)
            for shot in SHOTS:
                picture = await take(browsing, furnished, shot)
                assert len(picture) <= MAX_BYTES, f"{shot.name}: {len(picture)} bytes"
                (folder / f"console-{shot.name}.png").write_bytes(picture)
                print(f"console-{shot.name}.png: {len(picture)} bytes")
            assert browsing.complaints == []


def main(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    if CHROMIUM is None:
        raise SystemExit("there is no chromium: apt-get install chromium")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as here:
        blank = Path(here) / "blank.db"
        asyncio.run(upgrade(normalise_database_url(f"sqlite:///{blank}")))
        settle_sqlite(blank)
        if arguments.all:
            asyncio.run(take_every_screen(Path(here), folder, arguments.names))
        else:
            asyncio.run(take_all(Path(here), folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.console.screenshots")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("names", nargs="*")
    main(parser.parse_args())
