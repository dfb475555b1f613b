"""Draws runs with a model of another server, and the faults of that."""

from dataclasses import replace
from random import Random

from tests.whole.scenario import Action, Call, Config, Fault, FaultKind

KNOWN_WITHOUT_UPSTREAM = frozenset((3, 5, 10, 22, 53, 88, 141))
"""Seeds that are known for what they show of the engine."""
FAULTS: tuple[FaultKind, ...] = (
    "upstream-away", "upstream-away", "upstream-refuses", "upstream-refuses", "upstream-breaks", "upstream-breaks",
    "upstream-silent", "upstream-slow",
)  # fmt: skip
ENDPOINTS = ("chat", "completions", "responses", "messages")


def with_upstream(random: Random, config: Config, actions: list[Action]) -> tuple[Config, list[Action]]:
    """In a quarter of the runs another server runs one more model, and many calls name it."""
    if random.random() >= 1 / 4:
        return config, actions
    config = replace(
        config,
        upstream=random.choice(("last", "last", "running", "none")),
        upstream_exact=random.random() < 0.5,
        upstream_us=random.choice((500, 5_000, 5_000, 60_000)),
        upstream_tokens=random.choice((1, 1, 3)),
        upstream_room=random.choice((1, 2, 4, 100)),
    )
    share = random.choice((0.3, 0.7, 1.0))
    asked: list[Action] = [
        replace(each, model="far", adapter=None, grammar=False)
        if isinstance(each, Call) and each.endpoint in ENDPOINTS and random.random() < share
        else each
        for each in actions
    ]
    calls = [each for each in actions if isinstance(each, Call)]
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        at_ms = max(0, random.choice(calls).at_ms + random.choice((-50, 0, 5, 50, 300)) + random.randrange(30))
        fault = Fault(at_ms, random.choice(FAULTS), random.choice((20, 300, 2_000, 15_000)), random.randrange(30))
        asked.append(fault)
        if random.random() < 0.7:
            asked += _calls_that_meet(random, fault)
    return config, asked


def _calls_that_meet(random: Random, fault: Fault) -> list[Action]:
    """Answers that are computed when the fault begins; some of their clients leave."""
    return [
        Call(
            at_ms=max(0, fault.at_ms - random.choice((0, 20, 200))),
            tenant=random.choice(("premium", "plain")),
            endpoint=random.choice(("chat", "completions")),
            model="far",
            max_tokens=random.choice((20, 120)),
            n=random.choice((1, 1, 2)),
            stream=random.random() < 0.7,
            variant=number,
            gone_after_ms=random.choice((None, None, 30, 300, 2_000)),
            retries=random.choice((0, 1)),
        )
        for number in range(random.choice((1, 2, 5)))
    ]
