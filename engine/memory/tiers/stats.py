"""Metrics of the second pool."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierStats:
    """The current state of a model's second pool, and totals (`_total`) since the start. `name`: of the tier.

    `capacity_bytes`, `used_bytes`: of its slots. `waiting`: requests that wait for blocks from it. `hit_blocks_total`:
    blocks that were fetched. `failed_blocks_total`: records that could not be read and were dropped.
    `saved_ns_total`: predicted time of computing what was fetched, less the time that the requests waited for it;
    `lost_ns_total`: the same of the fetches for which that is negative, which is what they cost.
    """

    name: str
    capacity_bytes: int
    used_bytes: int
    waiting: int
    written_bytes_total: int
    read_bytes_total: int
    hit_blocks_total: int
    failed_blocks_total: int
    failed_writes_total: int
    evictions_total: int
    saved_ns_total: int
    lost_ns_total: int


@dataclass(slots=True)
class TierCounts:
    """The totals, as they are counted."""

    written_blocks: int = 0
    read_blocks: int = 0
    failed_blocks: int = 0
    failed_writes: int = 0
    saved_ns: int = 0
    lost_ns: int = 0
