"""Statistics of an engine's schedulers, as the metrics read them."""

from dataclasses import fields
from typing import Any

from engine.memory.tiers import TierStats
from engine.scheduling.adapter_queue import AdapterStats
from engine.scheduling.plan import LaunchStats
from engine.scheduling.stats import ClassStats, DraftStats, SchedulerStats, SpeculationStats, StateStats
from gateway.telemetry.model_stats import ModelStats


def stats() -> dict[str, ModelStats]:
    counts = {field.name: number for number, field in enumerate(fields(SchedulerStats), start=1)}
    classes = {field.name: number for number, field in enumerate(fields(ClassStats), start=100)}
    own = {"classes": (ClassStats(**classes | {"name": "premium"}),), "speculation": None, "expert_tokens": (5, 7)}
    own |= {"launches": LaunchStats(replayed_total=90, decode_total=8, prefill_total=2)}
    own |= {"states": StateStats(slots=9, used=3, kept=4, hits_total=11, evictions_total=6)}
    own |= {"adapters": AdapterStats(20, 12, 3, 70, 58, 1, 1.5)}
    own |= {"tier": TierStats("disk", 900, 800, 1, 700, 600, 50, 2, 4, 30, 10**9, 2 * 10**9)}
    return {"tiny": SchedulerStats(**counts | own)}


def class_stats(name: str, **stated: Any) -> ClassStats:
    """Counts of a class, 0 unless stated."""
    return ClassStats(**{each.name: 0 for each in fields(ClassStats)} | {"name": name} | stated)


def model_stats(*classes: ClassStats, drafts: tuple[DraftStats, ...] = (), **stated: Any) -> SchedulerStats:
    """Counts of a scheduler of 100 blocks, 0 unless stated."""
    speculation = SpeculationStats(saved_ns=0, drafting_ns={}, drafts=drafts) if drafts else None
    own = {"classes": classes, "speculation": speculation, "num_blocks": 100, "free_blocks": 100, "expert_tokens": ()}
    own |= {"states": None, "launches": None, "adapters": None, "tier": None}
    return SchedulerStats(**{each.name: 0 for each in fields(SchedulerStats)} | own | stated)
