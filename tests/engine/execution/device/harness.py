"""Device runners on this machine: in plain torch, or with Triton's kernels, interpreted where there is no GPU."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.device.placement import place
from engine.execution.device.runner import DeviceRunner
from engine.models.kv_groups import KVGroups
from engine.models.loader import load_model
from engine.models.transformer import Transformer
from engine.request import PREMIUM, Request, SamplingParams
from kernels.ops import Ops
from kernels.reference_ops import ReferenceOps
from kernels.reference_step import ReferenceStepOps
from kernels.step import StepOps
from kernels.triton.ops import TritonOps
from kernels.triton.step_ops import TritonStepOps
from tests.engine.execution.harness import MakeRunner, Runner

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Output = TypeVar("Output")


def load_on(ops: Ops, folder: Path, groups: KVGroups | None = None) -> Transformer:
    checkpoint = open_checkpoint(folder)
    return load_model(checkpoint, ops, checkpoint.config.max_position, groups=groups)


def load_reference(folder: Path, groups: KVGroups | None = None) -> Transformer:
    return load_on(ReferenceOps(torch.device("cpu"), torch.float32), folder, groups)


def load_triton(folder: Path, groups: KVGroups | None = None) -> Transformer:
    return load_on(TritonOps(DEVICE, torch.float32), folder, groups)


def rerun(compute: Callable[[], Output]) -> Callable[[], Output]:
    """Imitates the replay of a CUDA graph: each call overwrites the tensors that the first call returned."""
    first = compute()

    def replay() -> Output:
        _overwrite(first, compute())
        return first

    return replay


def runners(step_ops: type[StepOps], *, graphs: bool = False, drafts: bool = False) -> MakeRunner:
    """Makes device runners; with `graphs` decode steps are replayed, with `drafts` also those that have some."""

    def make(
        model: Transformer,
        *,
        num_blocks: int,
        num_slots: int,
        max_model_len: int,
        num_states: int = 0,
        groups: int = 1,
        drafts: bool = drafts,
    ) -> DeviceRunner:
        assert groups in (1, model.kv_groups)
        runner = DeviceRunner(
            model,
            step_ops(),
            num_blocks=num_blocks,
            num_slots=num_slots,
            max_model_len=max_model_len,
            num_states=num_states,
        )
        if graphs:
            runner.capture_graphs(rerun, runner.graph_sizes(drafts=drafts))
        return runner

    return make


REFERENCE = runners(ReferenceStepOps)
REFERENCE_GRAPHS = runners(ReferenceStepOps, graphs=True)
DRAFT_GRAPHS = runners(ReferenceStepOps, graphs=True, drafts=True)
TRITON = runners(TritonStepOps)
TRITON_GRAPHS = runners(TritonStepOps, graphs=True)
TRITON_DRAFT_GRAPHS = runners(TritonStepOps, graphs=True, drafts=True)


def _place_on_gpu(
    model: Transformer, *, num_blocks: int, num_slots: int, max_model_len: int, num_states: int = 0
) -> Runner:
    """With real graphs."""
    return place(
        model,
        TritonStepOps(),
        num_blocks=num_blocks,
        num_slots=num_slots,
        max_model_len=max_model_len,
        num_states=num_states,
        drafts=True,
    )


NEEDS_GPU = pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
ON_GPU = pytest.param(_place_on_gpu, marks=NEEDS_GPU)

LADEN = SamplingParams(
    temperature=0.8,
    top_p=0.95,
    frequency_penalty=0.4,
    repetition_penalty=1.2,
    min_tokens=4,
    logit_bias={5: 4.0},
    logprobs=1,
)


def running_request(
    tokens: list[int], slot: int, blocks: list[int], params: SamplingParams | None = None, seed: int = 1
) -> Request:
    """A request as the scheduler leaves it when it has admitted it."""
    request = Request(
        id=f"in slot {slot}",
        tokens=tokens,
        prompt_tokens=len(tokens),
        params=params or SamplingParams(temperature=0),
        seed=seed,
        max_tokens=100,
        eos_token_ids=(2,),
        arrival=slot,
        service_class=PREMIUM,
    )
    request.slot, request.block_table = slot, blocks
    return request


def _overwrite(target: object, source: object) -> None:
    """Copy each tensor of a result into its place in another."""
    if isinstance(target, Tensor) and isinstance(source, Tensor):
        target.copy_(source)
    elif is_dataclass(target):
        for field in fields(target):
            _overwrite(getattr(target, field.name), getattr(source, field.name))
