"""Scenarios and seeds that failed once: CI runs them all."""

from datetime import UTC, datetime

from tests.whole.scenario import Call, Config, Fault, Scenario

SLOW_DISK = Scenario(
    1,
    Config(start=datetime(2026, 3, 14, 12, 0, 0, tzinfo=UTC), blocks=256, window=1024, small=False, step_us=20000),
    (
        Call(at_ms=500, tenant="premium", max_tokens=120),
        Fault(at_ms=900, kind="disk-slow", lasts_ms=15000, amount=30),
        Fault(at_ms=2200, kind="crash"),
    ),
)
"""A stream that woke for one commit continued though the next was late."""

REFUSED_AT_THE_END = Scenario(
    2,
    Config(start=datetime(2026, 3, 14, 12, 0, 0, tzinfo=UTC), small=False),
    (
        Call(at_ms=3050, tenant="plain", endpoint="hostile", variant=4),
        Call(at_ms=3060, tenant="minute", endpoint="hostile", variant=6),
        Fault(at_ms=3150, kind="restart"),
        Call(at_ms=9000, tenant="plain"),
    ),
)
"""A gateway stops less than a flush after it refused a request."""

SCENARIOS: list[Scenario] = [
    SLOW_DISK,
    REFUSED_AT_THE_END,
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
        (Fault(at_ms=2276, kind="disk-fails", lasts_ms=4000), Call(at_ms=2834, tenant="prepaid", max_tokens=120)),
    ),
    # Cancelled while the engine was waited for, after its step had failed: neither journalled nor settled.
    Scenario(
        1693,
        Config(
            start=datetime(2026, 3, 14, 12, 0, 0, 312000, tzinfo=UTC),
            blocks=128,
            max_running=2,
            small=False,
            step_us=20000,
            token_us=10,
            max_wait_s=30,
            saturated_queue=0,
        ),
        (Fault(at_ms=1101, kind="step-fails"), Call(at_ms=1202, tenant="prepaid", cancelled_after_steps=4)),
    ),
    # A hold's first attempt reached Redis after its second one had been refused, and held until it expired.
    Scenario(
        1928,
        Config(
            start=datetime(2026, 3, 31, 12, 0, 0, 96000, tzinfo=UTC),
            redis=True,
            blocks=256,
            max_running=16,
            step_tokens=16,
            window=320,
            small=False,
            step_us=500,
            token_us=10,
            saturated_queue=0,
        ),
        (
            Fault(at_ms=133, kind="redis-slow", lasts_ms=700, amount=5),
            Call(at_ms=232, tenant="minute", words=20, gone_after_ms=60),
            Call(at_ms=235, tenant="minute"),
            Call(at_ms=235, tenant="minute", gone_after_ms=60),
            Call(at_ms=238, tenant="minute", words=20, max_tokens=60, n=2, gone_after_ms=60),
            Call(at_ms=242, tenant="minute", max_tokens=60, n=2, gone_after_ms=60),
            Call(at_ms=243, tenant="minute", words=40, max_tokens=60, n=2, gone_after_ms=60),
        ),
    ),
    # Credit was granted less than a key refresh before its balance was read.
    Scenario(
        3594,
        Config(
            start=datetime(2026, 3, 31, 23, 59, 51, 444000, tzinfo=UTC),
            blocks=256,
            step_tokens=32,
            small=False,
            unread=16,
        ),
        (Call(at_ms=4058, tenant="prepaid"), Fault(at_ms=4619, kind="grant", amount=1)),
    ),
    # Redis lost its data while a request held credit: others had all of it again.
    Scenario(
        4953,
        Config(
            start=datetime(2026, 3, 31, 12, 0, 0, 785000, tzinfo=UTC),
            redis=True,
            max_running=16,
            window=1024,
            small=False,
            token_us=600,
            max_wait_s=1,
            saturated_queue=10,
        ),
        (
            Call(at_ms=2032, tenant="prepaid", max_tokens=60, n=3),
            Fault(at_ms=2477, kind="redis-empty"),
            Call(at_ms=3007, tenant="prepaid", words=40, max_tokens=60, n=2),
            Call(at_ms=3105, tenant="prepaid", words=40),
        ),
    ),
    # The gateway died 52 ms after a call: its client had a part of an answer of which the journal knew nothing.
    Scenario(
        8380,
        Config(
            start=datetime(2026, 3, 14, 23, 59, 23, 990000, tzinfo=UTC),
            blocks=128,
            max_running=16,
            window=1024,
            small=False,
            token_us=10,
            saturated_queue=0,
            unread=16,
        ),
        (
            Call(at_ms=2570, tenant="spender"),
            Call(at_ms=3279, tenant="daily", max_tokens=60),
            Call(at_ms=3285, tenant="daily", max_tokens=60),
            Fault(at_ms=3337, kind="crash"),
        ),
    ),
    # The same on a disk whose commits took 300 ms, and on one that failed.
    Scenario(
        7803,
        Config(
            start=datetime(2026, 3, 31, 23, 59, 59, 299000, tzinfo=UTC),
            blocks=24,
            max_running=2,
            step_tokens=32,
            window=320,
            small=False,
            token_us=3000,
            max_wait_s=2,
            unread=16,
        ),
        (
            Fault(at_ms=4748, kind="disk-slow", lasts_ms=15000, amount=30),
            Call(at_ms=5042, tenant="premium"),
            Fault(at_ms=5214, kind="crash"),
        ),
    ),
    Scenario(
        7773,
        Config(
            start=datetime(2026, 3, 31, 12, 0, 0, 556000, tzinfo=UTC),
            blocks=256,
            max_running=16,
            step_tokens=32,
            small=False,
            max_wait_s=2,
            saturated_queue=0,
            unread=16,
        ),
        (
            Fault(at_ms=3558, kind="disk-fails", lasts_ms=700),
            Call(at_ms=3651, tenant="plain"),
            Fault(at_ms=4157, kind="crash"),
        ),
    ),
    # A stream ran on while the disk failed, and the gateway stopped: a half of its tokens was not billed.
    Scenario(
        10230,
        Config(
            start=datetime(2026, 3, 14, 12, 0, 0, 247000, tzinfo=UTC),
            blocks=40,
            max_running=16,
            step_tokens=32,
            window=320,
            small=False,
            token_us=600,
            max_wait_s=30,
            unread=16,
        ),
        (
            Call(at_ms=656, tenant="plain", max_tokens=60, n=2, pace=2000),
            Fault(at_ms=4366, kind="restart"),
            Fault(at_ms=5950, kind="sync-fails", lasts_ms=15000),
        ),
    ),
    # A gateway that stops while Redis is slower than it waits leaves its holds to expire, as where Redis is down.
    Scenario(
        29986,
        Config(
            start=datetime(2026, 3, 14, 12, 0, 0, 902000, tzinfo=UTC),
            redis=True,
            blocks=24,
            step_tokens=32,
            window=320,
            small=False,
            token_us=10,
            max_wait_s=30,
            saturated_queue=0,
        ),
        (
            Fault(at_ms=23, kind="redis-slow", lasts_ms=15000, amount=30),
            Call(at_ms=278, tenant="daily"),
            Fault(at_ms=1258, kind="restart"),
        ),
    ),
    # A hold in the buffer of a connection that broke as Redis lost its data arrived after its release was forgotten.
    Scenario(
        57185,
        Config(
            start=datetime(2026, 3, 31, 23, 59, 47, 571000, tzinfo=UTC),
            gateways=2,
            redis=True,
            topic=True,
            max_running=4,
            small=False,
            step_us=20000,
            token_us=10,
            saturated_queue=10,
            unread=16,
            states=20,
        ),
        (
            Fault(at_ms=3356, kind="redis-empty", lasts_ms=15000),
            Call(at_ms=3452, tenant="minute"),
            Call(at_ms=3453, tenant="minute", gateway=1, gone_after_ms=5),
            Call(at_ms=3459, tenant="minute", gateway=1, gone_after_ms=5),
            Call(at_ms=3470, tenant="minute", gone_after_ms=5),
            Fault(at_ms=3561, kind="redis-empty", lasts_ms=20),
        ),
    ),
    # A stall of the process made the store of sessions look away, and a turn was not released.
    Scenario(
        66794,
        Config(
            start=datetime(2026, 3, 14, 12, 0, 0, 424000, tzinfo=UTC),
            gateways=2,
            redis=True,
            topic=True,
            window=320,
            token_us=600,
            saturated_queue=2,
            states=20,
        ),
        (
            Call(at_ms=550, tenant="minute", endpoint="responses", model="small", words=40, gateway=1, variant=181),
            Call(at_ms=566, tenant="minute", endpoint="responses", model="small", words=40, gateway=1, variant=453),
            Call(at_ms=572, tenant="minute", endpoint="responses", model="small", words=40, gateway=1, variant=608),
            Call(at_ms=598, tenant="minute", words=40, gateway=1),
            Call(at_ms=611, tenant="minute", words=40, gateway=1),
            Fault(at_ms=641, kind="loop-stalls", lasts_ms=4000),
        ),
    ),
    # A gateway stops on a failing disk, which recovers after the last attempt to write usage records.
    Scenario(
        81877,
        Config(
            start=datetime(2026, 3, 14, 23, 59, 46, 840000, tzinfo=UTC),
            max_running=4,
            step_tokens=256,
            window=320,
            small=False,
            step_us=20000,
            token_us=3000,
            max_wait_s=2,
            saturated_queue=10,
            unread=16,
            states=20,
        ),
        (
            Fault(at_ms=859, kind="sync-fails", lasts_ms=4000),
            Fault(at_ms=2660, kind="revoke"),
            Call(at_ms=3378, tenant="daily", session="s2"),
            Call(at_ms=3378, tenant="daily"),
            Call(at_ms=3378, tenant="daily", session="s2"),
            Call(at_ms=3378, tenant="daily", session="s2"),
            Call(at_ms=3378, tenant="daily", endpoint="completions", words=20, max_tokens=60, variant=851, pace=2000),
            Call(at_ms=3378, tenant="daily", endpoint="completions", words=1, max_tokens=1, stop="\n", variant=251),
            Call(at_ms=3378, tenant="daily", endpoint="messages", model="auto", words=40, max_tokens=1, variant=267),
            Call(
                at_ms=3378,
                tenant="daily",
                model="auto",
                words=1,
                max_tokens=60,
                stream=False,
                session="s2",
                variant=601,
            ),
            Call(at_ms=3378, tenant="daily", max_tokens=2, n=3, stream=False, variant=786),
            Call(at_ms=3378, tenant="daily", model="auto", words=1, max_tokens=20, session="s2", variant=5, retries=2),
            Fault(at_ms=3613, kind="restart", lasts_ms=700, amount=5),
        ),
    ),
    # Redis kept counting what a failing disk had lost of an answer that a stop cut.
    Scenario(
        83638,
        Config(
            start=datetime(2026, 3, 14, 23, 59, 53, 625000, tzinfo=UTC),
            redis=True,
            blocks=24,
            max_running=2,
            step_tokens=16,
            window=1024,
            small=False,
            step_us=20000,
            token_us=3000,
            max_wait_s=2,
            saturated_queue=0,
            states=20,
        ),
        (
            Call(at_ms=502, tenant="plain"),
            Call(at_ms=503, tenant="prepaid", max_tokens=120),
            Call(at_ms=503, tenant="economy"),
            Fault(at_ms=1458, kind="restart"),
            Fault(at_ms=3888, kind="disk-fails", lasts_ms=4000),
        ),
    ),
    # The auditor counted what may be lost back from the error that ended a stream, not from its last tokens.
    Scenario(
        87686,
        Config(
            start=datetime(2026, 3, 14, 23, 59, 34, 202000, tzinfo=UTC),
            blocks=128,
            max_running=4,
            step_tokens=256,
            ahead=1,
            small=False,
            token_us=3000,
            max_wait_s=30,
            windows=(100, None),
        ),
        (
            Call(at_ms=233, tenant="daily", max_tokens=60, gone_after_ms=1500),
            Call(at_ms=234, tenant="daily", max_tokens=60, n=2, variant=814),
            Call(at_ms=235, tenant="daily", words=20, variant=340),
            Call(at_ms=539, tenant="prepaid"),
            Fault(at_ms=656, kind="disk-fails", lasts_ms=4000),
            Call(at_ms=690, tenant="premium", endpoint="responses", variant=542),
            Fault(at_ms=1163, kind="restart"),
        ),
    ),
]
"""Reduced by `--shrink`."""

SEEDS: list[int] = [6397, 6726, 7089, 7302, 7860, 11043, 11251, 12146, 12682, 12755, 14492, 14869, 18114, 19710]
