"""Drafts on the native CPU path change no bit: neither a token nor a log-probability, whatever weights are kept as."""

from functools import cache
from pathlib import Path

import pytest

from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import Quantize
from engine.models.host_model import HostModel
from engine.models.loader import host_model, load_model
from engine.request import TokenLogprob, Usage
from engine.speculation.draft_head import WholeHead
from engine.speculation.draft_model import DraftModel
from engine.speculation.host_drafter import HostDrafter
from engine.speculation.policy import FixedDepth
from engine.speculation.proposer import Proposer
from engine.speculation.speculator import Speculator
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from tests.engine.execution.draft_cases import TOGGLES, Coin, Oracle, mixed, stops, usage_of
from tests.engine.execution.harness import Harness

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

FORMATS: tuple[Quantize, ...] = ("none", "int8", "int4")

Shown = dict[str, tuple[list[int], list[TokenLogprob], list[tuple[TokenLogprob | None, ...]]]]


@cache
def model_of(folder: Path, quantize: Quantize) -> HostModel:
    checkpoint = open_checkpoint(folder)
    return host_model(load_model(checkpoint, NativeOps(2), checkpoint.config.max_position, quantize=quantize))


def shown(harness: Harness) -> Shown:
    """Of each request its tokens, those that ended it among them, and all log-probabilities, to the bit."""
    return {
        name: (
            [*generated.tokens, *stops(generated)],
            [entry for delta in generated.deltas for entry in delta.logprobs],
            [delta.prompt_logprobs for delta in generated.deltas if delta.prompt_logprobs],
        )
        for name, generated in harness.results.items()
    }


@cache
def without(folder: Path, quantize: Quantize) -> Shown:
    harness = Harness(model_of(folder, quantize))
    mixed(harness)
    harness.run()
    return shown(harness)


def usages(harness: Harness) -> list[Usage]:
    return [usage_of(generated) for generated in harness.results.values()]


@pytest.mark.parametrize("toggle", TOGGLES)
@pytest.mark.parametrize("kind", ["a model", "nearly an oracle"])
@pytest.mark.parametrize("quantize", FORMATS)
def test_drafts_change_no_bit(tiny_folders: dict[str, Path], quantize: Quantize, kind: str, toggle: str) -> None:
    """A step has requests with many, few and no drafts, together with chunks of prompts, preempted and not."""
    assert_drafts_change_no_bit(tiny_folders["llama"], quantize, kind, toggle)


@pytest.mark.parametrize("family", ["gemma2", "gemma4_moe", "gemma4_shared", "exaone4", "qwen2_moe"])
def test_drafts_change_no_bit_of_other_families(tiny_folders: dict[str, Path], family: str) -> None:
    assert_drafts_change_no_bit(tiny_folders[family], "none", "a model", "preempted")


def assert_drafts_change_no_bit(folder: Path, quantize: Quantize, kind: str, toggle: str) -> None:
    model, expected = model_of(folder, quantize), without(folder, quantize)
    proposer: Proposer
    if kind == "a model":
        sizes = {"num_blocks": 256, "num_slots": 64, "max_positions": model.config.max_position}
        proposer = Coin(DraftModel(HostDrafter(model, WholeHead(model), **sizes), **sizes), free=False)
    else:
        proposer = Coin(Oracle({name: tokens for name, (tokens, *_) in expected.items()}, wrong_every=3))
    harness = Harness(model, speculator=Speculator([proposer], FixedDepth(8)), **TOGGLES[toggle])  # type: ignore[arg-type]
    mixed(harness)
    harness.run(preempt_every=3 if toggle == "preempted" else None)
    assert shown(harness) == expected
    drafts = sum(each.draft_tokens for each in usages(harness))
    assert 0 < sum(each.accepted_draft_tokens for each in usages(harness)) <= drafts
