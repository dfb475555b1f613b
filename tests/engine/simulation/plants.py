"""Bugs for the simulation to find in the scheduler and the allocator, where a step is committed before the next."""

from contextlib import AbstractContextManager
from typing import Any

import pytest

from engine.simulation.report import SimulationFailure
from engine.simulation.simulator import simulate
from tests.support.planting import (
    Plant,
    always,
    compare,
    drop,
    drop_assignment,
    force_condition,
    hoist,
    insert_before,
    keep_operand,
    never,
    plant_named,
    plants_in,
    replace,
    replace_argument,
    replace_callee,
)

SEEDS_TO_FIND_A_BUG = 100

TABLE = {
    "engine.memory.block_pool:BlockPool": [
        Plant("a referenced block is freed", "release", replace("references[block] - 1", "0")),
        Plant("a hit is not counted", "acquire", keep_operand("before + 1", 1)),
        Plant("a reused block keeps its hash", "_take", drop("_drop_hash")),
        Plant("a hit stays on the free list", "acquire", drop("_leave_cached")),
        Plant(
            "a miss is skipped",
            "match",
            replace("del found[found.index(None) :]", "found = [hit for hit in found if hit is not None]"),
            seed=120,
        ),
        Plant("idle hits count as free", "available_after_hits", replace("hits.free", "0"), seed=50),
        Plant("reserved blocks are not kept", "available_after_hits", replace_callee("max", "min")),
        Plant("sharing uses up a reserve", "acquire", never("rank > rank_of[block]")),
        Plant("a released block keeps its rank", "_pass_on", drop_assignment("_rank_of")),
        Plant("a tenant evicts the blocks of others", "_next_to_reuse", never("owned >= self._tenant_blocks")),
    ],
    "engine.memory.free_blocks:FreeBlocks": [
        Plant("protected blocks are reused first", "reuse_order", replace("COMMON", "_FIRST_PROTECTED")),
        Plant("protection does not age", "age", replace("len(protected)", "0")),
    ],
    "engine.memory.kv_cache:KVCacheManager": [
        Plant("a hit covers all tokens", "_max_hits", keep_operand("len(request.tokens) - 1", 0), seed=55),
        Plant("prompt logprobs come from the cache", "_max_hits", never("request.needs_whole_prompt")),
        Plant("hits are acquired after the allocation", "admit", hoist("allocate", before="acquire")),
        Plant(
            "a block is published before it is full",
            "commit",
            replace("full = request.computed // BLOCK_TOKENS", "full = 1 + request.computed // BLOCK_TOKENS"),
        ),
        Plant("preemption keeps computed tokens", "release", drop_assignment("scheduled")),
        Plant("a block leaks", "release", replace_argument("give_back", 0, "own[:-1]")),
        Plant("a fork writes to its parent's block", "fork", never("computed % BLOCK_TOKENS")),
        Plant("the blocks of a fork are not counted", "fork", drop_assignment("requests"), seed=60),
        Plant("a fork does not recompute its last token", "fork", keep_operand("prompt_tokens - 1", 0)),
    ],
    "engine.memory.hashing": [
        Plant("the hash omits the parent", "block_hash", keep_operand("parent or _ROOT", 1)),
        Plant(
            "the hash omits all tokens but one",
            "block_hash",
            replace("_TOKENS.pack(*tokens)", "_TOKENS.pack(*tokens[:1] * 16)"),
        ),
        Plant("the hash omits the salt", "salt_extra", replace_argument("Extra", 1, "b''")),
    ],
    "engine.memory.preemption_gain:PreemptionGain": [
        Plant("preemption frees too few blocks", "reaches", always("self._counted >= blocks"), seed=450),
    ],
    "engine.scheduling.admission:Admission": [
        Plant("admission leaves no headroom", "_headroom_blocks", replace("others + each", "0")),
        Plant("a blocked request's blocks are given away", "_blocks_to_leave", always("not blocked.slots")),
    ],
    "engine.scheduling.admission:PreemptionBudget": [
        Plant("preemptions cost no budget", "spend", replace("preemptions * self._window_steps", "0"), seed=75),
    ],
    "engine.scheduling.allowance:StepAllowance": [
        Plant("prefill ignores the step time target", "_bound_ns", always("self._target_ns is None"), seed=105),
        Plant("a step has no time limit", "_within", replace_argument("min", 0, "tokens"), seed=80),
    ],
    "engine.scheduling.class_activity:ClassActivity": [
        Plant("a class stays active forever", "is_active", always("now_ns - last_ns < ACTIVE_NS")),
    ],
    "engine.scheduling.commit:Committer": [
        Plant("a row with NaN is committed", "_commit_row", never("not outcome.finite")),
        Plant("an aborted row is committed", "_commit_row", force_condition(2, False)),
        Plant("a failed step's blocks stay cached", "fail_request", replace_argument("remove", "forget", "False")),
        Plant("a failed step is not charged", "fail", drop("charge")),
    ],
    "engine.scheduling.commit:_Tally": [
        Plant("output counts as input", "close", keep_operand("OUTPUT_SERVICE * rows", 1)),
    ],
    "engine.scheduling.commit": [
        Plant(
            "recomputed tokens are charged", "_input_service", keep_operand("max(start, request.high_water_tokens)", 0)
        ),
    ],
    "engine.scheduling.cost:StepCostModel": [
        Plant("a device never becomes fast again", "_learn", never("error < -max(limit, 0.5)")),
    ],
    "engine.scheduling.fair_queue:FairQueue": [
        Plant("service is not charged", "charge", replace("service / self._weight", "0")),
        Plant("a returning tenant's counter is not lifted", "add", replace("self._least()", "0.0")),
        Plant("a tenant's last request is first", "head", replace("tenant.waiting[0]", "tenant.waiting[-1]")),
    ],
    "engine.scheduling.ledger:Ledger": [
        Plant(
            "recomputation is charged twice",
            "charge",
            replace("share_ns -= self._charge_recomputed(row, share_ns)", "self._charge_recomputed(row, share_ns)"),
        ),
    ],
    "engine.scheduling.order": [
        Plant("the order ignores the fair queue", "turn_key", replace("counter", "0.0")),
    ],
    "engine.scheduling.planner:Planner": [
        Plant("a step exceeds its budget", "_plan_running", replace("spare -= tokens - 1", "pass")),
        Plant("the caller's budget is ignored", "_begin", always("budget is None")),
        Plant("a preempted request is readmitted in the same step", "plan", always("rank < sketch.open_ranks")),
        Plant(
            "a refused request blocks none behind it",
            "_plan_waiting",
            replace("refusal is AdmissionRefusal.BUDGET", "refusal and not blocked.tenants.append(request.tenant)"),
        ),
        Plant(
            "the lowest class is planned first",
            "plan",
            replace("self._requests.ranks", "reversed(self._requests.ranks)"),
        ),
        Plant("a class's share of the step is ignored", "_prefill_limit", never("contended")),
        Plant(
            "the prefill limit is ignored",
            "_prefill_limit",
            keep_operand("min(limit, limits.prefill_tokens)", 0),
            seed=50,
        ),
    ],
    "engine.scheduling.request_table:RequestTable": [
        Plant("a fork waits for a removed parent", "remove", drop("release_forks")),
        Plant("preemption repeats prompt logprobs", "_stop", drop("clear"), seed=250),
        Plant("a preempted request loses its place", "preempt", insert_before("add", "request.arrival += 99")),
        Plant("a paused request stays queued", "pause", drop("_leave_queue")),
        Plant("a paused request's rows in flight count", "_stop", drop("drop")),
        Plant("a fork waits for its parent, which pauses", "pause", drop("release_forks")),
        Plant("a new fork waits for a paused parent", "_awaits_prompt", never("parent.phase is Phase.PAUSED")),
        Plant(
            "a resumed request loses its place",
            "resume",
            replace("request.waiting_since_ns = now_ns", "request.arrival += 99; request.waiting_since_ns = now_ns"),
        ),
        Plant("a pause counts as a wait", "start", replace("request.paused_ns", "0")),
        Plant(
            "an active class's slots are taken",
            "available_slots",
            keep_operand("not self._activity.is_active(above, self.now_ns)", 0),
        ),
    ],
    "engine.scheduling.scheduler:Scheduler": [
        Plant(
            "the wait starts with the step",
            "add",
            replace("request.arrived_ns = request.waiting_since_ns = now_ns", "request.waiting_since_ns = now_ns"),
        ),
    ],
    "engine.scheduling.slots:SequenceSlots": [
        Plant("a slot leaks", "give_back", drop("heappush")),
        Plant("a slot is given twice", "take", replace("heappop(self._free)", "self._free[0]")),
        Plant("reserved slots are not kept", "available", never("above not in inactive"), seed=35),
    ],
    "engine.scheduling.stopping": [
        Plant("an answer has one token too many", "stop_after_token", compare("drawn >= request.max_tokens", ">")),
        Plant("min_tokens is one token too short", "stop_after_token", compare("drawn > params.min_tokens", ">=")),
    ],
    "engine.scheduling.victims": [
        Plant(
            "a request preempts one of its class",
            "victims_for_waiting",
            replace("newcomer.rank + 1", "newcomer.rank", 2),
        ),
        Plant("admission preempts immune requests", "victims_for_waiting", never("immune"), seed=45),
        Plant(
            "the highest class is preempted first",
            "victim_for_decode",
            replace("reversed(running[rank:])", "iter(running)"),
            seed=25,
        ),
    ],
    "engine.scheduling.wait:LoadSums": [
        Plant("a departed request is still waited for", "remove_running", replace_argument("_change_running", 1, "0")),
    ],
}
PLANTS = plants_in(TABLE)


def planted(name: str) -> AbstractContextManager[None]:
    """Plant the bug of this name."""
    return plant_named(name, PLANTS).planted()


def assert_found(plant: Plant, arguments: str = "", **options: Any) -> None:
    """Assert that one of the first seeds shows the bug, with the command that replays it.

    `options`: of `simulate`. `arguments`: a regular expression for the command's arguments after the seed.
    """
    assert plant.seed is not None
    with (
        plant.planted(),
        pytest.raises(SimulationFailure, match=rf"again with: python -m engine\.simulation --seed \d+{arguments}"),
    ):
        for seed in range(plant.seed, plant.seed + SEEDS_TO_FIND_A_BUG):
            simulate(seed, **options)
