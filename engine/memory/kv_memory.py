"""How much KV memory a model gets, in blocks: arithmetic alone."""

from dataclasses import dataclass

from engine.config import BLOCK_TOKENS

HOST_SHARE = 0.25
"""Of the host's available memory, for the KV of all models, and no more than the following."""
MOST_HOST_BYTES = 4 * 2**30

DEVICE_SHARE = 0.92
"""Of a GPU's memory, for all that the engine has there. The rest is the driver's, the compiled kernels' and graphs'."""

_GIB = 2**30


class InsufficientMemory(RuntimeError):
    """The KV memory asked for cannot hold a useful number of tokens; the message has the arithmetic."""


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Bytes that KV may take, and where the number comes from."""

    kv_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a GPU, with a model's weights loaded: all, what is taken by whomever, what its largest steps add."""

    total_bytes: int
    taken_bytes: int
    step_bytes: int


def host_budget(available_bytes: int, share: float) -> KVBudget:
    """KV memory on the host, of which a model gets `share`."""
    kv_bytes = int(min(available_bytes * HOST_SHARE, MOST_HOST_BYTES) * share)
    return KVBudget(kv_bytes, f"{HOST_SHARE:.0%} of {_gib(available_bytes)} available, at most {_gib(MOST_HOST_BYTES)}")


def device_budget(memory: DeviceMemory, share: float) -> KVBudget:
    """KV memory on a GPU: what the model leaves of the engine's part of it, of which it gets `share`.

    The rest is for the weights, steps and KV of models that are loaded after it.
    """
    usable = int(memory.total_bytes * DEVICE_SHARE)
    left = max(0, usable - memory.taken_bytes - memory.step_bytes)
    reason = (
        f"{DEVICE_SHARE:.0%} of the GPU's {_gib(memory.total_bytes)}, less {_gib(memory.taken_bytes)} taken by weights "
        f"and others and {_gib(memory.step_bytes)} for the largest steps"
    )
    return KVBudget(int(left * share), reason if share == 1 else f"{share:.0%} of: {reason}")


def chosen_budget(kv_bytes: int, limit: KVBudget | None = None) -> KVBudget:
    """KV memory as configured.

    Raises:
        InsufficientMemory: it is more than the limit.
    """
    if limit is not None and kv_bytes > limit.kv_bytes:
        raise InsufficientMemory(
            f"{_gib(kv_bytes)} of KV memory are configured; there are {_gib(limit.kv_bytes)}: {limit.reason}"
        )
    return KVBudget(kv_bytes, "as configured")


@dataclass(frozen=True, slots=True)
class KVPool:
    """A model's KV memory: so many blocks, and why. `block_bytes` and `spare_bytes` count what drafts for it, too."""

    num_blocks: int
    block_bytes: int
    budget: KVBudget
    spare_bytes: int = 0

    def __str__(self) -> str:
        held = _gib(self.num_blocks * self.block_bytes + self.spare_bytes)
        return f"{self.num_blocks * BLOCK_TOKENS} tokens in {held} ({self.budget.reason})"


def size_pool(budget: KVBudget, block_bytes: int, *, slots: int, window: int, draft_block_bytes: int = 0) -> KVPool:
    """What a budget holds, and no more than full windows of so many tokens in every slot would use.

    A model that drafts has as many blocks of its own beside these, and a spare one for each slot.

    Raises:
        InsufficientMemory: less than two blocks.
    """
    useful = slots * -(-window // BLOCK_TOKENS)
    block_bytes += draft_block_bytes
    spare_bytes = slots * draft_block_bytes
    num_blocks = min(max(0, budget.kv_bytes - spare_bytes) // block_bytes, useful)
    if num_blocks < 2:
        drafting = f" and {spare_bytes} for drafts" if spare_bytes else ""
        raise InsufficientMemory(
            f"{budget.kv_bytes} bytes of KV memory ({budget.reason}) hold {num_blocks} blocks of {block_bytes} bytes "
            f"({BLOCK_TOKENS} tokens each){drafting}; at least 2 are needed"
        )
    return KVPool(num_blocks, block_bytes, budget, spare_bytes)


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
