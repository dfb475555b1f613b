"""Scenarios and seeds that failed once: CI runs them all."""

from datetime import UTC, datetime

from tests.whole.scenario import Call, Config, Fault, Scenario

SCENARIOS: list[Scenario] = [
    # A hang-up at a wait that others had overtaken divided by zero on the engine thread.
    Scenario(
        317,
        Config(
            start=datetime(2026, 3, 31, 23, 59, 50, 4000, tzinfo=UTC),
            blocks=24,
            max_running=4,
            step_tokens=256,
            window=128,
            small=False,
            step_us=500,
            token_us=3000,
            max_wait_s=2,
        ),
        (
            Call(at_ms=2527, tenant="daily", endpoint="completions", max_tokens=20, n=3, cancelled_after_steps=29),
            Call(at_ms=2532, tenant="premium"),
            Call(at_ms=2592, tenant="minute"),
        ),
    ),
    # The disk failed when credit was asked for and nothing else was to be written: no request ever began again.
    Scenario(
        393,
        Config(
            start=datetime(2026, 3, 31, 23, 59, 55, 40000, tzinfo=UTC),
            blocks=128,
            max_running=2,
            step_tokens=32,
            window=128,
            small=False,
            step_us=500,
            token_us=3000,
            max_wait_s=2,
            saturated_queue=10,
        ),
        (
            Fault(at_ms=2276, kind="disk-fails", lasts_ms=4000),
            Call(at_ms=2834, tenant="prepaid", max_tokens=120),
        ),
    ),
]
"""Reduced by `--shrink`."""

SEEDS: list[int] = []
