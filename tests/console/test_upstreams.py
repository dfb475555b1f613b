"""Pages of the console with a model that another server runs."""

from pathlib import Path

import pytest

from tests.console.house import open_house
from tests.support.fake_upstream import FakeUpstream


@pytest.mark.parametrize("path", ["/models", "/scheduler", "", "/prices"])
async def test_pages_show_it_with_the_local_models(sqlite_schema: Path, tmp_path: Path, path: str) -> None:
    with FakeUpstream().serving() as upstream:
        stated = {"url": upstream.url, "model": "there", "api_key": "sk-hidden"}
        prices = {"big": ("1", "0.5", "4")}
        async with open_house(tmp_path, sqlite_schema, upstreams={"big": stated}, more_prices=prices) as house:
            text = await house.page(path)
    assert "sk-hidden" not in text
    if path != "":
        assert "big" in text
    if path == "/models":
        assert upstream.url in text
        assert "Server&#39;s health" in text
