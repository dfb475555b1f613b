"""Pages about this gateway itself: models, alerts, settings."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from engine.runtime.model_details import ModelDetails
from tests.console.furnished import busy
from tests.console.house import House
from tests.console.html import rows, stat, text


async def test_a_model_says_where_it_is_from_what_it_takes_and_what_it_costs(console: House) -> None:
    details = ModelDetails(Path("/models/tiny.gguf"), "GGUF file", "q4_k, q6_k", 93 * 2**20, 4 * 2**30)
    engine = console.engine
    engine.models = MappingProxyType({**engine.models, "tiny": replace(engine.models["tiny"], details=details)})
    engine.said = {"tiny": busy(3, 2)}
    page = await console.page("/models", "viewer")
    card = page.split("<section")[1]
    for fact in ("/models/tiny.gguf", "q4_k, q6_k", "93.0 MiB", "4.00 GiB", "512 tokens"):
        assert fact in card
    assert (stat(card, "Running"), stat(card, "Waiting")) == ("3", "2")
    prices = {row[0]: row[1:] for row in rows(card, "Prices of tiny, US dollars per million tokens")}
    assert prices["standard"] == ["0.10", "0.050", "0.40"]
    assert prices["premium"] == ["0.30", "0.150", "1.20"]
    assert (await console.get("/models", "acme")).status_code == 403


async def test_alerts_are_judged_by_the_gateways_own_metrics(console: House) -> None:
    calm = await console.page("/alerts", "billing")
    assert "is met now" in text(calm)
    stats = busy(1, 2)  # two requests of batch have waited for 0.84 s
    late = tuple(replace(each, queue_age_ns=61 * 10**9 * bool(each.waiting)) for each in stats.classes)
    console.engine.said = {"tiny": replace(stats, classes=late)}
    first, *others = rows(await console.page("/alerts", "billing"), "Judged by this gateway, now")
    assert (first[0], first[1], first[2]) == ("met", "TurnpikeQueueOld", "ticket")
    assert "batch" in first[4]
    assert all(row[0] != "met" for row in others)


async def test_settings_say_where_each_is_from(console: House, monkeypatch: pytest.MonkeyPatch) -> None:
    title = "Settings of this gateway"
    assert "Every setting has its default" in await console.page("/settings")
    monkeypatch.setenv("TURNPIKE_LOG_LEVEL", "info")
    assert [(row[0], row[2]) for row in rows(await console.page("/settings"), title)] == [
        ("log_level", "TURNPIKE_LOG_LEVEL")
    ]
    every = {row[0]: row[1:] for row in rows(await console.page("/settings?all=yes", "viewer"), title)}
    assert every["port"] == ["8080", "default"]
    assert every["key_pepper"][0] in ("not set", '"(secret)"')
    assert (await console.get("/settings", "billing")).status_code == 403
