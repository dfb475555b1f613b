"""Bytes and operations of a model, from its config alone, and its KV memory on a device."""

from dataclasses import dataclass
from math import ceil, prod
from typing import Self

from engine.config import BLOCK_TOKENS, KVDtype, Quantize, step_sizes
from engine.memory.kv_memory import DeviceMemory, InsufficientMemory, KVPool, chosen_budget, device_budget, size_pool
from engine.models.config import ModelConfig
from engine.models.kv_groups import KVGroups, group_layers
from engine.models.layout import EMBEDDING, expected_tensors
from engine.planning.hardware import Hardware
from kernels.layout import int8_layer_bytes

WEIGHT_BYTES: dict[Quantize, float] = {"none": 2.0, "int8": 1.0, "fp8": 1.0, "int4": 0.5625}
"""Bytes of a number of a matrix; int4 with a scale of 16 bits for each 32 and an offset for each 32 numbers."""
_GRAPH_BYTES = 2 << 30
"""Assumed bytes of CUDA graphs."""
_STEP_ROW_NUMBERS = 8
"""Assumed activations of a token in a step, in multiples of the hidden size and of the width of an MLP."""


class UnplannableModel(ValueError):
    """A model, or a way to run it, that is not planned. The message names the reason."""


@dataclass(frozen=True, slots=True)
class ModelSums:
    """`weights`: numbers in all. `weight_bytes`: in memory, with the embedding. `dense_bytes`: read by each step.
    `expert_bytes`: of all experts of all layers, of which a token uses `expert_share`.

    `token_flop`: of a token outside attention; `pair_flop`: of a (query, key) pair; `kv_token_bytes`: of a token's keys
    and values in all layers.
    """

    weights: int
    weight_bytes: float
    dense_bytes: float
    expert_bytes: float
    expert_share: float
    token_flop: float
    pair_flop: float
    kv_token_bytes: float
    hidden_size: int
    layers: int

    @classmethod
    def of(cls, config: ModelConfig, quantize: Quantize = "none", kv_dtype: KVDtype = "auto") -> Self:
        """
        Raises:
            UnplannableModel: the model has recurrent layers, whose memory is not in blocks.
        """
        if config.linear is not None:
            raise UnplannableModel(f"{config.family} has recurrent layers, which the planner does not simulate")
        by_weight = WEIGHT_BYTES[quantize]
        weights, in_memory, dense, experts, active = 0, 0.0, 0.0, 0.0, 0.0
        share = 0.0 if config.experts is None else config.experts.per_token / config.experts.count
        for name, shape in expected_tensors(config):
            numbers = prod(shape)
            is_matrix = len(shape) == 2 and name != EMBEDDING
            size = numbers * (by_weight if is_matrix else 2.0)
            weights += numbers
            in_memory += size
            if ".experts." in name:
                experts += size
                active += share * numbers
            elif name != EMBEDDING or config.tie_embeddings:
                dense += size
                active += numbers
        return cls(
            weights=weights,
            weight_bytes=in_memory,
            dense_bytes=dense,
            expert_bytes=experts,
            expert_share=share,
            token_flop=2.0 * active,
            pair_flop=4.0
            * config.num_heads
            * sum(heads.dim for heads in map(config.heads_of, range(config.num_layers))),
            kv_token_bytes=kv_token_bytes(config, kv_dtype),
            hidden_size=config.hidden_size,
            layers=config.num_layers,
        )

    def read_bytes(self, tokens: int) -> float:
        """Bytes of weights that a step of `tokens` tokens reads. Each token chooses its experts independently."""
        if not self.expert_bytes:
            return self.dense_bytes
        return self.dense_bytes + self.expert_bytes * (1.0 - (1.0 - self.expert_share) ** max(tokens, 1))


def kv_token_bytes(config: ModelConfig, kv_dtype: KVDtype = "auto") -> float:
    """Bytes of KV of a token in all layers that keep it: the whole context where a layer has no window."""
    if kv_dtype == "int8":
        return sum(map(int8_layer_bytes, config.kv_heads)) / BLOCK_TOKENS
    return sum(heads.kv_numbers for heads in config.kv_heads) * (1.0 if kv_dtype == "fp8" else 2.0)


@dataclass(frozen=True, slots=True)
class Placement:
    """A model on `tensor_parallel` devices: its KV memory, and the sizes of its steps."""

    pool: KVPool
    groups: KVGroups
    window: int
    max_running: int
    step_tokens: int
    chunk_tokens: int
    tensor_parallel: int

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks


def place_model(
    config: ModelConfig,
    sums: ModelSums,
    hardware: Hardware,
    *,
    tensor_parallel: int = 1,
    max_model_len: int | None = None,
    kv_cache_bytes: int | None = None,
    max_running: int | None = None,
    step_tokens: int | None = None,
) -> Placement:
    """The KV memory that the weights and the largest steps leave, sized as the engine sizes it when it loads a model.

    Raises:
        InsufficientMemory: the weights leave no room; the message has the arithmetic.
        UnplannableModel: the heads cannot be divided among the devices.
    """
    for name, heads in (("num_attention_heads", config.num_heads), ("num_key_value_heads", config.num_kv_heads)):
        if heads % tensor_parallel:
            raise UnplannableModel(f"tensor_parallel {tensor_parallel} does not divide the {heads} {name}")
    sizes = step_sizes(hardware.memory_bytes if hardware.on_gpu else None)
    running = max_running or sizes.max_running
    tokens = max(step_tokens or sizes.step_tokens, running)
    window = min(max_model_len or config.max_position, config.max_position)
    groups = group_layers(config.kv_windows, window, config.kv_heads)
    block_bytes = ceil(sums.kv_token_bytes * BLOCK_TOKENS / len(groups.windows) / tensor_parallel)
    widest = config.hidden_size + max(map(config.mlp_size, range(config.num_layers)))
    step_bytes = 2 * _STEP_ROW_NUMBERS * widest * tokens + 4 * config.vocab_size * running
    memory = DeviceMemory(
        total_bytes=hardware.memory_bytes,
        taken_bytes=ceil(sums.weight_bytes / tensor_parallel),
        step_bytes=step_bytes,
        graph_bytes=_GRAPH_BYTES if hardware.on_gpu else 0,
    )
    limit = device_budget(memory, 1.0)
    budget = limit if kv_cache_bytes is None else chosen_budget(kv_cache_bytes, limit)
    pool = size_pool(budget, block_bytes, slots=running, window=window, groups=len(groups.windows))
    return Placement(pool, groups, window, running, tokens, min(sizes.chunk_tokens, tokens), tensor_parallel)


def smallest_tensor_parallel(config: ModelConfig, sums: ModelSums, hardware: Hardware, most: int = 8) -> int:
    """The fewest devices, a power of two, that hold the weights and KV for one window of tokens.

    Raises:
        InsufficientMemory: `most` do not.
    """
    size = 1
    while True:
        try:
            place_model(config, sums, hardware, tensor_parallel=size, max_running=1)
            return size
        except InsufficientMemory:
            if size >= most:
                raise
            size *= 2
