"""Grammars on the device's runner: the answers are the CPU's, while steps are launched ahead of their results."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import torch

from engine.errors import OutOfDeviceMemory
from engine.execution.device.runner import DeviceRunner
from engine.grammar import GrammarSpec
from engine.grammar.allowed import AllowedTokens
from engine.grammar.compiler import GrammarCompiler
from engine.models.transformer import Transformer
from engine.request import Fault, FinishReason, SamplingParams
from engine.scheduling.plan import ScheduledRow, StepPlan
from engine.speculation.policy import FixedDepth
from engine.speculation.speculator import Speculator
from kernels.reference_step import ReferenceStepOps
from tests.engine.execution.device.harness import (
    DRAFT_GRAPHS,
    ON_GPU,
    REFERENCE,
    REFERENCE_GRAPHS,
    TRITON_GRAPHS,
    load_reference,
    load_triton,
    rerun,
    running_request,
)
from tests.engine.execution.draft_cases import assert_same, proposer_of, usage_of
from tests.engine.execution.harness import Generated, Harness, MakeRunner, load_tiny, prompt
from tests.engine.grammar.constrained import GREEDY, SAMPLED, Failing, run
from tests.support.tiny_tokenizer import VOCAB_SIZE

_BOTH = pytest.mark.parametrize("make_runner", [REFERENCE, REFERENCE_GRAPHS], ids=["eager", "replayed"])


@cache
def model_of(folder: Path) -> Transformer:
    return load_reference(folder)


@pytest.fixture
def model(tiny_folders: dict[str, Path]) -> Transformer:
    return model_of(tiny_folders["llama"])


@pytest.fixture(scope="module")
def expected(tiny_folders: dict[str, Path], compiler: GrammarCompiler) -> dict[str, Generated]:
    return run(Harness(load_tiny(tiny_folders["llama"])), compiler)


@pytest.mark.parametrize("preempt_every", [None, 3])
@_BOTH
def test_answers_are_the_cpus(
    model: Transformer,
    compiler: GrammarCompiler,
    expected: dict[str, Generated],
    make_runner: MakeRunner,
    preempt_every: int | None,
) -> None:
    harness = Harness(model, make_runner=make_runner)
    assert_same(run(harness, compiler, preempt_every), expected)
    assert harness.most_in_flight == 2


@pytest.mark.parametrize("make_runner", [TRITON_GRAPHS, ON_GPU], ids=["interpreted or compiled", "placed"])
def test_answers_by_the_kernels(
    tiny_folders: dict[str, Path], model: Transformer, compiler: GrammarCompiler, make_runner: MakeRunner
) -> None:
    on_kernels = Harness(load_triton(tiny_folders["llama"]), make_runner=make_runner, max_running=2)
    assert tokens_of(_few(on_kernels, compiler)) == tokens_of(_few(Harness(model, make_runner=REFERENCE), compiler))


def _few(harness: Harness, compiler: GrammarCompiler) -> Mapping[str, Generated]:
    """A short answer with a grammar, and one without."""
    for index, grammar in enumerate((GrammarSpec.regex("[a-c]{2,4}"), None)):
        request = harness.add(prompt(5 + index), SAMPLED, max_tokens=3, seed=index)
        if grammar is not None:
            request.matcher = compiler.compile(grammar).result().matcher()
    return harness.run()


@pytest.mark.parametrize("kind", ["nearly an oracle", "adversary"])
def test_answers_are_those_without_drafts(
    model: Transformer, compiler: GrammarCompiler, expected: dict[str, Generated], kind: str
) -> None:
    speculator = Speculator([proposer_of(kind, expected)], FixedDepth(4))
    harness = Harness(model, make_runner=DRAFT_GRAPHS, speculator=speculator)
    assert_same(run(harness, compiler, preempt_every=3), expected)


def test_drafts_of_recurrent_layers_are_settled_after_the_masks(
    tiny_folders: dict[str, Path], compiler: GrammarCompiler
) -> None:
    folder = tiny_folders["qwen3_5"]
    plain = run(Harness(load_tiny(folder)), compiler)
    speculator = Speculator([proposer_of("nearly an oracle", plain)], FixedDepth(4))
    harness = Harness(model_of(folder), make_runner=REFERENCE_GRAPHS, speculator=speculator)
    assert_same(run(harness, compiler), plain)
    assert any(each.accepted_draft_tokens for each in map(usage_of, harness.results.values()))


def tokens_of(results: Mapping[str, Generated]) -> list[list[int]]:
    return [generated.tokens for generated in results.values()]


@_BOTH
def test_a_grammar_that_fails_ends_its_request_alone(
    model: Transformer, compiler: GrammarCompiler, expected: dict[str, Generated], make_runner: MakeRunner
) -> None:
    harness = Harness(model, make_runner=make_runner)
    failing = harness.add(range(50, 70), GREEDY, max_tokens=60, eos=())
    failing.matcher = Failing(after=5)
    answers = list(run(harness, compiler).values())
    last = answers[0].deltas[-1]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, Fault.GRAMMAR)
    assert len(answers[0].tokens) == 5
    assert [each.tokens for each in answers[1:]] == tokens_of(expected)


@_BOTH
def test_a_row_without_tokens_fails_alone(model: Transformer, make_runner: MakeRunner) -> None:
    """All that may come is the end, which may not come yet."""
    harness = Harness(model, make_runner=make_runner)
    stuck = harness.add(prompt(9), SamplingParams(temperature=0, min_tokens=3), max_tokens=8)
    stuck.matcher = AllowedTokens({2}, VOCAB_SIZE)
    other = harness.add(prompt(11), SamplingParams(temperature=0, min_tokens=3), max_tokens=8)
    other.matcher = AllowedTokens({2, 7}, VOCAB_SIZE)
    results = harness.run()
    last = results[stuck.id].deltas[-1]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, Fault.GRAMMAR)
    assert results[other.id].tokens[:3] == [7, 7, 7]


def test_a_request_that_ended_since_the_launch_is_not_asked(model: Transformer) -> None:
    """The end token of one step is committed before the draws of the next one."""
    harness = Harness(model, make_runner=REFERENCE)
    ending = harness.add(prompt(9), GREEDY, max_tokens=8)
    ending.matcher = AllowedTokens({2}, VOCAB_SIZE)
    other = harness.add(prompt(11), GREEDY, max_tokens=4, eos=())
    other.matcher = AllowedTokens({7}, VOCAB_SIZE)
    results = harness.run()
    assert results[ending.id].deltas[-1].finish_reason is FinishReason.STOP
    assert results[other.id].tokens == [7] * 4


def test_draws_that_do_not_fit_fail_their_step_and_the_one_after_it(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = DeviceRunner(model, ReferenceStepOps(), num_blocks=16, num_slots=4, max_model_len=200)
    runner.capture_graphs(rerun)
    harness = Harness(model, make_runner=lambda *arguments, **settings: runner, num_blocks=16, max_running=4)
    masked = harness.add(prompt(20), GREEDY, max_tokens=6, eos=())
    masked.matcher = AllowedTokens({7, 9, 11}, VOCAB_SIZE)
    expected = Harness(model, make_runner=REFERENCE)
    alone = expected.add(prompt(20), GREEDY, max_tokens=6, eos=())
    alone.matcher = AllowedTokens({7, 9, 11}, VOCAB_SIZE)

    def full(*arguments: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    plan = harness.scheduler.schedule()
    assert plan is not None
    first = runner.execute(plan)
    with monkeypatch.context() as patched:
        patched.setattr(runner._step_ops, "mask_rows", full)
        second_plan = harness.scheduler.schedule()
        assert second_plan is not None
        for attempt in (lambda: runner.execute(second_plan), first.result, first.result):
            with pytest.raises(OutOfDeviceMemory, match="no room"):
                attempt()
    assert harness.scheduler.give_back(plan, "no room", elapsed_ns=1) == []
    assert harness.scheduler.give_back(second_plan, "no room", elapsed_ns=1) == []
    assert harness.run()[masked.id].tokens == expected.run()[alone.id].tokens


def test_a_masked_step_is_drawn_once(model: Transformer) -> None:
    runner = DeviceRunner(model, ReferenceStepOps(), num_blocks=16, num_slots=4, max_model_len=200)
    request = running_request(prompt(20), 0, [0, 1])
    request.matcher = AllowedTokens({5}, VOCAB_SIZE)
    step = runner.execute(StepPlan(1, (ScheduledRow(request, 0, 20, True),)))
    assert step.result() == step.result()
    assert step.result().rows[0].token == 5
