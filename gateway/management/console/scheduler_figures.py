"""From what a scheduler says of itself to what a page shows: blocks by class, and how fast its counters grow."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic_ns

from engine.scheduling.stats import ClassStats, DraftStats, SchedulerStats
from gateway.management.console.charts import Chart, shares
from gateway.management.console.formatting import duration, percent, whole

MAX_LOOKS = 16
LOOK_EVERY_NS = 500_000_000
"""Looks that follow one another faster do not make rates better."""
OLDEST_NS = 15 * 10**9

_NS_PER_MS = 10**6
_NS_PER_S = 10**9

Stats = Mapping[str, SchedulerStats]


@dataclass(frozen=True, slots=True)
class Look:
    """A sample of the counters of all schedulers. `at_ns`: monotonic time."""

    at_ns: int
    stats: Stats


class Looks:
    """The latest samples, shared by all viewers. Rates are differences between the oldest of them and now."""

    def __init__(self, clock_ns: Callable[[], int] = monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._looks: deque[Look] = deque(maxlen=MAX_LOOKS)

    def look(self, stats: Stats) -> "tuple[Look, Look | None]":
        """Now, and an earlier look of the last seconds to compare it with, if there was one."""
        now = Look(self._clock_ns(), stats)
        while self._looks and now.at_ns - self._looks[0].at_ns > OLDEST_NS:
            self._looks.popleft()
        earlier = self._looks[0] if self._looks else None
        if not self._looks or now.at_ns - self._looks[-1].at_ns >= LOOK_EVERY_NS:
            self._looks.append(now)
        return now, earlier


@dataclass(frozen=True, slots=True)
class ClassLine:
    """A class of a model, as its line of the table says it."""

    name: str
    running: int
    waiting: int
    queue_age: str
    held_blocks: int
    reserved_blocks: int
    cached_blocks: int
    preempted: int
    preempted_others: int
    engine_share: str
    recomputed_tokens: int
    tenants: int
    fairness: str

    @classmethod
    def of(cls, stats: ClassStats, all_ns: int) -> "ClassLine":
        return cls(
            stats.name,
            stats.running,
            stats.waiting,
            duration(stats.queue_age_ns / _NS_PER_MS),
            stats.held_blocks,
            stats.reserved_blocks,
            stats.cached_blocks,
            stats.preemptions_suffered,
            stats.preemptions_caused,
            percent(stats.attributed_ns, all_ns),
            stats.recomputed_tokens,
            stats.active_tenants,
            f"{stats.fairness:.2f}" if stats.active_tenants else "–",
        )


@dataclass(frozen=True, slots=True)
class DraftLine:
    """Counts of one proposer's drafts for one class."""

    proposer: str
    service_class: str
    depth: str
    acceptance: str
    proposed: int
    accepted: int

    @classmethod
    def of(cls, stats: DraftStats) -> "DraftLine":
        return cls(
            stats.proposer,
            stats.service_class,
            f"{stats.depth:.1f}",
            percent(stats.acceptance, 1),
            stats.proposed_total,
            stats.accepted_total,
        )


@dataclass(frozen=True, slots=True)
class DraftEffect:
    """The effect of drafts on engine time since the model was loaded. `amount`: saved, or lost if `is_loss`. `actual`:
    all engine time; `without`: the estimate of it for the same tokens without drafts."""

    is_loss: bool
    amount: str
    actual: str
    without: str

    @classmethod
    def of(cls, saved_ns: int, all_ns: int) -> "DraftEffect":
        times = (abs(saved_ns), all_ns, max(0, all_ns + saved_ns))
        return cls(saved_ns < 0, *(duration(each / _NS_PER_MS) for each in times))


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """All that the page shows of one model. Rates are empty until there was an earlier look."""

    name: str
    running: int
    waiting: int
    paused: int
    preempted: int
    failures: int
    steps_per_s: str
    tokens_per_s: str
    prefix_hits: str
    blocks: Chart
    free_blocks: Chart
    num_blocks: int
    used: str
    classes: tuple[ClassLine, ...]
    drafts: tuple[DraftLine, ...]
    draft_effect: DraftEffect | None
    """None: the model has no drafts."""

    @classmethod
    def of(cls, name: str, now: Look, earlier: Look | None) -> "ModelFigures":
        stats = now.stats[name]
        before = None if earlier is None else earlier.stats.get(name)
        elapsed_ns = 0 if earlier is None else now.at_ns - earlier.at_ns
        all_ns = sum(each.attributed_ns for each in stats.classes)
        return cls(
            name,
            stats.running,
            stats.waiting,
            stats.paused,
            stats.preemptions_total,
            stats.failures_total,
            _rate(stats.steps_total, None if before is None else before.steps_total, elapsed_ns),
            _rate(stats.scheduled_tokens_total, None if before is None else before.scheduled_tokens_total, elapsed_ns),
            percent(stats.cached_tokens_total, stats.cached_tokens_total + stats.scheduled_tokens_total),
            blocks_of(stats),
            free_blocks_of(stats),
            stats.num_blocks,
            percent(stats.num_blocks - stats.free_blocks, stats.num_blocks),
            tuple(ClassLine.of(each, all_ns) for each in stats.classes),
            () if stats.speculation is None else tuple(map(DraftLine.of, stats.speculation.drafts)),
            None if stats.speculation is None else DraftEffect.of(stats.speculation.saved_ns, all_ns),
        )


def blocks_of(stats: SchedulerStats) -> Chart:
    """All blocks of a model: held by each class, free with content that each class used last, and free without."""
    held = [(f"held by {each.name}", each.held_blocks) for each in stats.classes]
    cached = [(f"cached for {each.name}", each.cached_blocks) for each in stats.classes]
    return shares("KV blocks", held + cached, whole, of=stats.num_blocks, rest="empty")


def free_blocks_of(stats: SchedulerStats) -> Chart:
    """The free ones, cached and empty, by who may take them: a class's reserve is out of reach of those below it."""
    reserved = [(f"reserved for {each.name}", each.reserved_blocks) for each in stats.classes if each.reserved_blocks]
    return shares("Free blocks", reserved, whole, of=stats.free_blocks, rest="unreserved")


def _rate(count: int, before: int | None, elapsed_ns: int) -> str:
    """A counter's increase per second. Empty if it has decreased, as the model was reloaded."""
    if before is None or elapsed_ns <= 0 or count < before:
        return ""
    return f"{(count - before) * _NS_PER_S / elapsed_ns:,.1f}"
