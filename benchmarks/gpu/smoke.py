"""The first minute on a device: a tiny model generates the same text launch by launch and by CUDA graphs.

It compiles each kernel that serving takes, in one form, and says within seconds whether graphs can be captured.
"""

import time

from torch import Tensor, tensor

from benchmarks.gpu.checks import share_that_differs
from benchmarks.gpu.models import random_model
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stepping import Stepper, blocks_for
from engine.execution.device.graphs import Capture
from kernels.triton.ops import TritonOps

SLOTS = 4
_PROMPT = 40
_TOKENS = 16
_WINDOW = 256


def run(stage: Stage, capture: Capture | None = None) -> None:
    """`capture`: None for CUDA graphs."""
    stepper = stage.attempt("first model", lambda: _load(stage))
    if stepper is None:
        return
    eager = stage.attempt("first text", lambda: text(stage, stepper, "first text"))
    if stage.attempt("first graphs", lambda: _record(stage, stepper, capture)) is None or eager is None:
        return
    replayed = stage.attempt("first replay", lambda: text(stage, stepper, "first replay"))
    if replayed is not None:
        stage.checked("first replay: tokens that differ", share_that_differs(replayed, eager), 0.0)


def _load(stage: Stage) -> Stepper:
    model = random_model("tiny", TritonOps(stage.device, stage.scale.dtypes[0]), _WINDOW)
    blocks = blocks_for(SLOTS, _PROMPT + _TOKENS)
    return Stepper(model, slots=SLOTS, num_blocks=blocks, window=_WINDOW, step_tokens=_WINDOW)


def _record(stage: Stage, stepper: Stepper, capture: Capture | None) -> bool:
    started = time.perf_counter()
    if capture is None:
        stepper.record()
    else:
        stepper.runner.capture_graphs(capture)
    stage.synchronize()
    stage.measured("first graphs", time.perf_counter() - started, "s")
    return True


def text(stage: Stage, stepper: Stepper, name: str) -> Tensor:
    """Tokens [SLOTS, _TOKENS] of greedy answers to the same prompts each time."""
    size = stepper.model.config.vocab_size
    started = time.perf_counter()
    for slot in range(SLOTS):
        stepper.add([(7 * slot + 3 * place) % size for place in range(_PROMPT)], _TOKENS)
    answers = list(stepper.run().values())
    stage.measured(name, time.perf_counter() - started, "s")
    return tensor(answers)
