"""A recorded decode step gives what the same step gives launch by launch, for every size that is recorded."""

from collections.abc import Sequence

import torch

from benchmarks.gpu.checks import TOLERANCE, share_that_differs, worst_row_error
from benchmarks.gpu.models import random_model
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stepping import Stepper, blocks_for
from engine.execution.device.graphs import Capture, CudaCapture, GraphKey
from engine.execution.device.inputs import arrange
from engine.execution.device.sampler import NO_NEEDS
from engine.request import Request
from engine.scheduling.plan import ScheduledRow
from kernels.adapters import NO_ADAPTER
from kernels.step import StepTensors
from kernels.triton.ops import TritonOps
from tests.support.tiny_adapters import random_adapter

_WINDOW = 2048
_SHORTEST = 16
"""Tokens of a prompt at least: more than drafts of any graph."""
_RANK = 16
_ANSWER = 150
"""Tokens that each may generate: more than steps are needed until all have begun."""


def run(stage: Stage, capture: Capture | None = None) -> None:
    """`capture`: None for CUDA graphs."""
    stage.attempt("replayed steps", lambda: _check(stage, capture))


def _check(stage: Stage, capture: Capture | None) -> None:
    slots, chunk = stage.scale.graph_slots, stage.scale.chunk
    model = random_model("tiny", TritonOps(stage.device, stage.scale.dtypes[0]), _WINDOW)
    model.allocate_adapters(1, _RANK)
    stepper = Stepper(
        model,
        slots=slots,
        num_blocks=blocks_for(slots, _SHORTEST + chunk + _ANSWER),
        window=_WINDOW,
        step_tokens=_WINDOW,
    )
    stepper.runner.capture_graphs(capture or CudaCapture(), stepper.runner.graph_sizes(drafts=True))
    for _ in range(slots):
        tokens = _SHORTEST + int(torch.randint(0, chunk, (1,), generator=stage.generator, device=stage.device))
        prompt = torch.randint(0, model.config.vocab_size, (tokens,), generator=stage.generator, device=stage.device)
        stepper.add(prompt.tolist(), max_tokens=_ANSWER)
    while any(not request.output_tokens for request in stepper.scheduler.running) or stepper.scheduler.in_flight == 0:
        assert stepper.step() is not None, "all ended before all had begun"
    stepper.runner.put_adapter(0, stepper.runner.pack_adapter(random_adapter(model.adapted_sizes, 1, _RANK)))
    stage.synchronize()
    for key in stepper.runner._graph_sizes.keys:
        running = list(stepper.scheduler.running)[: key.rows]
        _adapt(stepper, running, adapted=key.adapted)
        _compare(stage, stepper, key, [_again(each, key.tokens_each) for each in running])


@torch.inference_mode()
def _adapt(stepper: Stepper, requests: Sequence[Request], *, adapted: bool) -> None:
    """Give every other request an adapter from here on, the first one included, or none of them."""
    for request in requests:
        assert request.slot is not None, "the request does not run"
        request.adapter_slot = 0 if adapted and request.arrival % 2 == requests[0].arrival % 2 else None
        stepper.runner._slots.adapters[request.slot] = NO_ADAPTER if request.adapter_slot is None else 0


def _again(request: Request, tokens_each: int) -> ScheduledRow:
    """The last tokens of a request computed again, which changes nothing: the same KV is written to the same places.
    Every other row has fewer drafts than the graph has room for."""
    drafts = tokens_each - 1 if request.arrival % 2 == 0 else (tokens_each - 1) // 2
    start = request.computed - drafts
    return ScheduledRow(request, start, 1 + drafts, False, tuple(request.tokens[start + 1 : request.computed + 1]))


@torch.inference_mode()
def _compare(stage: Stage, stepper: Stepper, key: GraphKey, rows: list[ScheduledRow]) -> None:
    runner = stepper.runner
    inputs = arrange(rows, runner._graph_sizes)
    title = f"replayed step of {key.rows} rows of {key.tokens_each} tokens{' with adapters' * key.adapted}"
    assert inputs.key == key, f"{len(rows)} rows replay {inputs.key}, not {key}"
    runner._slots.load(inputs.rows, inputs.words)
    shape, draws = inputs.shape, sum(row.tokens for row in rows)
    tensors = StepTensors.empty(shape.rows, shape.tokens, stage.device)
    expected = runner._forward(tensors, shape, adapted=key.adapted)
    logits = expected.logits[:draws].clone()
    drawn = runner._draw(expected, shape, NO_NEEDS).tokens[:draws].clone()
    replayed = runner._graphs[key]
    forwarded = replayed.forward()
    error = worst_row_error(forwarded.logits[:draws], logits)
    stage.checked(title, error, TOLERANCE[stage.scale.dtypes[0]])
    # The two may differ where two logits nearly tie.
    best = logits.topk(2).values
    clear = best[:, 0] - best[:, 1] > 2 * error * best[:, 0].abs()
    tokens = replayed.draw().tokens[:draws]
    stage.checked(f"{title}: draws", share_that_differs(tokens[clear], drawn[clear]), 0.0, f"of {int(clear.sum())}")
