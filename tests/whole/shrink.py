"""From a scenario that fails to a small one that fails the same way."""

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace

from tests.whole.scenario import Action, Scenario, as_source

FEWEST_TRIES = 400


def kind_of(failure: str) -> str:
    """The part of a failure that is the same in a smaller scenario: no numbers, nothing that names the call."""
    return re.sub(r"[0-9.]+", "#", failure.split(" for Call(")[0].split(": Call(")[0])[:80]


def shrink(scenario: Scenario, failure: Callable[[Scenario], str | None]) -> Scenario:
    """`failure` runs a scenario and says what was wrong with it. The same kind of failure counts."""
    first = failure(scenario)
    assert first is not None, "it does not fail"
    kind, tries = kind_of(first), 0

    def fails(candidate: Scenario) -> bool:
        nonlocal tries
        tries += 1
        found = failure(candidate)
        return found is not None and kind_of(found) == kind

    scenario = _fewer(scenario, fails)
    changed = True
    while changed and tries < FEWEST_TRIES:
        changed = False
        for candidate in _simpler(scenario):
            if tries < FEWEST_TRIES and fails(candidate):
                scenario, changed = candidate, True
                break
    return _fewer(scenario, fails)


def _fewer(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Without actions that it fails without, in pieces that become smaller."""
    actions, size = scenario.actions, max(1, len(scenario.actions) // 2)
    while True:
        start = 0
        while start < len(actions):
            left = actions[:start] + actions[start + size :]
            if fails(scenario.only(left)):
                actions = left
            else:
                start += size
        if size == 1:
            return scenario.only(actions)
        size = max(1, size // 2)


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    config = scenario.config
    for change in ({"gateways": 1}, {"redis": False, "gateways": 1}, {"topic": False}, {"small": False}, {"ahead": 0}):
        simpler = replace(config, **change)  # type: ignore[arg-type]
        if simpler != config:
            yield replace(scenario, config=simpler)
    for index, action in enumerate(scenario.actions):
        for each in fields(action):
            default = each.default
            if default is not MISSING and getattr(action, each.name) != default:
                simple: Action = replace(action, **{each.name: default})
                yield scenario.only((*scenario.actions[:index], simple, *scenario.actions[index + 1 :]))


def as_test(scenario: Scenario) -> str:
    """A scenario as a member of `known.SCENARIOS`."""
    actions = ",\n            ".join(map(as_source, scenario.actions))
    head = f"    Scenario(\n        {scenario.seed},\n        {as_source(scenario.config)},\n"
    return f"{head}        (\n            {actions},\n        ),\n    ),"
