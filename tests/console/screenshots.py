"""Pictures of the console for the documentation: `python -m tests.console.screenshots [FOLDER]`.

Taken of a house in which something has happened, with a fake engine; they need chromium.
"""

import asyncio
import io
import logging
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import structlog
from PIL import Image

from gateway.config.store_urls import normalise_database_url
from gateway.tenancy.schema import upgrade
from tests.console.browser import CHROMIUM, PHONE, Browsing, chromium, serving
from tests.console.furnished import Furnished, furnish
from tests.console.house import ACME, open_house
from tests.support.servers import settle_sqlite

FOLDER = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 150_000
SIZE = {"width": 1200, "height": 780}
COLOURS = 192
"""Of a picture's palette: flat pages lose nothing that is seen."""
ANSWER = "The capital of France is Paris."


@dataclass(frozen=True)
class Shot:
    """`console-NAME.png`. `path` is below /console, with names of `Furnished.parts` in braces."""

    name: str
    path: str = ""
    who: str = "admin"
    theme: str = "light"
    phone: bool = False
    question: str = ""
    """Asked on the page first, and answered."""


SHOTS = (
    Shot("overview"),
    Shot("overview-dark", theme="dark"),
    Shot("overview-phone", phone=True),
    Shot("tenant", "/tenants/{tenant_id}"),
    Shot("limits", "/tenants/{tenant_id}/limits"),
    Shot("usage", "/usage?window=day&by=model"),
    Shot("usage-dark", "/usage?window=day&by=model", theme="dark"),
    Shot("requests", "/requests"),
    Shot("scheduler-dark", "/scheduler", theme="dark"),
    Shot("routing", "/routing"),
    Shot("invoice", "/invoices/{invoice_number}"),
    Shot("audit", "/audit"),
    Shot("playground", "/playground", who=ACME, question="What is the capital of France?"),
)


async def take(browsing: Browsing, furnished: Furnished, shot: Shot) -> bytes:
    page = await browsing.page(shot.who, theme=shot.theme, size=PHONE if shot.phone else SIZE)
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
    async with open_house(here, here / "blank.db") as house:
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


def main(folder: Path) -> None:
    if CHROMIUM is None:
        raise SystemExit("there is no chromium: apt-get install chromium")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as here:
        blank = Path(here) / "blank.db"
        asyncio.run(upgrade(normalise_database_url(f"sqlite:///{blank}")))
        settle_sqlite(blank)
        asyncio.run(take_all(Path(here), folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
