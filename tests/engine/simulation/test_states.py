"""Seeded traffic for a model with recurrent layers: each row reads and writes its own state; planted bugs are found."""

import pytest

from engine.simulation.campaign import Limits, run_campaign
from engine.simulation.simulator import simulate
from tests.engine.simulation.plants import assert_found
from tests.support.planting import Plant, drop, keep_operand, never, plants_in, replace, replace_argument

SEEDS = 25

TABLE = {
    "engine.memory.block_pool:BlockPool": [
        Plant("a state outlives its block", "_drop_hash", never("self.on_drop is not None")),
    ],
    "engine.memory.kv_cache:KVCacheManager": [
        Plant("hits end where blocks are gone", "_refresh_to_state", replace("len(hits.blocks) == end", "True"), seed=None),
        Plant("a state slot leaks", "release", drop("end")),
        Plant("a saved state is not published", "commit", replace("request.state_saves", "()")),
    ],
    "engine.memory.sequence_states:SequenceStates": [
        Plant("a saved state is not copied", "begin", drop("append")),
        Plant("copies are lost", "plan", replace("tuple(self._copies)", "()")),
        Plant("copies are made in each step", "plan", replace("[]", "self._copies")),
        Plant("a freed slot stays pending", "end", drop("clear")),
        Plant(
            "a state is published under another hash",
            "publish",
            replace("request.block_hashes[position // BLOCK_TOKENS - 1]", "request.block_hashes[0]"),
        ),
        Plant("a state counts for the end of its row", "plan", replace_argument("StateSave", 1, "end")),
        Plant("a hit covers a state too many", "begin", replace("tokens // BLOCK_TOKENS - 1", "0")),
    ],
    "engine.memory.state_pool:StatePool": [
        Plant("an evicted slot is lost", "evict", drop("give_back")),
        Plant("saved states take what sequences need", "take_pending", replace("needed", "0")),
        Plant("a state is published twice", "publish", never("block_hash in self._slot_of")),
        Plant("a running slot is given twice", "_take", replace("self._free.pop()", "self._free[-1]")),
    ],
    "engine.scheduling.planner:Planner": [
        Plant(
            "a choice begins with the state of another",
            "_admit",
            keep_operand("self._cache.states is not None or not _can_fork(parent, request)", 1),
        ),
    ],
}
PLANTS = plants_in(TABLE)

AHEAD_TABLE = {
    "engine.scheduling.commit:Committer": [
        Plant("an advanced state is rewound", "give_back", never("self._cache.states is not None")),
    ],
}
AHEAD_PLANTS = plants_in(AHEAD_TABLE)

PARTS_TABLE = {
    "engine.memory.kv_cache:KVCacheManager": [
        Plant("a state stands for blocks that are gone", "allocate_more", never("len(cached) < count"), seed=None),
    ],
    "engine.scheduling.commit:Committer": [
        Plant("the copies of a failed step are made", "fail", drop("_preempt_uncopied")),
    ],
}
PARTS_PLANTS = plants_in(PARTS_TABLE)

SPECULATE_TABLE = {
    "engine.memory.kv_cache:KVCacheManager": [
        Plant("the states of rejected drafts are kept", "trim", replace("request.state_saves", "()")),
    ],
}
SPECULATE_PLANTS = plants_in(SPECULATE_TABLE)
