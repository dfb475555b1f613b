"""Places a model on a GPU: measures the memory of its largest steps, which determines the KV memory."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from engine.config import BLOCK_TOKENS, MOST_DRAFTS, SchedulerConfig
from engine.execution.device.faults import device_errors
from engine.execution.device.graphs import DRAFTED_ROWS, SMALLEST_GRAPH, Capture, CudaCapture, row_sizes
from engine.execution.device.runner import DeviceRunner
from engine.grammar.allowed import AllowedTokens
from engine.memory.kv_memory import DeviceMemory
from engine.models.transformer import Transformer
from engine.request import MAX_TOP_LOGPROBS, PREMIUM, Request, SamplingParams
from engine.scheduling.plan import BlockCopy, ScheduledRow, StepPlan
from kernels.step import StepOps

logger = logging.getLogger(__name__)

_Output = TypeVar("_Output")

_EVERYTHING = SamplingParams(
    top_p=0.5,
    presence_penalty=1.0,
    logit_bias={0: 1.0},
    logprobs=MAX_TOP_LOGPROBS,
    prompt_logprobs=MAX_TOP_LOGPROBS,
)
"""Sampling parameters that use every feature that takes memory, or a kernel of its own."""
_OTHERS = (
    SamplingParams(),
    SamplingParams(temperature=0, logit_bias={0: 1.0}),
    SamplingParams(top_p=0.5),
)
"""Parameters whose logits the kernels read in the model's dtype, or without thresholds: other forms of the same
kernels."""


@dataclass(frozen=True, slots=True)
class DraftSteps:
    """The steps of a draft model that take most memory. `capture` captures the smallest of its `num_graphs` CUDA
    graphs."""

    largest: Sequence[Callable[[], None]]
    capture: Callable[[Capture], None]
    num_graphs: int


def allocate_adapters(model: Transformer, slots: int, max_rank: int) -> None:
    """Slots for adapters on the model's device. Before its memory is measured, which then includes them.

    Raises:
        OutOfDeviceMemory: they do not fit.
        ValueError: the device does not take adapters of that rank.
    """
    with device_errors(), torch.inference_mode():
        model.allocate_adapters(slots, max_rank)


def measure_memory(
    model: Transformer,
    step_ops: StepOps,
    config: SchedulerConfig,
    window: int,
    draft_steps: DraftSteps | None = None,
    *,
    drafts: bool,
) -> DeviceMemory:
    """Run the largest steps of a loaded model and measure the memory they take besides its weights. `drafts`: whether
    rows will have drafts. `draft_steps`: of its draft model, counted in addition.

    Slots are included; those of adapters are taken already. A full decode step counts twice, as CUDA graphs have memory
    of their own. Steps with drafts are run if there will be some, so that their kernels are compiled by then.

    Raises:
        OutOfDeviceMemory: the steps do not fit.
    """
    device = model.ops.device

    def with_steps(*, decode: bool) -> int:
        return _peak_bytes(device, lambda: run_largest_step(model, step_ops, config, window, decode=decode))

    def run_other_steps() -> None:
        run_sampled_steps(model, step_ops, config, window)
        if drafts:
            run_drafted_steps(model, step_ops, config, window)

    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    with device_errors():
        other_bytes = _peak_bytes(device, run_other_steps)
        graph_step_bytes = with_steps(decode=True)
        if drafts and model.config.linear is not None:  # graphs keep the inputs of states that are settled later
            graph_step_bytes = max(graph_step_bytes, other_bytes)
        step_bytes = max(with_steps(decode=False), other_bytes) + graph_step_bytes
        graph_bytes = measure_graphs(_small_runner(model, step_ops, config, window, 1), device, drafts=drafts)
        if draft_steps is not None:
            step_bytes += sum(_peak_bytes(device, run) for run in draft_steps.largest)
            graph_bytes += _bytes_of_graph(draft_steps.capture, device) * draft_steps.num_graphs
    torch.cuda.empty_cache()
    return DeviceMemory(total_bytes, total_bytes - free_bytes, step_bytes, graph_bytes)


def run_largest_step(
    model: Transformer, step_ops: StepOps, config: SchedulerConfig, window: int, *, decode: bool
) -> None:
    """Run the step that takes most memory and launches most kernels: the maximum of tokens, with a draw for every slot.
    Of a model with recurrent layers all rows share a state.

    With `decode`, run the largest step that a graph can replay instead.
    """
    plan = largest_step(config, window, decode=decode, groups=model.kv_groups, adapted=model.adapters is not None)
    blocks = 1 + max(max(row.request.block_table) for row in plan.rows)
    masked, *_ = plan.rows
    masked.request.matcher = AllowedTokens((0,), model.config.vocab_size)
    _small_runner(model, step_ops, config, window, blocks).execute(plan).result()


def run_sampled_steps(model: Transformer, step_ops: StepOps, config: SchedulerConfig, window: int) -> None:
    """Run decode steps of one row that launch the forms of sampling kernels which the largest step does not."""
    runner = _small_runner(model, step_ops, config, window, 1)
    for number, params in enumerate(_OTHERS):
        request = demanding_request(0, 1, [0])
        request.window_tables = [[0]] * (model.kv_groups - 1)
        request.params = params
        if number:
            request.matcher = AllowedTokens((0,), model.config.vocab_size)
        runner.execute(StepPlan(number, (ScheduledRow(request, 0, 1, True),))).result()


def run_drafted_steps(model: Transformer, step_ops: StepOps, config: SchedulerConfig, window: int) -> None:
    """Run steps that launch every form of a kernel that steps with drafts have: with many drafts for each of many rows,
    then with rows that follow these while they are in flight, and with one draft. Where none fit, do nothing.

    No step has more draws than the largest one, or a row with drafts, so that little more memory is reserved for it.
    """
    adapted, groups = model.adapters is not None, model.kv_groups
    most = min(MOST_DRAFTS, config.chunk_tokens - 1, config.step_tokens - 1, window - 2)
    if most < 1:
        return
    draws = min(config.step_tokens, max(config.max_running, 1 + most))
    rows = min(config.max_running, DRAFTED_ROWS, draws // (1 + most))
    many = drafted_step(rows, most, groups=groups, adapted=adapted)
    many.rows[0].request.matcher = AllowedTokens((0,), model.config.vocab_size)
    blocks = 1 + max(many.rows[0].request.block_table)
    runner = _small_runner(model, step_ops, config, window, blocks)
    steps = [runner.execute(many)]
    if runner.accepts_drafts:
        following = [ScheduledRow(row.request, row.tokens, 1, True) for row in many.rows]
        steps.append(runner.execute(StepPlan(1, tuple(following))))
    for step in steps:
        step.result()
    runner.execute(drafted_step(1, 1, groups=groups, adapted=adapted)).result()


def drafted_step(rows: int, drafts: int, *, groups: int = 1, adapted: bool = False) -> StepPlan:
    """A plan of rows with as many drafts each. `groups` and `adapted` as for `largest_step`."""
    blocks = list(range(-(-(2 + drafts) // BLOCK_TOKENS)))
    scheduled = []
    for slot in range(rows):
        request = demanding_request(slot, 1, blocks)
        request.window_tables = [blocks] * (groups - 1)
        request.adapter_slot = 0 if adapted else None
        scheduled.append(ScheduledRow(request, 0, 1 + drafts, True, (0,) * drafts))
    return StepPlan(0, tuple(scheduled), draft_tokens=rows * drafts)


def measure_graphs(runner: DeviceRunner, device: torch.device, *, drafts: bool) -> int:
    """Bytes that the CUDA graphs of a model take in addition to the memory that they share: those of the smallest,
    times their number. 0 if they cannot be captured."""
    sizes = runner.graph_sizes(drafts=drafts)
    smallest = replace(SMALLEST_GRAPH, adapted=sizes.adapted)
    own = _bytes_of_graph(lambda capture: runner.capture_graphs(capture, smallest), device)
    return own * len(sizes.keys) // len(smallest.keys)


def _bytes_of_graph(capture_graph: Callable[[Capture], None], device: torch.device) -> int:
    measured = _MeasuredCapture(CudaCapture(), device)
    try:
        capture_graph(measured)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize(device)  # fails if the device is lost
        return 0
    return measured.graph_bytes


class _MeasuredCapture:
    """Captures everything twice. A second graph of the same launches adds what is its own alone."""

    def __init__(self, capture: Capture, device: torch.device) -> None:
        self._capture, self._device = capture, device
        self._kept: list[Callable[[], object]] = []
        self.graph_bytes = 0

    def __call__(self, compute: Callable[[], _Output]) -> Callable[[], _Output]:
        self._kept.append(self._capture(compute))
        before = _free_bytes(self._device)
        again = self._capture(compute)
        self.graph_bytes += max(0, before - _free_bytes(self._device))
        self._kept.append(again)
        return again


def _small_runner(
    model: Transformer, step_ops: StepOps, config: SchedulerConfig, window: int, num_blocks: int
) -> DeviceRunner:
    """A runner with all slots and hardly any KV."""
    return DeviceRunner(
        model,
        step_ops,
        num_blocks=num_blocks,
        num_slots=config.max_running,
        max_model_len=window,
        num_states=0 if model.config.linear is None else 1,
    )


def place(
    model: Transformer,
    step_ops: StepOps,
    *,
    num_blocks: int,
    num_slots: int,
    max_model_len: int,
    num_states: int = 0,
    drafts: bool = False,
) -> DeviceRunner:
    """A runner on the model's GPU, with its graphs captured. `num_states`: state slots of a model with recurrent
    layers. `drafts`: whether rows will have drafts.

    A capture that fails costs speed alone: steps are then launched kernel by kernel.

    Raises:
        OutOfDeviceMemory: the KV memory or the graphs do not fit.
        DeviceLost: the capture broke the device.
    """
    with device_errors():
        runner = DeviceRunner(
            model,
            step_ops,
            num_blocks=num_blocks,
            num_slots=num_slots,
            max_model_len=max_model_len,
            num_states=num_states,
        )
        sizes = runner.graph_sizes(drafts=drafts)
        try_capture(model.ops.device, lambda capture: runner.capture_graphs(capture, sizes))
    return runner


def try_capture(device: torch.device, capture_graphs: Callable[[Capture], None]) -> None:
    """Capture CUDA graphs. A capture that fails costs speed alone.

    Raises:
        torch.OutOfMemoryError: the graphs do not fit.
        torch.AcceleratorError: the capture broke the device.
    """
    before = _free_bytes(device)
    try:
        capture_graphs(CudaCapture())
        free = _free_bytes(device)
        logger.info("CUDA graphs take %.0f MiB; %.0f MiB of the GPU are free", (before - free) / 2**20, free / 2**20)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        torch.cuda.synchronize(device)  # fails if the device is lost
        logger.warning("CUDA graphs cannot be captured, so each step costs milliseconds of launches: %s", error)


def _free_bytes(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    return torch.cuda.mem_get_info(device)[0]


def largest_step(
    config: SchedulerConfig, window: int, *, decode: bool, groups: int = 1, adapted: bool = False
) -> StepPlan:
    """A plan for a model with `groups` of KV: a row in every slot, and a copy of a block. All rows share dummy blocks;
    their KV is never read. `adapted`: they have adapters, those of empty slots."""
    rows = min(config.max_running, row_sizes(config.max_running)[-1]) if decode else config.max_running
    max_tokens = min(config.chunk_tokens, window)
    spare = 0 if decode else config.step_tokens - rows
    scheduled = []
    for slot in range(rows):
        tokens = min(max_tokens, 1 + spare)
        spare -= tokens - 1
        blocks = list(range(-(-tokens // BLOCK_TOKENS)))
        request = demanding_request(slot, tokens, blocks)
        request.window_tables = [blocks] * (groups - 1)
        request.adapter_slot = 0 if adapted else None
        scheduled.append(ScheduledRow(request, 0, tokens, True))
    return StepPlan(0, tuple(scheduled), copies=(BlockCopy(0, 0),))


def demanding_request(slot: int, tokens: int, blocks: list[int]) -> Request:
    """A request in a slot that uses every feature that takes memory."""
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
    request.slot, request.block_table, request.state = slot, blocks, 0
    return request


def _peak_bytes(device: torch.device, run: Callable[[], None]) -> int:
    """Peak of the bytes allocated during a call, beyond those allocated before it."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
