"""Puts a model on a GPU: measures what its largest steps take, and gives KV memory what is left."""

from collections.abc import Callable

import torch

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.execution.device.graphs import CudaCapture, row_sizes
from engine.execution.device.runner import DeviceRunner
from engine.memory.kv_memory import DeviceMemory
from engine.models.transformer import Transformer
from engine.request import MAX_TOP_LOGPROBS, PREMIUM, Request, SamplingParams
from engine.scheduling.plan import ScheduledRow, StepPlan
from kernels.step import StepOps

_EVERYTHING = SamplingParams(
    top_p=0.5, presence_penalty=1.0, logprobs=MAX_TOP_LOGPROBS, prompt_logprobs=MAX_TOP_LOGPROBS
)
"""Asks for all that takes memory in sampling."""


def measure_memory(model: Transformer, step_ops: StepOps, config: SchedulerConfig, window: int) -> DeviceMemory:
    """Run the largest steps of a model that is loaded, and see what they take beside its weights.

    Slots are counted in. A full decode step counts once more, as graphs have memory of their own.

    Raises:
        OutOfDeviceMemory: there is no room for them.
    """
    device = model.ops.device

    def with_steps(*, decode: bool) -> int:
        return _peak_bytes(device, lambda: run_largest_step(model, step_ops, config, window, decode=decode))

    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    step_bytes = with_steps(decode=False) + with_steps(decode=True)
    torch.cuda.empty_cache()
    return DeviceMemory(total_bytes, total_bytes - free_bytes, step_bytes)


def run_largest_step(
    model: Transformer, step_ops: StepOps, config: SchedulerConfig, window: int, *, decode: bool
) -> None:
    """Run the step that takes most memory: all tokens that a step may have, drawn from for every slot.

    With `decode`, the largest step that can be a graph instead.
    """
    plan = largest_step(config, window, decode=decode)
    blocks = 1 + max(max(row.request.block_table) for row in plan.rows)
    runner = DeviceRunner(model, step_ops, num_blocks=blocks, num_slots=config.max_running, max_model_len=window)
    runner.execute(plan).result()


def place(
    model: Transformer, step_ops: StepOps, *, num_blocks: int, num_slots: int, max_model_len: int
) -> DeviceRunner:
    """A runner on the model's GPU, with its graphs recorded."""
    runner = DeviceRunner(model, step_ops, num_blocks=num_blocks, num_slots=num_slots, max_model_len=max_model_len)
    runner.capture_graphs(CudaCapture())
    return runner


def largest_step(config: SchedulerConfig, window: int, *, decode: bool) -> StepPlan:
    """A plan with a row in every slot. All write to the same blocks, as nobody reads what they are about."""
    rows = min(config.max_running, row_sizes(config.max_running)[-1]) if decode else config.max_running
    most = min(config.chunk_tokens, window)
    spare = 0 if decode else config.step_tokens - rows
    scheduled = []
    for slot in range(rows):
        tokens = min(most, 1 + spare)
        spare -= tokens - 1
        blocks = list(range(-(-tokens // BLOCK_TOKENS)))
        scheduled.append(ScheduledRow(_request(slot, tokens, blocks), 0, tokens, True))
    return StepPlan(0, tuple(scheduled))


def _request(slot: int, tokens: int, blocks: list[int]) -> Request:
    request = Request(
        id=f"largest step, slot {slot}",
        tokens=[0] * tokens,
        prompt_tokens=tokens,
        params=_EVERYTHING,
        seed=slot,
        max_tokens=1,
        eos_token_ids=(),
        arrival=slot,
        service_class=PREMIUM,
    )
    request.slot, request.block_table = slot, blocks
    return request


def _peak_bytes(device: torch.device, run: Callable[[], None]) -> int:
    """The most bytes that are taken during a call beyond what is before it."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
