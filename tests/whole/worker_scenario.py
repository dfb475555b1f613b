"""Draws runs whose engines are in processes of their own, and the ends of these."""

from dataclasses import replace
from random import Random

from tests.whole.scenario import Action, Call, Config, Fault, FaultKind

KNOWN_WITHOUT_WORKERS = frozenset((1, 4, 5, 11, 25, 41, 53, 4953, 7302, 11251, 12146, 12682))
"""Seeds that are known for what they show of an engine in the gateway's own process."""
UPON = ("", "Submit", "Compile", "Accepted", "Deltas", "Last", "Abort", "Abort", "Aborted", "Pause", "Pause", "Resume")
AGAIN_UPON = ("", "Ready", "Submit", "Replay", "Replay", "Deltas", "Last", "Abort")


def with_workers(random: Random, config: Config, actions: list[Action]) -> tuple[Config, list[Action]]:
    """In a third of the runs the engines are in processes of their own, which are killed now and then."""
    if random.random() >= 1 / 3:
        return config, actions
    config = replace(
        config,
        workers=True,
        worker_ms=random.choice((5, 100, 100, 1_500)),
        worker_delay_us=random.choice((20, 200, 2_000)),
        worker_room=random.choice((1 << 11, 1 << 14, 1 << 17)),
    )
    asked = [
        replace(each, grammar=True)
        if isinstance(each, Call) and each.endpoint == "chat" and random.random() < 0.2
        else each
        for each in actions
    ]
    calls = [each for each in actions if isinstance(each, Call)]
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        at_ms = random.choice(calls).at_ms + random.choice((0, 5, 50, 300, 2_000)) + random.randrange(30)
        late_ms, gateway = random.choice((0, 0, 700, 4_000)), random.randrange(config.gateways)
        upon = random.choice(UPON)
        asked.append(Fault(at_ms, "worker-dies", late_ms, gateway=gateway, upon=upon))
        if upon in ("Pause", "Resume"):
            config = replace(config, window=1024, blocks=256, unread=16)
        if random.random() < 0.7:
            asked += _calls_that_meet(random, config, upon, at_ms, gateway)
        if random.random() < 0.3:
            upon = random.choice(AGAIN_UPON)
            asked.append(Fault(at_ms + random.randrange(900), "worker-dies", gateway=gateway, upon=upon))
        if random.random() < 0.12:
            asked.append(Fault(at_ms, "worker-hangs", gateway=gateway))
        if random.random() < 0.2:
            kind: FaultKind = random.choice(("worker-start-dies", "worker-start-fails"))
            asked.append(Fault(at_ms, kind, late_ms, gateway=gateway))
    return config, asked


def _calls_that_meet(random: Random, config: Config, upon: str, at_ms: int, gateway: int) -> list[Action]:
    """Calls of which a worker's end upon this message is the end, too."""
    base = Call(at_ms, random.choice(("premium", "plain")), words=random.choice((1, 20)), gateway=gateway)
    made: list[Call] = []
    for number in range(random.choice((1, 2, 3))):
        call = replace(base, at_ms=at_ms + random.randrange(200), variant=2 * number)
        match upon:
            case "Pause" | "Resume":
                call = replace(call, words=1, max_tokens=900, pace=6_000, stop=random.choice((None, None, "a")))
                stalls_ms, gone_after_ms = random.choice((1_000, 3_000, 40_000)), random.choice((None, 300, 2_000))
                made.append(replace(call, stalls_ms=stalls_ms, gone_after_ms=gone_after_ms))
            case "Abort" | "Aborted":
                gone_after_ms = random.choice((random.randrange(60), random.randrange(900)))
                made.append(replace(call, max_tokens=120, gone_after_ms=gone_after_ms, stop=random.choice((None, "a"))))
            case "Compile":
                gone_after_ms_ = random.choice((None, random.randrange(30)))
                made.append(replace(call, max_tokens=20, grammar=True, gone_after_ms=gone_after_ms_))
            case _:
                made.append(replace(call, max_tokens=random.choice((20, 60)), n=random.choice((1, 1, 3))))
    return list(made)
