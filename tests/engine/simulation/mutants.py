"""Bugs to plant, one at a time, in the scheduler and the allocator: what a simulation is worth."""

import inspect
import textwrap
from dataclasses import dataclass

import pytest

from engine.memory import BlockPool, KVCacheManager, request_hashes
from engine.memory.free_blocks import FreeBlocks
from engine.memory.preemption_gain import PreemptionGain
from engine.scheduling import Scheduler
from engine.scheduling import admission as admission_module
from engine.scheduling import commit as commit_module
from engine.scheduling import decode_blocks as decode_blocks_module
from engine.scheduling import fair_queue as fair_queue_module
from engine.scheduling.admission import Admission, PreemptionBudget
from engine.scheduling.allowance import StepAllowance
from engine.scheduling.class_activity import ClassActivity
from engine.scheduling.commit import Committer
from engine.scheduling.cost import StepCostModel
from engine.scheduling.fair_queue import FairQueue
from engine.scheduling.ledger import Ledger
from engine.scheduling.planner import Planner
from engine.scheduling.request_table import RequestTable
from engine.scheduling.slots import SequenceSlots
from engine.scheduling.wait import LoadSums


@dataclass(frozen=True)
class Mutant:
    """A bug: in the source of `owner.function`, `old` becomes `new`.

    A bug that shows in few seeds is looked for from `from_seed` on, to keep the test short.
    """

    name: str
    owner: object
    function: str
    old: str
    new: str
    from_seed: int = 0

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(self.owner, self.function)
        source = textwrap.dedent(inspect.getsource(original))
        assert source.count(self.old) == 1, f"the source of {self.name} has changed"
        scope: dict[str, object] = {}
        exec(source.replace(self.old, self.new), original.__globals__, scope)
        monkeypatch.setattr(self.owner, self.function, scope[self.function])


MUTANTS = [
    Mutant("a referenced block is freed", BlockPool, "release", "references[block] - 1", "0"),
    Mutant("a hit is not counted", BlockPool, "acquire", "references[block] = before + 1", "references[block] = 1"),
    Mutant("a reused block keeps its hash", BlockPool, "_take", "self._drop_hash(block)", "pass"),
    Mutant("a hit stays on the free list", BlockPool, "acquire", "self._leave_cached(free)", "pass"),
    Mutant(
        "a miss is skipped",
        BlockPool,
        "match",
        "del found[found.index(None) :]",
        "found = [each for each in found if each is not None]",
        from_seed=120,
    ),
    Mutant(
        "a hit covers all tokens",
        KVCacheManager,
        "_max_hits",
        "(len(request.tokens) - 1)",
        "len(request.tokens)",
        from_seed=55,
    ),
    Mutant(
        "hits are pinned after others are allocated",
        KVCacheManager,
        "admit",
        """        self._pool.acquire(hits.blocks, rank, request.holder)
        request.block_table += hits.blocks
        request.block_table += self._pool.allocate(demand.num_new_blocks, rank, request.tenant, request.holder)""",
        """        own = self._pool.allocate(demand.num_new_blocks, rank, request.tenant, request.holder)
        self._pool.acquire(hits.blocks, rank, request.holder)
        request.block_table += hits.blocks + own""",
    ),
    Mutant("idle hits count as free", BlockPool, "available_after_hits", "- hits.free", "", from_seed=50),
    Mutant("a logprobs prompt is not computed", KVCacheManager, "_max_hits", " and not request.needs_whole_prompt", ""),
    Mutant("a block is published before it is full", KVCacheManager, "commit", "full = ", "full = 1 + "),
    Mutant(
        "computed survives preemption", KVCacheManager, "release", "request.computed = request.scheduled = 0", "pass"
    ),
    Mutant("blocks leak", KVCacheManager, "release", "self._return(own,", "self._return(own[:-1],"),
    Mutant("a fork writes to its parent's block", KVCacheManager, "fork", "return [", "return [] and ["),
    Mutant(
        "a fork's blocks are not counted",
        KVCacheManager,
        "fork",
        "shared.requests += 1",
        "pass",
        from_seed=60,
    ),
    Mutant("a fork misses its own token", KVCacheManager, "fork", "prompt_tokens - 1", "prompt_tokens"),
    Mutant("the hash forgets the parent", request_hashes, "block_hash", "(parent or _ROOT)", "_ROOT"),
    Mutant("the hash forgets the tokens", request_hashes, "block_hash", "*tokens)", "*tokens[:1] * 16)"),
    Mutant("the hash forgets the salt", request_hashes, "salt_extra", 'Extra("salt", salt)', 'Extra("salt", b"")'),
    Mutant("a poisoned row goes on", Committer, "_commit_row", "if not outcome.finite:", "if 0:"),
    Mutant("an aborted row is committed", Committer, "_commit_row", "if drop_reason is not None:", "if False:"),
    Mutant("a slot leaks", SequenceSlots, "give_back", "heappush(self._free, slot)", "pass"),
    Mutant("a slot is given twice", SequenceSlots, "take", "heappop(self._free)", "self._free[0]"),
    Mutant("a step is over its budget", Planner, "_plan_running", "spare -= tokens - 1", "pass"),
    Mutant("the caller's budget is ignored", Planner, "plan", "max_tokens if budget is None", "max_tokens if True"),
    Mutant("admission keeps no reserve", Admission, "_headroom_blocks", "others + 1 if others", "0 if others"),
    Mutant("admission is undone at once", Planner, "plan", "rank < sketch.open_ranks", "True"),
    Mutant(
        "the blocked do not hold up those behind",
        Planner,
        "_plan_waiting",
        "if refusal is AdmissionRefusal.BUDGET and",
        "if refusal and not blocked.tenants.append(request.tenant) and",
    ),
    Mutant("a fork waits for the dead", RequestTable, "remove", "self.release_forks(request)", "pass"),
    Mutant(
        "logprobs are doubled by preemption",
        RequestTable,
        "_stop",
        "request.prompt_logprobs.clear()",
        "pass",
        from_seed=250,
    ),
    Mutant(
        "a victim goes to the back",
        RequestTable,
        "preempt",
        "self.waiting[request.rank].add",
        "request.arrival += 99; self.waiting[request.rank].add",
    ),
    Mutant("one token too many", commit_module, "stop_after_token", "drawn >= request", "drawn > request"),
    Mutant("min_tokens is too short", commit_module, "stop_after_token", "drawn > params", "drawn >= params"),
    # classes, tenants and time
    Mutant(
        "a reserve of blocks is ignored",
        BlockPool,
        "available_after_hits",
        "max(0, reserved[above]",
        "min(0, reserved[above]",
    ),
    Mutant(
        "a reserve of slots is ignored",
        SequenceSlots,
        "available",
        "if above not in inactive",
        "if False",
        from_seed=35,
    ),
    Mutant("sharing uses up a reserve", BlockPool, "acquire", "rank > rank_of[block]", "False"),
    Mutant("an heir is not found", BlockPool, "_pass_on", "self._rank_of[block] = heir", "pass"),
    Mutant(
        "a lower class's cache outlives a higher's",
        FreeBlocks,
        "reuse_order",
        "return range(COMMON,",
        "return range(_FIRST_PROTECTED,",
    ),
    Mutant("protection does not age", FreeBlocks, "age", "len(protected) >", "0 >"),
    Mutant("a tenant evicts its neighbours", BlockPool, "_next_to_reuse", "owned >= self._tenant_blocks", "False"),
    Mutant(
        "a victim of an equal class", admission_module, "victims_for_waiting", "newcomer.rank + 1 :", "newcomer.rank :"
    ),
    Mutant(
        "victims in vain", PreemptionGain, "reaches", "return self._counted >= blocks", "return True", from_seed=450
    ),
    Mutant(
        "immunity is ignored by the waiting",
        admission_module,
        "victims_for_waiting",
        "(immune,",
        "(False,",
        from_seed=45,
    ),
    Mutant("what is free is not kept for the held back", Admission, "_blocks_to_leave", "not blocked.slots", "True"),
    Mutant("preemptions are free", PreemptionBudget, "spend", "+ preemptions * self._window_steps", "", from_seed=75),
    Mutant(
        "the highest gives way",
        decode_blocks_module,
        "victim_for_decode",
        "reversed(running[rank:])",
        "iter(running)",
        from_seed=25,
    ),
    Mutant("service is not charged", FairQueue, "charge", "+= service", "+= 0 * service"),
    Mutant("output counts like input", commit_module._Tally, "close", "OUTPUT_SERVICE * rows", "rows"),
    Mutant("a recompute is charged", commit_module, "_input_service", "max(start, request.high_water_tokens)", "start"),
    Mutant("the lift is missing", FairQueue, "add", "max(tenant.counter, self._least())", "tenant.counter"),
    Mutant("the turn is the first comer's", fair_queue_module, "turn_key", "return counter,", "return 0.0,"),
    Mutant("a tenant's last comes first", FairQueue, "head", "tenant.waiting[0]", "tenant.waiting[-1]"),
    Mutant(
        "a lower class's prompt goes first",
        Planner,
        "plan",
        "for rank in self._requests.ranks",
        "for rank in reversed(self._requests.ranks)",
    ),
    Mutant("the step's share is ignored", Planner, "_prefill_limit", "if contended else", "if False else"),
    Mutant("time is rounded away", Ledger, "charge", "share_ns -= self", "_ = self"),
    # readers that stop
    Mutant("a paused request keeps its turn", RequestTable, "pause", "self._leave_queue(request)", "pass"),
    Mutant(
        "what is in flight of the paused counts",
        RequestTable,
        "_stop",
        "self.in_flight.drop(request, drop_reason)",
        "pass",
    ),
    Mutant("a fork waits for one that pauses", RequestTable, "pause", "self.release_forks(request)", "pass"),
    Mutant(
        "a fork comes to wait for one that pauses", RequestTable, "_awaits_prompt", "parent.phase is Phase.PAUSED", "0"
    ),
    Mutant(
        "who is read again goes to the back",
        RequestTable,
        "resume",
        "request.waiting_since_ns =",
        "request.arrival += 99; request.waiting_since_ns =",
    ),
    Mutant("a pause is a wait", RequestTable, "start", "- request.paused_ns", ""),
    # bad days
    Mutant("a failed step's blocks stay cached", Committer, "_fail", "forget=True", "forget=False"),
    Mutant("a failed step is free of charge", Committer, "fail", "self._ledger.charge(step, elapsed_ns)", "pass"),
    Mutant("the speed of a device never comes back", StepCostModel, "_learn", "error < -max(limit, 0.5)", "False"),
    Mutant("steps are kept short for ever", ClassActivity, "is_active", "now_ns - last_ns < ACTIVE_NS", "True"),
    Mutant(
        "a class's slots are taken while it is active",
        RequestTable,
        "available_slots",
        "not self._activity",
        "self._activity",
    ),
    Mutant(
        "the limits are ignored", Planner, "_prefill_limit", "min(limit, limits.prefill_tokens)", "limit", from_seed=50
    ),
    Mutant("who decodes is not spared", StepAllowance, "_bound_ns", "self._target_ns is None", "True", from_seed=105),
    Mutant(
        "a step takes any time",
        StepAllowance,
        "_within",
        "min(within, self._unmeasured",
        "min(tokens, self._unmeasured",
        from_seed=80,
    ),
    Mutant("who has left is still waited for", LoadSums, "remove_running", "-1, tokens", "-1, 0 * tokens"),
    Mutant("the wait begins with the step", Scheduler, "add", "request.arrived_ns = ", "request.queue_ns = "),
]


def planted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant one by its name."""
    next(mutant for mutant in MUTANTS if mutant.name == name).plant(monkeypatch)
