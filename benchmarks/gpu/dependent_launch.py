"""A model's decode steps with programmatic dependent launch and without, both as CUDA graphs: the same text, and speed.

`kernels.triton.dependent_launch.DEPENDENT_LAUNCH` follows from the first figures.
"""

from functools import partial

from torch import Tensor

from benchmarks.gpu import names, smoke
from benchmarks.gpu.checks import share_that_differs
from benchmarks.gpu.end_to_end import alone
from benchmarks.gpu.models import random_model
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stepping import Stepper, blocks_for
from engine.models.transformer import Transformer
from kernels.triton.dependent_launch import dependent_launches
from kernels.triton.ops import TritonOps

_WINDOW = 1024


def run(stage: Stage) -> None:
    ops = TritonOps(stage.device, stage.scale.dtypes[0])
    model = stage.attempt("load", lambda: random_model(stage.scale.models[0], ops, _WINDOW))
    if model is None:
        return
    texts = []
    for name, chosen in ((names.ALONE, False), (names.DEPENDENT, True)):
        with dependent_launches(chosen):
            texts.append(stage.attempt(name, partial(_measure, stage, model, name)))
    without, dependent = texts
    if without is not None and dependent is not None:
        different = share_that_differs(dependent, without)
        stage.checked(f"{names.DEPENDENT}: tokens that differ", different, 0.0, "must be the same")


def _measure(stage: Stage, model: Transformer, name: str) -> Tensor:
    """Tokens of some requests together. The kernels compute the same, to the bit, however they are launched."""
    blocks = blocks_for(smoke.SLOTS, _WINDOW)
    stepper = Stepper(model, slots=smoke.SLOTS, num_blocks=blocks, window=_WINDOW, step_tokens=_WINDOW)
    stepper.record()
    text = smoke.text(stage, stepper, f"{name}: text")
    alone(stage, stepper, name)
    return text
