"""Serving compiles no kernel that the warm-up has not compiled, with drafts and whatever else a request can ask for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from triton import knobs

from benchmarks.gpu.models import random_model
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stepping import GREEDY, Stepper, blocks_for
from engine.config import SchedulerConfig
from engine.execution.device.placement import run_drafted_steps, run_largest_step, run_sampled_steps
from engine.request import SamplingParams
from engine.speculation import FixedDepth, Speculator
from engine.speculation.ngram import NgramProposer
from kernels.triton.ops import TritonOps
from kernels.triton.step_ops import TritonStepOps

SLOTS, PROMPT, ANSWER = 4, 40, 24
_WINDOW = 128
_ALL = SamplingParams(
    temperature=0.8, top_p=0.9, frequency_penalty=0.4, logit_bias={5: 4.0}, logprobs=1, ignore_eos=True
)
_DRAFTS = 4


@contextmanager
def new_kernels() -> Iterator[list[str]]:
    """The kernels that a process compiles, or reads from Triton's cache, for the first time in a `with` block. None
    under the interpreter."""
    compiled: list[str] = []

    def record(*, fn: Any, **_: Any) -> None:
        compiled.append(fn.name)

    with mock.patch.object(knobs.runtime, "jit_cache_hook", record):
        yield compiled


def run(stage: Stage) -> None:
    stage.attempt("warm-up", lambda: _check(stage))


def _check(stage: Stage) -> None:
    model, config = random_model("tiny", TritonOps(stage.device, stage.scale.dtypes[0]), _WINDOW), _config()
    for decode in (False, True):
        run_largest_step(model, TritonStepOps(), config, _WINDOW, decode=decode)
    run_sampled_steps(model, TritonStepOps(), config, _WINDOW)
    run_drafted_steps(model, TritonStepOps(), config, _WINDOW)
    stepper = Stepper(
        model,
        slots=SLOTS,
        num_blocks=blocks_for(SLOTS, PROMPT + ANSWER),
        window=_WINDOW,
        step_tokens=config.step_tokens,
        speculator=Speculator([NgramProposer(SLOTS)], FixedDepth(_DRAFTS)),
    )
    for slot in range(SLOTS):
        prompt = [(7 * slot + place % 5) % model.config.vocab_size for place in range(PROMPT)]
        stepper.add(prompt, ANSWER, (GREEDY, _ALL, replace(_ALL, frequency_penalty=0.0), GREEDY)[slot], seed=slot)
    with new_kernels() as compiled:
        stepper.run()
    stage.checked("kernels compiled while serving", float(len(compiled)), 0.0, ", ".join(sorted(set(compiled))))


def _config() -> SchedulerConfig:
    return SchedulerConfig(max_running=SLOTS, step_tokens=_WINDOW, chunk_tokens=_WINDOW)
