"""The scheduler's page shows the state of the scheduler, and follows it."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from playwright.async_api import expect

from engine.scheduling.stats import ClassStats, DraftStats, SchedulerStats, SpeculationStats
from gateway.management.console.scheduler_figures import (
    LOOK_EVERY_NS,
    OLDEST_NS,
    Looks,
    ModelFigures,
    blocks_of,
    free_blocks_of,
)
from tests.console.browser import Browsing
from tests.console.house import House
from tests.console.html import text
from tests.support.scheduler_stats import class_stats

SECOND_NS = 10**9


def of_class(name: str, **changes: object) -> ClassStats:
    blocks = {"held_blocks": 30, "reserved_blocks": 10, "cached_blocks": 5}
    requests = {"running": 2, "waiting": 1, "queue_age_ns": 1_500_000_000, "active_tenants": 2, "fairness": 0.875}
    work = {"attributed_ns": 3 * SECOND_NS, "recomputed_tokens": 77, "preemptions_caused": 4}
    return class_stats(name, **blocks | requests | work | changes)


SCHEDULER = SchedulerStats(
    running=3,
    waiting=1,
    paused=6,
    free_blocks=60,
    num_blocks=100,
    steps_total=1000,
    scheduled_tokens_total=3000,
    cached_tokens_total=1000,
    preemptions_total=4,
    pauses_total=9,
    paused_ns_total=0,
    failures_total=0,
    wasted_rows_total=0,
    classes=(
        of_class("premium"),
        of_class(
            "standard",
            running=1,
            waiting=0,
            queue_age_ns=0,
            held_blocks=10,
            reserved_blocks=0,
            cached_blocks=15,
            attributed_ns=SECOND_NS,
        ),
    ),
    speculation=SpeculationStats(
        2 * SECOND_NS, MappingProxyType({"ngram": 5}), (DraftStats("ngram", "premium", 2.5, 400, 300, 0.8),)
    ),
)


async def test_all_is_there(console: House) -> None:
    console.engine.said = {"tiny": SCHEDULER}
    page = text(await console.page("/scheduler", "viewer"))
    for expected in (
        "held by premium 30",
        "held by standard 10",
        "cached for premium 5",
        "cached for standard 15",
        "empty 40",
        "reserved for premium 10",
        "unreserved 50",
        "Running 3",
        "Waiting 1",
        "Paused 6",
        "Preemptions 4",
        "KV blocks in use 40.0 %",
        "Prefix cache hit rate 25.0 %",
        "Time saved by drafts 2 s",
        "premium 2 1 1.5 s 30 10 5 0 4 77 75.0 % 2 0.88",
        "ngram premium 2.5 80.0 % 400 300",
    ):
        assert expected in page, expected


async def test_a_loss_by_drafts_is_explained_beside_its_baseline(console: House) -> None:
    lossy = replace(SCHEDULER.speculation, saved_ns=-SECOND_NS // 2)
    console.engine.said = {"tiny": replace(SCHEDULER, speculation=lossy)}
    page = text(await console.page("/scheduler", "viewer"))
    total_s = sum(each.attributed_ns for each in SCHEDULER.classes) / SECOND_NS
    assert f"Time lost to drafts 500 ms {total_s:.3g} s in total; without drafts about {total_s - 0.5:.3g} s" in page
    assert "estimate" in page
    assert "Time saved" not in page


async def test_the_live_part_is_the_page_without_its_frame(console: House) -> None:
    console.engine.said = {"tiny": SCHEDULER}
    whole, part = await console.page("/scheduler"), await console.page("/scheduler/now")
    assert "<html" not in part
    assert text(part).split("Steps/s")[0] in text(whole)


async def test_no_tenant_sees_what_others_do(console: House) -> None:
    for path in ("/scheduler", "/scheduler/now"):
        assert (await console.get(path, "acme")).status_code == 403


async def test_an_engine_without_models_is_said(console: House) -> None:
    assert "No model is loaded" in await console.page("/scheduler")


def test_blocks_fill_the_bar_exactly() -> None:
    chart, free = blocks_of(SCHEDULER), free_blocks_of(SCHEDULER)
    assert sum(int(each.total) for each in chart.legend) == SCHEDULER.num_blocks
    assert sum(bar.width for bar in chart.bars) == pytest.approx(0.6 * chart.width, abs=0.1), "the rest is empty"
    assert sum(int(each.total) for each in free.legend) == SCHEDULER.free_blocks
    assert sum(bar.width for bar in free.bars) == pytest.approx(free.width / 6, abs=0.1)


def test_rates_are_between_two_looks() -> None:
    moments = [0, LOOK_EVERY_NS // 2, 4 * SECOND_NS, 40 * SECOND_NS]
    clock = iter(moments)
    looks = Looks(lambda: next(clock))
    first, nothing = looks.look({"tiny": SCHEDULER})
    assert nothing is None
    assert ModelFigures.of("tiny", first, None).steps_per_s == ""
    looks.look({"tiny": SCHEDULER})
    later = replace(SCHEDULER, steps_total=1100, scheduled_tokens_total=3000)
    figures = ModelFigures.of("tiny", *looks.look({"tiny": later}))
    assert (figures.steps_per_s, figures.tokens_per_s) == ("25.0", "0.0")
    assert moments[3] - moments[2] > OLDEST_NS
    assert looks.look({"tiny": later})[1] is None, "what was long ago says nothing of now"


def test_a_model_that_was_loaded_anew_has_no_rate_yet() -> None:
    clock = iter((0, SECOND_NS))
    looks = Looks(lambda: next(clock))
    looks.look({"tiny": SCHEDULER})
    figures = ModelFigures.of("tiny", *looks.look({"tiny": replace(SCHEDULER, steps_total=3)}))
    assert figures.steps_per_s == ""


async def test_it_is_live_in_a_browser(browsing: Browsing) -> None:
    browsing.house.engine.said = {"tiny": SCHEDULER}
    page = await browsing.page("viewer")
    await page.clock.install()
    await page.goto("/console/scheduler")
    running = page.locator(".stat", has_text="Running")
    await expect(running).to_contain_text("3")
    browsing.house.engine.said = {"tiny": replace(SCHEDULER, running=4444)}
    async with page.expect_response("**/console/scheduler/now"):
        await page.clock.run_for(2000)
    await expect(running).to_contain_text("4,444")
