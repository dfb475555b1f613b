"""The device's runner gives the text of the CPU's, under every toggle, and ahead of its own results."""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from pathlib import Path

import pytest
import torch

from engine.errors import DeviceLost, OutOfDeviceMemory
from engine.execution.device.outputs import Forwarded
from engine.execution.device.runner import DeviceRunner
from engine.models.transformer import Transformer
from engine.request import Request, SamplingParams, TokenLogprob
from engine.scheduling.plan import LaunchStats, ScheduledRow, StepPlan
from kernels.reference_step import ReferenceStepOps
from tests.engine.execution.device.harness import (
    REFERENCE,
    REFERENCE_GRAPHS,
    Output,
    load_reference,
    rerun,
    running_request,
)
from tests.engine.execution.draft_cases import SEEDED, TOGGLES, mixed
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, load_tiny, prompt

TIGHT = TOGGLES | {"tiny pool": {"num_blocks": 12, "max_running": 14}}


@cache
def _models(folder: Path) -> tuple[Transformer, Transformer]:
    return load_tiny(folder), load_reference(folder)


def _run(model: Transformer, make_runner: MakeRunner | None, toggle: str, fill: Callable[[Harness], None]) -> Harness:
    settings = TIGHT[toggle]
    harness = Harness(model, **settings, **({} if make_runner is None else {"make_runner": make_runner}))  # type: ignore[arg-type]
    fill(harness)
    harness.run(preempt_every=3 if toggle == "preempted" else None)
    return harness


def _outcome(harness: Harness) -> dict[str, tuple[list[int], list[TokenLogprob], list[TokenLogprob | None]]]:
    return {
        name: (
            generated.tokens,
            [entry for delta in generated.deltas for entry in delta.logprobs],
            [entry for delta in generated.deltas for entry in delta.prompt_logprobs],
        )
        for name, generated in harness.results.items()
    }


@pytest.mark.parametrize("toggle", TIGHT)
@pytest.mark.parametrize(("family", "make_runner"), [("llama", REFERENCE), ("mistral", REFERENCE_GRAPHS)])
def test_results_are_the_cpus(tiny_folders: dict[str, Path], family: str, toggle: str, make_runner: MakeRunner) -> None:
    on_cpu, on_device = _models(tiny_folders[family])
    expected = _run(on_cpu, None, toggle, mixed)
    harness = _run(on_device, make_runner, toggle, mixed)
    if toggle in ("preempted", "tiny pool"):
        assert harness.scheduler.stats().preemptions_total > 0
    assert harness.scheduler.stats().cached_tokens_total > 0
    assert harness.most_in_flight == 2
    outcome = _outcome(harness)
    for name, (tokens, logprobs, prompt_logprobs) in _outcome(expected).items():
        assert outcome[name][0] == tokens
        assert_same_logprobs(outcome[name][1], logprobs)
        assert_same_logprobs(outcome[name][2], prompt_logprobs)


def assert_same_logprobs(
    entries: list[TokenLogprob] | list[TokenLogprob | None], expected: list[TokenLogprob] | list[TokenLogprob | None]
) -> None:
    assert len(entries) == len(expected)
    for entry, other in zip(entries, expected, strict=True):
        assert (entry is None) == (other is None)
        if entry is not None and other is not None:
            assert entry.token_id == other.token_id
            assert entry.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [each.token_id for each in entry.top] == [each.token_id for each in other.top]
            assert [each.logprob for each in entry.top] == pytest.approx([each.logprob for each in other.top], abs=1e-4)


@pytest.fixture
def model(tiny_folders: dict[str, Path]) -> Transformer:
    return _models(tiny_folders["qwen3"])[1]


@pytest.fixture
def runner(model: Transformer) -> DeviceRunner:
    return DeviceRunner(model, ReferenceStepOps(), num_blocks=16, num_slots=4, max_model_len=200)


def _plan(*rows: tuple[Request, int, int, bool]) -> StepPlan:
    return StepPlan(1, tuple(ScheduledRow(*row) for row in rows))


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "replayed"])
def test_a_chain_of_steps_whose_results_nobody_has_read(model: Transformer, graphs: bool) -> None:
    """Each step starts from a token that is on the device alone."""
    runner = DeviceRunner(model, ReferenceStepOps(), num_blocks=16, num_slots=4, max_model_len=200)
    if graphs:
        runner.capture_graphs(rerun)
    params = (GREEDY, SEEDED, SamplingParams(temperature=0.7, presence_penalty=1.0, min_tokens=9, logprobs=0))
    lengths = (20, 7, 33)
    requests = [
        running_request(prompt(length), slot, [3 * slot, 3 * slot + 1, 3 * slot + 2], each, seed=slot)
        for slot, (length, each) in enumerate(zip(lengths, params, strict=True))
    ]
    steps = [runner.execute(_plan(*((request, 0, len(request.tokens), True) for request in requests)))]
    for ahead in range(10):
        steps.append(runner.execute(_plan(*((request, len(request.tokens) + ahead, 1, True) for request in requests))))
    results = [step.result() for step in steps]
    assert runner.launches == LaunchStats(*((10, 0) if graphs else (0, 10)), prefill_total=1)

    harness = Harness(model, make_runner=REFERENCE)
    for slot, (length, each) in enumerate(zip(lengths, params, strict=True)):
        harness.add(prompt(length), each, max_tokens=11, seed=slot)
    expected = harness.run()
    for row in range(3):
        assert [result.rows[row].token for result in results] == expected[str(row)].tokens


def test_graphs_of_all_sizes_leave_their_outputs_in_the_same_memory(model: Transformer) -> None:
    kept: list[Forwarded] = []

    def capture(compute: Callable[[], Output]) -> Callable[[], Output]:
        replay = rerun(compute)
        if isinstance(first := replay(), Forwarded):
            kept.append(first)
        return replay

    runner = DeviceRunner(model, ReferenceStepOps(), num_blocks=16, num_slots=4, max_model_len=200)
    runner.capture_graphs(capture)
    assert [len(each.logits) for each in kept] == [4, 2, 1]
    for name in ("hidden", "finite.finite", "logits"):
        assert len({attrgetter(name)(each).data_ptr() for each in kept}) == 1, name


def test_rows_that_share_a_prefix_are_replayed_though_their_contexts_exceed_the_memory(model: Transformer) -> None:
    runner = DeviceRunner(model, ReferenceStepOps(), num_blocks=8, num_slots=4, max_model_len=100)
    replayed: list[str] = []

    def capture(compute: Callable[[], Output]) -> Callable[[], Output]:
        replay = rerun(compute)

        def noted() -> Output:
            replayed.append("")
            return replay()

        return noted

    runner.capture_graphs(capture)
    shared = [0, 1, 2, 3]
    requests = [running_request(prompt(64 + 1), slot, [*shared, 4 + slot], GREEDY) for slot in range(4)]
    runner.execute(_plan((requests[0], 0, 64, False))).result()
    del replayed[:]
    runner.execute(_plan(*((request, 64, 1, True) for request in requests))).result()
    assert len(replayed) == 2, "4 x 65 tokens of context in a memory of 128"


def test_steps_of_nothing_but_decoding_are_replayed(model: Transformer) -> None:
    replays: list[str] = []
    recorded: list[str] = []

    def capture(compute: Callable[[], Output]) -> Callable[[], Output]:
        replay = rerun(compute)
        name = f"graph {len(recorded)}"
        recorded.append(name)

        def counted() -> Output:
            replays.append(name)
            return replay()

        return counted

    runner = DeviceRunner(model, ReferenceStepOps(), num_blocks=16, num_slots=4, max_model_len=200)
    runner.capture_graphs(capture)
    assert len(recorded) == 6, "sizes 4, 2 and 1, a forward pass and a draw each"
    replays.clear()
    plain, laden = (
        running_request(prompt(20), 0, [0, 1]),
        running_request(prompt(7), 1, [2], SamplingParams(logprobs=1)),
    )
    runner.execute(_plan((plain, 0, 20, True), (laden, 0, 7, True)))
    assert replays == []
    runner.execute(_plan((plain, 20, 1, True)))
    assert replays == ["graph 4", "graph 5"]
    runner.execute(_plan((plain, 21, 1, True), (laden, 7, 1, True)))
    assert replays[2:] == ["graph 2"], "what a row asks for beyond temperature is not in the graph of a draw"


def test_results_come_in_the_order_of_the_plan(runner: DeviceRunner) -> None:
    long, short = running_request(prompt(40), 0, [0, 1, 2]), running_request(prompt(1), 1, [3])
    alone = [
        runner.execute(_plan((running_request(prompt(40), 2, [4, 5, 6]), 0, 40, True))).result().rows[0].token,
        runner.execute(_plan((running_request(prompt(1), 3, [7]), 0, 1, True))).result().rows[0].token,
    ]
    result = runner.execute(_plan((long, 0, 40, True), (short, 0, 1, True))).result()
    assert [row.token for row in result.rows] == alone
    assert alone[0] != alone[1]


def test_a_row_that_does_not_sample_has_no_token(runner: DeviceRunner) -> None:
    request = running_request(prompt(20), 0, [0, 1])
    assert runner.execute(_plan((request, 0, 16, False))).result().rows[0].token is None


@pytest.mark.parametrize("where", ["keys", "last hidden state"])
def test_a_row_that_is_not_finite_is_the_only_one(runner: DeviceRunner, where: str) -> None:
    sound, broken = running_request(prompt(17), 0, [0, 1]), running_request(prompt(20), 1, [2, 3])
    runner.execute(_plan((sound, 0, 16, False), (broken, 0, 16, False))).result()
    with torch.inference_mode():
        runner._kv[:, 2].fill_(torch.nan if where == "keys" else 1e38)
    rows = runner.execute(_plan((broken, 16, 4, True), (sound, 16, 1, True))).result().rows
    assert [row.finite for row in rows] == [False, True]


def test_a_chunk_that_does_not_sample_is_looked_at_too(runner: DeviceRunner) -> None:
    request = running_request(prompt(40), 0, [0, 1, 2])
    runner.execute(_plan((request, 0, 16, False))).result()
    with torch.inference_mode():
        runner._kv[:, 0].fill_(torch.nan)
    assert not runner.execute(_plan((request, 16, 16, False))).result().rows[0].finite


def test_a_broken_device_is_named(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> torch.Tensor:
        raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(runner._model, "forward", broken)
    with pytest.raises(DeviceLost, match="illegal memory access"):
        runner.execute(_plan((running_request(prompt(40), 0, [0, 1, 2]), 0, 40, True)))


def test_a_device_that_breaks_after_the_launch_is_named(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def record(self) -> None: ...

        def synchronize(self) -> None:
            raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(runner, "_new_fence", Broken)
    step = runner.execute(_plan((running_request(prompt(40), 0, [0, 1, 2]), 0, 40, True)))
    with pytest.raises(DeviceLost, match="illegal memory access"):
        step.result()


def test_out_of_memory_is_named_and_can_be_retried(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room for 12 GiB")

    request = running_request(prompt(40), 0, [0, 1, 2])
    expected = runner.execute(_plan((running_request(prompt(40), 1, [3, 4, 5]), 0, 40, True))).result().rows[0]
    with monkeypatch.context() as patched:
        patched.setattr(runner._model, "forward", full)
        with pytest.raises(OutOfDeviceMemory, match="no room for 12 GiB"):
            runner.execute(_plan((request, 0, 40, True)))
    runner.execute(_plan((request, 0, 20, False)))
    assert runner.execute(_plan((request, 20, 20, True))).result().rows[0] == expected
