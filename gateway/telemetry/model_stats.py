"""Protocols of the scheduler's counts for one model, as the metrics read them.

Names in `_ns` are nanoseconds.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol


class ClassStats(Protocol):
    """Counts of one service class of a model."""

    @property
    def name(self) -> str:
        """Name of the class."""

    @property
    def running(self) -> int:
        """Sequences that take part in steps."""

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""

    @property
    def queue_age_ns(self) -> int:
        """Age of the oldest queued sequence."""

    @property
    def held_blocks(self) -> int:
        """KV blocks that its sequences hold."""

    @property
    def reserved_blocks(self) -> int:
        """Unused part of its reserve of KV blocks."""

    @property
    def cached_blocks(self) -> int:
        """Free KV blocks with content that it used last."""

    @property
    def missing_blocks(self) -> int:
        """Reserved KV blocks that are not available; 0, or the engine has a fault."""

    @property
    def attributed_ns(self) -> int:
        """Its share of the time of all steps."""

    @property
    def recompute_ns(self) -> int:
        """The part of it spent on recomputation."""

    @property
    def recomputed_tokens(self) -> int:
        """Tokens recomputed after preemptions that it caused."""

    @property
    def preemptions_caused(self) -> int:
        """Sequences preempted for it."""

    @property
    def preemptions_suffered(self) -> int:
        """Its sequences that were preempted."""

    @property
    def active_tenants(self) -> int:
        """Tenants served in the last 60 s or waiting now."""

    @property
    def fairness(self) -> float:
        """Jain's fairness index over its active tenants (Jain, Chiu and Hawe, 1984), in [1/n, 1]."""

    @property
    def wasted_rows(self) -> int:
        """Rows of steps whose result was discarded."""

    @property
    def wasted_ns(self) -> int:
        """Time spent on those rows."""

    @property
    def itl_limited_steps(self) -> int:
        """Steps whose prefill was cut for its inter-token latency target."""


class DraftStats(Protocol):
    """One proposer's drafts for one service class; `depth` and `acceptance` are means of the latest steps."""

    @property
    def proposer(self) -> str:
        """Name of the proposer."""

    @property
    def service_class(self) -> str:
        """Name of the class."""

    @property
    def depth(self) -> float:
        """Largest number of drafts per request, mean over the latest steps."""

    @property
    def proposed_total(self) -> int:
        """Draft tokens proposed and verified."""

    @property
    def accepted_total(self) -> int:
        """Draft tokens accepted."""

    @property
    def acceptance(self) -> float:
        """Acceptance rate of the latest drafts, in [0, 1]."""


class SpeculationStats(Protocol):
    """Speculative decoding of one model."""

    @property
    def saved_ns(self) -> int:
        """Predicted time saved by drafts so far, in nanoseconds; it falls where they do not pay."""

    @property
    def drafting_ns(self) -> Mapping[str, int]:
        """Time spent on drafts, in nanoseconds, by proposer."""

    @property
    def drafts(self) -> Sequence[DraftStats]:
        """Counts by proposer and service class."""


class LaunchStats(Protocol):
    """Steps on a GPU by the way they were launched."""

    @property
    def replayed_total(self) -> int:
        """Replayed from a CUDA graph."""

    @property
    def decode_total(self) -> int:
        """Launched kernel by kernel, without prompt tokens."""

    @property
    def prefill_total(self) -> int:
        """Launched kernel by kernel, with prompt tokens."""


class StateStats(Protocol):
    """The state slots of a model with recurrent layers."""

    @property
    def slots(self) -> int:
        """Slots in total."""

    @property
    def used(self) -> int:
        """Slots of running sequences and of saves in flight."""

    @property
    def kept(self) -> int:
        """Saved states."""

    @property
    def hits_total(self) -> int:
        """Sequences that began or resumed with a saved state."""

    @property
    def evictions_total(self) -> int:
        """Saved states that were evicted."""


class AdapterStats(Protocol):
    """The slots of adapters, and totals since the model was loaded."""

    @property
    def slots(self) -> int:
        """Slots in total."""

    @property
    def resident(self) -> int:
        """Adapters that have a slot."""

    @property
    def waiting(self) -> int:
        """Requests whose adapter has none."""

    @property
    def loads_total(self) -> int:
        """Adapters loaded."""

    @property
    def evictions_total(self) -> int:
        """Adapters evicted."""

    @property
    def failures_total(self) -> int:
        """Loads that failed."""

    @property
    def load_seconds_total(self) -> float:
        """Time spent on loads."""


class TierStats(Protocol):
    """Counts of a model's second pool of KV blocks: those in `_total` since the start, the others current."""

    @property
    def name(self) -> str:
        """The tier."""

    @property
    def capacity_bytes(self) -> int:
        """Bytes that it holds."""

    @property
    def used_bytes(self) -> int:
        """Bytes of stored blocks."""

    @property
    def waiting(self) -> int:
        """Sequences that wait for blocks from it."""

    @property
    def written_bytes_total(self) -> int:
        """Bytes written."""

    @property
    def read_bytes_total(self) -> int:
        """Bytes read."""

    @property
    def hit_blocks_total(self) -> int:
        """Blocks fetched."""

    @property
    def failed_blocks_total(self) -> int:
        """Blocks that could not be read."""

    @property
    def failed_writes_total(self) -> int:
        """Blocks that could not be written."""

    @property
    def evictions_total(self) -> int:
        """Blocks overwritten by others."""

    @property
    def saved_ns_total(self) -> int:
        """Predicted time of computing, less the wait, of fetches that were faster."""

    @property
    def lost_ns_total(self) -> int:
        """The wait, less the predicted time of computing, of fetches that were slower."""


class ModelStats(Protocol):
    """The scheduler's counts for one model: those in `_total` since it was loaded, the others current."""

    @property
    def running(self) -> int:
        """Sequences that take part in steps."""

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""

    @property
    def paused(self) -> int:
        """Sequences paused by backpressure."""

    @property
    def num_blocks(self) -> int:
        """KV blocks."""

    @property
    def free_blocks(self) -> int:
        """KV blocks that no sequence holds; cached ones count as free."""

    @property
    def steps_total(self) -> int:
        """Forward passes."""

    @property
    def scheduled_tokens_total(self) -> int:
        """Tokens computed, of prompts and answers."""

    @property
    def cached_tokens_total(self) -> int:
        """Prompt tokens found in the prefix cache."""

    @property
    def pauses_total(self) -> int:
        """Pauses by backpressure."""

    @property
    def paused_ns_total(self) -> int:
        """Duration of pauses that are over, in nanoseconds."""

    @property
    def preemptions_total(self) -> int:
        """Preempted sequences."""

    @property
    def failures_total(self) -> int:
        """Sequences that ended in an error of the engine."""

    @property
    def classes(self) -> Sequence[ClassStats]:
        """Counts by service class."""

    @property
    def speculation(self) -> SpeculationStats | None:
        """Counts of drafts; None: the model has no drafts."""

    @property
    def expert_tokens(self) -> Sequence[int]:
        """Tokens that each expert has computed, over all layers; empty: the model has no experts."""

    @property
    def states(self) -> StateStats | None:
        """Counts of state slots; None: the model has no recurrent layers."""

    @property
    def launches(self) -> LaunchStats | None:
        """Counts of launched steps; None: the model is on a CPU."""

    @property
    def adapters(self) -> AdapterStats | None:
        """Counts of the slots of adapters; None: the model takes none."""

    @property
    def tier(self) -> TierStats | None:
        """Counts of the second pool of KV blocks; None: the model has none."""
