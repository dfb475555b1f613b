"""One run: a scenario played in a world, and what was found wrong with it."""

import asyncio
import gc
import logging
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from tests.whole import clients
from tests.whole.audit import Auditor
from tests.whole.clock import VirtualClock
from tests.whole.loop import VirtualLoop
from tests.whole.operator import apply_fault
from tests.whole.randomness import seeded
from tests.whole.scenario import Call, Scenario, draw
from tests.whole.tenants import template
from tests.whole.threads import simulated
from tests.whole.world import THREADED_MODULES, World, quiet, read_once, unread

MOST_SECONDS = 400.0
"""Of virtual time: whatever is waited for longer never comes."""
MOST_EVENTS = 150_000
"""Of one run: five times as many as the longest that ended well."""
FEW_EVENTS = 30_000
"""Those of the longest run that ended well."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failure` is what was found wrong, None where nothing was. `events`: callbacks that the loop ran."""

    scenario: Scenario
    failure: str | None
    detail: str
    events: int
    virtual_s: float
    requests: int


def run(scenario: Scenario, most_events: int = MOST_EVENTS) -> Outcome:
    """Play a scenario; the same one always goes the same way. A run of more than `most_events` fails."""
    template()
    _warm_up()
    return _run(scenario, most_events)


@cache
def _warm_up() -> None:
    """A process's first run goes its own way, as what is made once a process is made amid it."""
    _run(draw(0), MOST_EVENTS)


def _run(scenario: Scenario, most_events: int) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="whole-", dir=_fast_folder()))
    clock = VirtualClock(scenario.config.start)
    failure, detail, auditor = None, "", None
    counted = _Counted(most_events)
    gc.collect()
    gc.freeze()
    gc.disable()  # what is collected is finished then, and that is to be at the same moment each time: at the end
    try:
        logging.disable(logging.CRITICAL)
        with seeded(scenario.seed), quiet(), read_once(), unread(scenario.config.unread), clock.installed():
            loop = VirtualLoop(clock)
            counted.watch(loop)
            random = Random(f"world-{scenario.seed}")
            try:
                with simulated(loop, random, THREADED_MODULES) as machine:
                    world = World(scenario.config, folder, clock, loop, random)
                    auditor = Auditor(world, machine)
                    try:
                        with world.installed():
                            loop.run_until_complete(_play(scenario, world, auditor))
                    finally:
                        machine.kill_all()
            finally:
                _abandon(loop)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        failure = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        detail = "".join(traceback.format_exception(error))
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
        shutil.rmtree(folder, ignore_errors=True)
    requests = 0 if auditor is None else len(auditor.reports)
    return Outcome(scenario, failure, detail, counted.events, clock.elapsed_s, requests)


async def _play(scenario: Scenario, world: World, auditor: Auditor) -> None:
    await world.start()
    auditor.begin()
    tasks = [
        asyncio.create_task(_act(world, action, auditor), name=f"action {index}")
        for index, action in enumerate(scenario.actions)
    ]
    async with asyncio.timeout(MOST_SECONDS):
        for task in tasks:
            await task
    await auditor.at_rest()
    await world.aclose()
    auditor.at_end()


async def _act(world: World, action: object, auditor: Auditor) -> None:
    await asyncio.sleep(action.at_ms / 1000)
    if isinstance(action, Call):
        await clients.perform(world, action, auditor.reports)
    else:
        await apply_fault(world, action, auditor)  # type: ignore[arg-type]


class _Counted:
    """Counts the callbacks of a loop, up to a limit."""

    def __init__(self, most_events: int) -> None:
        self.events = 0
        self._most_events = most_events

    def watch(self, loop: VirtualLoop) -> None:
        once: Callable[[], None] = loop._run_once  # type: ignore[attr-defined]

        def run_once() -> None:
            self.events += len(loop._ready)  # type: ignore[attr-defined]
            assert self.events < self._most_events, "the run does not end"
            once()

        loop._run_once = run_once  # type: ignore[attr-defined]


def _abandon(loop: VirtualLoop) -> None:
    """Release what a failed run leaves, without warnings."""
    loop.set_exception_handler(lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            for task in asyncio.all_tasks(loop):
                task.cancel()
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not loop.is_closed():
                loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
