"""Drift between the journal and the store, as the console shows it."""

import time
from dataclasses import replace

from gateway.common.ids import new_event_id
from gateway.metering.event import COLUMNS, UsageEvent
from gateway.metering.reconciliation.reconciliation_monitor import Drift
from gateway.metering.sink.intake import EVENTS_TABLE, row_of
from tests.console.house import House
from tests.support.usage_requests import finish, journalled, until

EVENTS = 6
HOUR_MS = 3_600_000


async def with_usage(console: House) -> list[UsageEvent]:
    """Usage of two hours ago that has arrived in the store."""
    ended_ms = (int(time.time() * 1000) // HOUR_MS - 2) * HOUR_MS
    await finish(console.services.journal, EVENTS, ended_ms)
    await until(lambda: console.services.journal.backlog_events == 0)
    return journalled(console.settings.journal_path)


async def put(console: House, event: UsageEvent) -> None:
    await console.services.analytics.insert(EVENTS_TABLE, COLUMNS, [row_of(event)])


async def test_nothing_is_compared_until_somebody_asks(console: House) -> None:
    page = await console.page("/reconciliation", "viewer")
    assert "in transit, " not in page
    assert ">Compare<" in page


async def test_what_agrees_is_said_to_agree(console: House) -> None:
    await with_usage(console)
    page = await console.page("/reconciliation?run=yes&start=&end=", "viewer")
    assert "No drift" in page
    for side in ("Journal", "Usage store"):
        assert f'<td>{side}</td>\n  <td class="number">{EVENTS}</td>' in page


async def test_the_last_automatic_check_is_shown_unasked(console: House) -> None:
    books = console.services.books
    assert books is not None
    assert "No automatic check has ended yet" in await console.page("/reconciliation", "viewer")
    await with_usage(console)
    for _ in range(2):
        await books.check(int(time.time() * 1000))
    page = await console.page("/reconciliation", "viewer")
    assert "Journal and usage store agree" in page
    assert "data-ago>" in page.split("Checked ")[1][:120]
    books.drift = Drift(hours=1, missing=2)
    assert "<strong>Drift</strong> in 1 hours" in await console.page("/reconciliation", "viewer")


async def test_drift_is_shown_plainly(console: House) -> None:
    gone, changed, doubled, *_ = await with_usage(console)
    await console.services.analytics.command(
        "DELETE FROM usage_events WHERE event_id = {id:UUID}", {"id": gone.event_id}
    )
    await put(console, replace(changed, completion_tokens=changed.completion_tokens + 1))
    intruder = replace(doubled, event_id=new_event_id())
    await put(console, intruder)
    page = await console.page("/reconciliation?run=yes", "billing")
    assert "No drift" not in page
    summary = page.split("<strong>Drift:</strong>")[1].split("</p>")[0]
    for said in ("missing: 1;", "altered: 1;", "doubled: 2;", "hours that do not add up: 1;"):
        assert said in summary
    missing, altered = (page.split(f"<caption>{name}: ")[1].split("</table>")[0] for name in ("Missing", "Altered"))
    assert str(gone.event_id) in missing
    assert str(changed.event_id) in altered
    assert "differs in completion_tokens" in altered
    assert str(intruder.event_id) in page.split("<caption>Doubled: ")[1].split("</table>")[0]
    assert "Hours that do not add up" in page


async def test_usage_that_no_gateway_signed_is_shown_with_its_source(console: House) -> None:
    event, *_ = await with_usage(console)
    intruder = replace(event, event_id=new_event_id(), source="<b>invented</b>")
    await put(console, intruder)
    page = await console.page("/reconciliation?run=yes", "viewer")
    assert "unauthenticated: 1;" in page.split("<strong>Drift:</strong>")[1].split("</p>")[0]
    unsigned = page.split("<caption>Unauthenticated: ")[1].split("</table>")[0]
    assert str(intruder.event_id) in unsigned
    assert "no signature" in unsigned
    sources = page.split("<caption>Unknown sources: ")[1].split("</table>")[0]
    assert "&lt;b&gt;invented&lt;/b&gt;" in sources


async def test_a_window_is_chosen_and_a_wrong_one_refused(console: House) -> None:
    await with_usage(console)
    page = await console.page("/reconciliation?run=yes&start=2020-01-01T00:00&end=2020-01-02T00:00")
    assert 'value="2020-01-01T00:00"' in page
    assert '<td>Journal</td>\n  <td class="number">0</td>' in page
    await console.page("/reconciliation?run=yes&start=2020-01-02T00:00&end=2020-01-01T00:00", status=400)
