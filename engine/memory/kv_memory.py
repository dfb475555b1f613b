"""The size of a model's KV memory in blocks. Arithmetic only."""

from dataclasses import dataclass

from engine.config import BLOCK_TOKENS

HOST_SHARE = 0.25
"""Fraction of the host's available memory for the KV of all models, up to `MAX_HOST_BYTES`."""
MAX_HOST_BYTES = 4 * 2**30

DEVICE_SHARE = 0.92
"""Fraction of a GPU's memory for the engine. The rest is for the driver, compiled kernels and graphs."""

STATE_SHARE = 0.5
"""Fraction of the KV memory that recurrent states may take."""
SAVED_STATES = 2
"""States saved for each sequence that may run: of its prompt, and one later."""

_GIB = 2**30


class InsufficientMemory(RuntimeError):
    """The requested KV memory cannot hold a useful number of tokens; the message has the arithmetic."""


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Bytes of KV memory, and the reason for the number."""

    kv_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a GPU's memory with a model's weights loaded: in total, in use, and added by its largest steps and its
    CUDA graphs."""

    total_bytes: int
    taken_bytes: int
    step_bytes: int
    graph_bytes: int


def host_budget(available_bytes: int, share: float) -> KVBudget:
    """The KV budget of a model on the host: `share` of what all models may have."""
    kv_bytes = int(min(available_bytes * HOST_SHARE, MAX_HOST_BYTES) * share)
    return KVBudget(kv_bytes, f"{HOST_SHARE:.0%} of {_gib(available_bytes)} available, at most {_gib(MAX_HOST_BYTES)}")


def device_budget(memory: DeviceMemory, share: float) -> KVBudget:
    """The KV budget of a model on a GPU: `share` of what its weights and steps leave of the engine's memory.

    The rest is for the weights, steps and KV of models that are loaded later.
    """
    usable = int(memory.total_bytes * DEVICE_SHARE)
    left = max(0, usable - memory.taken_bytes - memory.step_bytes - memory.graph_bytes)
    reason = (
        f"{DEVICE_SHARE:.0%} of the GPU's {_gib(memory.total_bytes)}, less {_gib(memory.taken_bytes)} taken by weights "
        f"and others, {_gib(memory.step_bytes)} for the largest steps and {_gib(memory.graph_bytes)} for CUDA graphs"
    )
    return KVBudget(int(left * share), reason if share == 1 else f"{share:.0%} of: {reason}")


def chosen_budget(kv_bytes: int, limit: KVBudget | None = None) -> KVBudget:
    """The KV budget as configured.

    Raises:
        InsufficientMemory: it exceeds the limit.
    """
    if limit is not None and kv_bytes > limit.kv_bytes:
        raise InsufficientMemory(
            f"{_gib(kv_bytes)} of KV memory are configured; there are {_gib(limit.kv_bytes)}: {limit.reason}"
        )
    return KVBudget(kv_bytes, "as configured")


@dataclass(frozen=True, slots=True)
class StateSlots:
    """The recurrent states of a model: `num_slots` of `slot_bytes`, of which `max_running` sequences may run."""

    num_slots: int
    max_running: int
    slot_bytes: int

    @property
    def bytes(self) -> int:
        return self.num_slots * self.slot_bytes


@dataclass(frozen=True, slots=True)
class KVPool:
    """A model's KV memory in blocks. `block_bytes` and `spare_bytes` include the draft model's memory. `states`: of a
    model with recurrent layers, whose memory is part of the same budget. `groups`: blocks that hold the KV of 16
    tokens, before windows pass them."""

    num_blocks: int
    block_bytes: int
    budget: KVBudget
    spare_bytes: int = 0
    states: StateSlots | None = None
    groups: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of KV in all layers."""
        return self.num_blocks // self.groups * BLOCK_TOKENS

    def __str__(self) -> str:
        held = self.num_blocks * self.block_bytes + self.spare_bytes
        if self.states is None:
            return f"{self.tokens} tokens in {_gib(held)} ({self.budget.reason})"
        return (
            f"{self.tokens} tokens and {self.states.num_slots} states, for "
            f"{self.states.max_running} sequences at once, in {_gib(held + self.states.bytes)} ({self.budget.reason})"
        )


def size_states(budget: KVBudget, slot_bytes: int, *, max_running: int, saves: bool) -> StateSlots:
    """The state slots of a model with recurrent layers: one for each of `max_running` sequences and, with `saves`,
    others to save states in. Where their share of the budget is too small, fewer sequences run at once.

    Raises:
        InsufficientMemory: there is no room for one sequence.
    """
    room = int(budget.kv_bytes * STATE_SHARE) // slot_bytes
    wanted = max_running * (1 + SAVED_STATES if saves else 1)
    running = min(max_running, max(1, room // 2) if saves else room)
    if room < (2 if saves else 1):
        raise InsufficientMemory(
            f"{budget.kv_bytes} bytes of KV memory ({budget.reason}): the half for recurrent states holds {room} "
            f"of {slot_bytes} bytes; one sequence needs {2 if saves else 1}"
        )
    return StateSlots(min(wanted, room), running, slot_bytes)


def size_pool(
    budget: KVBudget,
    block_bytes: int,
    *,
    slots: int,
    window: int,
    draft_block_bytes: int = 0,
    states: StateSlots | None = None,
    groups: int = 1,
) -> KVPool:
    """The blocks that a budget holds, at most a full window of `window` tokens for each of `slots` slots.

    A draft model has as many blocks of `draft_block_bytes`, and a spare one for each slot. `states` are taken from the
    same budget. `groups`: blocks that hold the KV of 16 tokens.

    Raises:
        InsufficientMemory: less than two blocks of each group.
    """
    useful = slots * -(-window // BLOCK_TOKENS) * groups
    block_bytes += draft_block_bytes
    spare_bytes = slots * draft_block_bytes
    taken_bytes = spare_bytes + (0 if states is None else states.bytes)
    num_blocks = min(max(0, budget.kv_bytes - taken_bytes) // block_bytes, useful)
    if num_blocks < 2 * groups:
        drafting = f" and {spare_bytes} for drafts" if spare_bytes else ""
        drafting += f" and {states.bytes} for {states.num_slots} states" if states is not None else ""
        raise InsufficientMemory(
            f"{budget.kv_bytes} bytes of KV memory ({budget.reason}) hold {num_blocks} blocks of {block_bytes} bytes "
            f"({BLOCK_TOKENS} tokens each){drafting}; at least {2 * groups} are needed"
        )
    return KVPool(num_blocks, block_bytes, budget, spare_bytes, states, groups)


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
