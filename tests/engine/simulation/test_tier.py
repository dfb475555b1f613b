"""Seeded traffic with a second pool of KV blocks, whose copier is late, loses and corrupts: no wrong byte is read."""

import pytest

from engine.simulation.campaign import Limits, run_campaign
from engine.simulation.simulator import simulate
from tests.engine.simulation.clean_seeds import assert_seeds_are_clean
from tests.engine.simulation.plants import assert_found
from tests.support.planting import Plant, always, drop, never, plants_in, replace

SEEDS = 12

TABLE = {
    "engine.memory.tiers.leases:Leases": [
        Plant("a block is not lent", "lend", drop("acquire")),
        Plant("a lease is never ended", "end", drop("release")),
    ],
    "engine.memory.tiers.fetching:Fetching": [
        Plant(
            "a block is published before it is filled",
            "begin",
            replace(
                "self._fetches[number] = fetch",
                "self._fetches[number] = fetch; self._pool.publish(blocks[0], hashes[0])",
            ),
        ),
        Plant("a bad record is published", "end", replace("records[:filled]", "records[: filled + 1]")),
        Plant("a bad record stays in the index", "end", drop("drop")),
    ],
    "engine.memory.tiers.index:TierIndex": [
        Plant(
            "a slot that is read is reused", "_evict", replace("entry.written and not entry.readers", "entry.written")
        ),
        Plant("a slot is found before it is written", "is_stored", replace("entry.written", "True")),
        Plant("a slot leaks when a copy ends", "_release_doomed", drop("append")),
        Plant("a tenant takes the slots of others", "begin_write", never("len(own) >= self._owner_slots")),
        Plant("a dropped slot is free while it is copied", "drop", never("entry.readers or not entry.written")),
    ],
    "engine.memory.tiers.tier:KVTier": [
        Plant("blocks in use are lent", "_record", replace("self._pool.references(block)", "False")),
        Plant("a failed request's KV stays stored", "forget", drop("drop")),
        Plant("a request waits twice for the same blocks", "fetch", replace("first < request.fetch_floor", "False")),
    ],
    "engine.scheduling.request_table:RequestTable": [
        Plant("requests that wait for blocks are forgotten", "end_fetch", drop("add")),
        Plant("a request that leaves is still waited for", "_leave_queue", replace("fetch is not None", "False")),
    ],
    "engine.memory.hashing": [
        Plant("tenants share records", "salt_extra", replace("Extra('salt', salt)", "Extra('salt', b'')")),
    ],
}
"""Bugs of which each is to be found in the first seeds."""


@pytest.mark.parametrize("blocks_a_step", [2, 1024])
@pytest.mark.parametrize("ahead", [0, 1], ids=["after each step", "ahead"])
def test_no_seed_breaks_an_invariant(ahead: int, blocks_a_step: int) -> None:
    assert_seeds_are_clean(SEEDS, ahead=ahead, blocks_a_step=blocks_a_step, tier=True)


def test_no_seed_breaks_an_invariant_with_drafts_and_adapters() -> None:
    assert_seeds_are_clean(SEEDS, ahead=1, speculate=True, adapters=True, tier=True)


def test_blocks_are_fetched_and_equal_seeds_give_equal_traces() -> None:
    report = run_campaign(0, Limits(seeds=SEEDS), tier=True)
    assert report.failed_seed is None
    assert report.fetched_blocks > 0
    assert simulate(4, tier=True).trace_hash == simulate(4, tier=True).trace_hash


@pytest.mark.parametrize("plant", plants_in(TABLE), ids=lambda plant: plant.name)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert_found(plant, " --ahead --tier", ahead=1, tier=True)


def test_a_fetch_that_does_not_wait_for_steps_in_flight_is_found() -> None:
    """A dropped row of a step in flight writes to a block that its request no longer holds."""
    table = {
        "engine.memory.tiers.fetching:Fetching": [
            Plant("a fetch is handed out early", "ready", always("fetch.barrier <= completed_steps")),
        ]
    }
    [plant] = plants_in(table)
    assert_found(plant, " --ahead --tier", ahead=1, tier=True)
