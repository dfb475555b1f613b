"""A recorded decode step gives what the same step gives launch by launch, for every size that is recorded."""

import torch

from benchmarks.gpu.checks import TOLERANCE, share_that_differs, worst_row_error
from benchmarks.gpu.models import random_model
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stepping import Stepper, blocks_for
from engine.execution.device.graphs import Capture, GraphKey
from engine.execution.device.inputs import arrange
from engine.execution.device.sampler import NO_NEEDS
from engine.scheduling.plan import ScheduledRow
from kernels.step import StepTensors
from kernels.triton.ops import TritonOps

_WINDOW = 2048
_ANSWER = 150
"""Tokens that each may generate: more than steps are needed until all have begun."""


def run(stage: Stage, capture: Capture | None = None) -> None:
    """`capture`: None for CUDA graphs."""
    stage.attempt("replayed steps", lambda: _check(stage, capture))


def _check(stage: Stage, capture: Capture | None) -> None:
    slots, chunk = stage.scale.graph_slots, stage.scale.chunk
    model = random_model("tiny", TritonOps(stage.device, stage.scale.dtypes[0]), _WINDOW)
    stepper = Stepper(
        model,
        slots=slots,
        num_blocks=blocks_for(slots, chunk + _ANSWER),
        window=_WINDOW,
        step_tokens=_WINDOW,
        capture=capture,
    )
    if capture is None:
        stepper.record()
    for _ in range(slots):
        tokens = int(torch.randint(1, chunk, (1,), generator=stage.generator, device=stage.device))
        prompt = torch.randint(0, model.config.vocab_size, (tokens,), generator=stage.generator, device=stage.device)
        stepper.add(prompt.tolist(), max_tokens=_ANSWER)
    while any(not request.output_tokens for request in stepper.scheduler.running) or stepper.scheduler.in_flight == 0:
        assert stepper.step() is not None, "all ended before all had begun"
    stage.synchronize()
    rows = [ScheduledRow(each, each.computed, 1, False) for each in stepper.scheduler.running]
    for key in stepper.runner._graph_sizes.keys:
        _compare(stage, stepper, key, rows[: key.rows])


@torch.inference_mode()
def _compare(stage: Stage, stepper: Stepper, key: GraphKey, rows: list[ScheduledRow]) -> None:
    """The rows' last tokens computed again, which changes nothing: the same KV is written to the same places."""
    runner = stepper.runner
    inputs = arrange(rows, runner._graph_sizes)
    assert inputs.key == key, f"{len(rows)} rows replay {inputs.key}, not {key}"
    runner._slots.load((), inputs.words)
    shape = inputs.shape
    expected = runner._forward(StepTensors.empty(shape.rows, shape.tokens, stage.device), shape)
    logits = expected.logits[: len(rows)].clone()
    drawn = runner._draw(expected, shape, NO_NEEDS).tokens[: len(rows)].clone()
    replayed = runner._graphs[key]
    forwarded = replayed.forward()
    title = f"replayed step of {key.rows} rows"
    error = worst_row_error(forwarded.logits[: len(rows)], logits)
    stage.checked(title, error, TOLERANCE[stage.scale.dtypes[0]])
    # The two may differ where two logits nearly tie.
    best = logits.topk(2).values
    clear = best[:, 0] - best[:, 1] > 2 * error * best[:, 0].abs()
    tokens = replayed.draw().tokens[: len(rows)]
    stage.checked(f"{title}: draws", share_that_differs(tokens[clear], drawn[clear]), 0.0, f"of {int(clear.sum())}")
