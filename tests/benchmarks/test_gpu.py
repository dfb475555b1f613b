"""The GPU benchmark runs here on every test run, small and interpreted, as it runs on a GPU only rarely."""

import json
import math
import subprocess
import sys
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'turnpike[gpu]'")

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import (
    attention,
    dependent_launch,
    end_to_end,
    golden,
    limits,
    names,
    peers,
    products,
    profile,
    report,
    smoke,
    sweep,
)
from benchmarks.gpu.checks import (
    adapters,
    delta,
    elementwise,
    graphs,
    int8_kv,
    latents,
    sampling,
    share_that_differs,
    step,
    warm_up,
    worst_row_error,
)
from benchmarks.gpu.checks import attention as attention_checks
from benchmarks.gpu.checks import products as product_checks
from benchmarks.gpu.kinds import KINDS, Kind, together
from benchmarks.gpu.models import SHAPES, weight_count, weights_per_step
from benchmarks.gpu.paged import Heads
from benchmarks.gpu.product_kinds import KINDS as KINDS_OF_PRODUCTS
from benchmarks.gpu.scale import FULL, SMALL
from benchmarks.gpu.stage import Outcome, Stage, Status, read_outcomes
from benchmarks.gpu.stepping import Stepper
from engine.checkpoints.huggingface.config import config_from_json
from kernels.triton.attention_tiles import DECODE, EXTEND
from kernels.weights import KVScales
from tests.engine.execution.device.harness import rerun
from tests.support.tiny_models import make_checkpoint

CPU = torch.device("cpu")


@pytest.fixture
def stage() -> Stage:
    return Stage("stage", CPU, SMALL, seconds=600, seed=7)


def assert_all(stage: Stage, status: Status, at_least: int) -> None:
    assert [outcome.line() for outcome in stage.outcomes if outcome.status != status] == []
    assert len(stage.outcomes) >= at_least


@pytest.mark.parametrize(
    "run",
    [adapters.run, delta.run, elementwise.run, int8_kv.run, latents.run, product_checks.run, sampling.run, step.run],
)
def test_checks_pass_where_kernels_are_right(stage: Stage, run: object) -> None:
    run(stage)  # type: ignore[operator]
    assert_all(stage, "passed", 5)


def test_attention_is_checked_in_every_kind_of_step(stage: Stage) -> None:
    heads = Heads(1, 1, 64)
    attention_checks._check(stage, heads, torch.float16, scales=KVScales(key=0.37, value=1.9))
    attention_checks._check(stage, heads, torch.float16, window=128, with_sinks=True)
    attention_checks._check_alone(stage, heads, torch.float16)
    assert_all(stage, "passed", 4 + 4 + 9)


def test_replayed_steps_are_checked_for_every_size(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.execution.device.graphs._DRAFTED_TOKENS", (3,))
    graphs.run(stage, rerun)
    assert_all(stage, "passed", 8)


@pytest.mark.parametrize(("compiled", "status"), [([], "passed"), (["accept_drafts_kernel"], "failed")])
def test_a_kernel_that_serving_compiles_fails_the_check_of_the_warm_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, compiled: list[str], status: Status
) -> None:
    for name, value in (("SLOTS", 2), ("PROMPT", 12), ("ANSWER", 4)):
        monkeypatch.setattr(warm_up, name, value)
    monkeypatch.setattr(warm_up, "new_kernels", lambda: nullcontext(compiled))
    warm_up.run(stage)
    assert [(each.name, each.status) for each in stage.outcomes] == [("kernels compiled while serving", status)]


def test_a_kernel_that_is_wrong_fails_its_check(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.triton.norms.rms_norm", lambda x, weight, eps: torch.zeros_like(x))
    monkeypatch.setattr("kernels.triton.embedding.embed", lambda table, ids: table[ids - 1])
    elementwise.run(stage)
    failed = {outcome.name.split(" of ")[0] for outcome in stage.outcomes if outcome.status == "failed"}
    assert failed == {"norm", "embedding"}


def test_golden_text_and_logits(stage: Stage) -> None:
    golden.run(stage, ["qwen3"])
    assert_all(stage, "passed", 5)


def test_golden_text_of_a_model_whose_drafts_are_settled(stage: Stage, tmp_path: Path) -> None:
    """The family is checked without its other toggles, which take minutes here."""
    folder = make_checkpoint(tmp_path / "qwen3_5", "qwen3_5", num_hidden_layers=2, full_attention_interval=2)
    model = golden._load(folder, stage, torch.float32)
    prompts = [[5, 6, 7, 8, 9], [11, 12, 13]]
    stepper = Stepper(model, slots=2, num_blocks=16, window=64, step_tokens=64)
    requests = [stepper.add(prompt, stage.scale.golden_tokens) for prompt in prompts]
    tokens = stepper.run()
    golden._check_settled(stage, "drafts", model, prompts, [tokens[request.id] for request in requests])
    assert_all(stage, "passed", 1)
    assert not stage.outcomes[0].detail.startswith("0 drafts")


def test_limits_and_attention_are_measured(stage: Stage) -> None:
    limits.run(stage)
    attention.run(stage)
    by_status = {status: [each.name for each in stage.outcomes if each.status == status] for status in ("measured",)}
    assert len(by_status["measured"]) == len(stage.outcomes) - 1
    assert [each.name for each in stage.outcomes if each.status == "skipped"] == [names.decode(2, 600)]
    assert all(outcome.value for outcome in stage.outcomes if outcome.status == "measured")


def test_products_are_measured_and_set_against_plain_ones(stage: Stage) -> None:
    limits.run(stage)
    products.run(stage)
    assert_all(stage, "measured", 2 + 2 * 2 * 3 + 2)
    outcomes = [
        replace(each, stage=names.LIMITS if index < 2 else names.PRODUCTS) for index, each in enumerate(stage.outcomes)
    ]
    rows = {row.name: row for row in report.rows_of(report.Figures(outcomes), SMALL)}
    assert rows[f"{names.product(names.FEW_ROWS, 1)}, over {names.PLAIN}"].ratio
    assert names.product(names.FEW_ROWS, 65) not in {name.split(", of")[0] for name in rows}
    for kind in names.QUANTISED[:2]:
        name = names.product(kind, 1)
        assert rows[f"{name}, of {names.COPY}"].ratio
        assert rows[f"{name}, over {names.PLAIN}"].ratio
        assert rows[f"{names.product(kind, 65)}, of {names.MATMUL}"].ratio
    assert {kind.name for kind in KINDS_OF_PRODUCTS} == set(names.QUANTISED)


def test_candidates_are_checked_and_the_shipped_tile_comes_back(stage: Stage) -> None:
    before = deepcopy((DECODE, EXTEND))
    sweep.check(stage)
    assert_all(stage, "passed", 4)
    sweep._sweep_extend(stage)
    assert before == (DECODE, EXTEND)
    assert stage.outcomes[-1].name.endswith("best over shipped")


def test_a_model_is_served_from_the_first_step_to_saturation(stage: Stage) -> None:
    end_to_end.run(stage, "tiny")
    assert_all(stage, "measured", 10)
    measured_names = {outcome.name for outcome in stage.outcomes}
    assert {names.ALONE, names.SATURATED, names.ttft(12)} <= measured_names


@pytest.fixture
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted kernels take a second for a step of each."""
    for name, value in (("SLOTS", 2), ("_PROMPT", 9), ("_TOKENS", 3)):
        monkeypatch.setattr(smoke, name, value)


@pytest.mark.usefixtures("short_texts")
def test_the_smoke_compares_replayed_text_with_launched_text(stage: Stage) -> None:
    smoke.run(stage, rerun)
    assert [(each.name, each.status) for each in stage.outcomes] == [
        ("first text", "measured"),
        ("first graphs", "measured"),
        ("first replay", "measured"),
        ("first replay: tokens that differ", "passed"),
    ]


def test_graphs_that_cannot_be_captured_leave_a_figure(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(stepper: Stepper) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Stepper, "record", fails)
    end_to_end.run(stage, "tiny")
    status = {each.name: each.status for each in stage.outcomes}
    assert status["steps recorded"] == "failed"
    assert {status[name] for name in (names.EAGER, names.ALONE, names.SATURATED)} == {"measured"}


@pytest.mark.usefixtures("short_texts")
def test_dependent_launch_is_measured_against_launch_as_usual(stage: Stage) -> None:
    dependent_launch.run(stage)
    outcomes = {each.name: each for each in stage.outcomes if ": " not in each.name}
    assert {each.name for each in outcomes.values() if each.status == "measured"} == {names.ALONE, names.DEPENDENT}
    same = next(each for each in stage.outcomes if each.name == f"{names.DEPENDENT}: tokens that differ")
    assert same.status == "passed"
    moved = [replace(each, stage=names.DEPENDENT_LAUNCH) for each in stage.outcomes]
    rows = {row.name: row for row in report.rows_of(report.Figures(moved), SMALL)}
    assert rows[f"tiny, {names.DEPENDENT}, over {names.ALONE}"].ratio


def test_idle_time_between_kernels() -> None:
    assert profile._idle([(0.0, 4.0, "a"), (1.0, 2.0, "b"), (6.0, 7.0, "a"), (6.5, 9.0, "c")]) == 2.0


def test_transformers_runs_the_same_work(stage: Stage) -> None:
    model = peers.load_peer(SHAPES["tiny"], stage)
    assert sum(each.numel() for each in model.parameters()) == weight_count(config_from_json(SHAPES["tiny"]))
    peers._static(stage, names.PEER_STATIC, model, SMALL.slots)
    assert_all(stage, "measured", 1)


def test_output_rate() -> None:
    assert peers.output_rate(10, 101, prefill_s=5.0, step_s=0.05) == pytest.approx(101.0)


def test_weights_of_the_real_shapes() -> None:
    counts = {name: weight_count(config_from_json(shape)) / 1e9 for name, shape in SHAPES.items()}
    assert counts["llama-3.2-1b"] == pytest.approx(1.236, abs=1e-3)
    assert counts["llama-3.1-8b"] == pytest.approx(8.030, abs=1e-3)
    tied, untied = (config_from_json(SHAPES[name]) for name in ("llama-3.2-1b", "llama-3.1-8b"))
    assert weights_per_step(tied) == weight_count(tied)
    assert weight_count(untied) - weights_per_step(untied) == 128_256 * 4096


def test_bytes_and_operations_of_attention() -> None:
    assert attention.kv_bytes(8, 1000, FULL.attention_heads) == 8 * 1000 * 4096
    assert attention.extend_flop(1, 2, 3, FULL.attention_heads) == 4 * 32 * 128 * (4 + 5)


def test_errors_of_rows() -> None:
    expected = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    assert worst_row_error(expected, expected) == 0
    assert worst_row_error(torch.tensor([[3.0, 4.5], [0.0, 0.0], [1.0, 0.0]]), expected) == pytest.approx(0.1)
    assert worst_row_error(torch.tensor([[3.0, 4.0], [1e-9, 0.0], [1.0, 0.0]]), expected) > 1
    assert math.isnan(worst_row_error(torch.tensor([[3.0, math.nan], [0.0, 0.0], [1.0, 0.0]]), expected))
    assert share_that_differs(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 0, 4])) == 0.25


def test_nan_passes_no_check(stage: Stage) -> None:
    stage.checked("nan", math.nan, 1.0)
    stage.checked("exact", 0.0, 0.0)
    assert [outcome.status for outcome in stage.outcomes] == ["failed", "passed"]


def test_a_failure_is_an_outcome_and_the_stage_goes_on(stage: Stage) -> None:
    assert stage.attempt("first", lambda: 1 // 0) is None
    assert stage.attempt("second", lambda: 5) == 5
    assert [(each.name, each.status) for each in stage.outcomes] == [("first", "failed")]
    assert "ZeroDivisionError" in stage.outcomes[0].detail


def test_a_stage_without_time_skips() -> None:
    stage = Stage("late", CPU, SMALL, seconds=0, seed=1)
    stage.attempt("anything", lambda: pytest.fail("there was no time for this"))
    assert_all(stage, "skipped", 1)


def test_outcomes_are_kept_of_a_stage_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "stage.jsonl"
    assert read_outcomes(file) == []
    stage = Stage("cut", CPU, SMALL, seconds=60, seed=1, file=file)
    stage.measured("rate", 5.0, "tok/s")
    with file.open("a", encoding="utf-8") as half_written:
        half_written.write('{"stage": "cut", "na')
    assert read_outcomes(file) == stage.outcomes


def measured(stage: str, name: str, value: float) -> Outcome:
    return Outcome(stage, name, "measured", value, "units")


def full_run() -> list[Outcome]:
    served, peer = names.served("llama-3.1-8b"), names.peer("llama-3.1-8b")
    return [
        measured("limits", names.COPY, 4000.0),
        measured("limits", names.MATMUL, 800.0),
        measured("attention", names.decode(8, 8192), 3400.0),
        measured("attention", names.decode(64, 8192), 2000.0),
        measured("attention", names.extend(8192, 0), 480.0),
        measured(served, names.WEIGHTS, 16.0),
        measured(served, names.ALONE, 200.0),
        measured(served, names.SATURATED, 7000.0),
        measured(peer, names.PEER_STATIC, 2000.0),
    ]


def test_the_report_sets_figures_against_limits() -> None:
    rows = {row.name: row for row in report.rows_of(report.Figures(full_run()), FULL)}
    decode = rows[f"{names.decode(8, 8192)}, of copy"]
    assert (decode.ratio, decode.expected, decode.verdict) == (0.85, 0.80, "as expected")
    assert rows[f"{names.decode(64, 8192)}, of copy"].verdict == "BELOW"
    assert rows[f"{names.decode(1, 8192)}, of copy"].verdict == "not measured"
    assert rows[f"{names.extend(8192, 0)}, of matmul"].ratio == pytest.approx(0.6)
    assert rows["llama-3.1-8b, alone, of copy rate / weight bytes"].ratio == pytest.approx(0.8)
    assert rows["llama-3.1-8b, saturated, tok/s"].verdict == "as expected"
    static = rows[f"llama-3.1-8b, saturated, over {names.PEER_STATIC}"]
    assert (static.ratio, static.verdict) == (3.5, "BELOW")


def test_the_report_is_written_as_json_and_as_a_table(tmp_path: Path) -> None:
    outcomes = [*full_run(), Outcome("check", "broken", "failed", math.nan, "(at most 0.1)")]
    rows = list(report.rows_of(report.Figures(outcomes), FULL))
    report.write(tmp_path / "out", report.surroundings(seed=3), outcomes, rows)
    parsed = json.loads((tmp_path / "out" / "gpu.json").read_text(encoding="utf-8"))
    assert parsed["surroundings"]["seed"] == "3"
    assert parsed["outcomes"][-1]["value"] is None
    assert len(parsed["rows"]) == len(rows)
    text = (tmp_path / "out" / "gpu.txt").read_text(encoding="utf-8")
    assert "BELOW" in text
    assert version("torch") in text


def test_a_failed_check_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    passed, failed = Outcome("check", "one", "passed"), Outcome("check", "two", "failed")
    assert gpu._summary([passed], []) == 0
    assert gpu._summary([passed, failed], []) == 1
    assert "1 passed, 0 measured, 0 skipped, 1 failed" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu"])
    assert gpu.main() == 2
    assert "needs a GPU" in capsys.readouterr().out


def test_stages_fit_the_time_of_a_run() -> None:
    planned_s = sum(max(kind.seconds for kind in group) for group in together(KINDS))
    assert planned_s <= gpu.WHOLE_RUN_S


def test_what_transformers_cannot_do_is_no_failure(stage: Stage) -> None:
    def unsupported() -> None:
        raise ValueError("this attention does not run in blocks")

    peers._where_it_runs(stage, names.PEER_CONTINUOUS, unsupported)
    assert_all(stage, "skipped", 1)


def test_a_stage_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    kind = Kind("endless", 1, "none")
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    outcomes = gpu._finish(kind, process, deadline=0, file=tmp_path / "none")
    assert [(each.name, each.status) for each in outcomes] == [("the stage", "failed")]
    assert process.returncode == -9


def test_stages_have_own_processes_and_checks_share_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for each stage writes when it began and ended."""
    program = """
import json, sys, time
from pathlib import Path
outcome = {"stage": sys.argv[1], "name": "began", "status": "measured", "value": time.time()}
Path(sys.argv[2]).write_text(json.dumps(outcome))
there = Path(sys.argv[3])
(there / sys.argv[1]).touch()
while sys.argv[1] in ("b", "c") and not ((there / "b").exists() and (there / "c").exists()):
    time.sleep(0.01)
sys.exit(3 if sys.argv[1] == "d" else 0)
"""

    def start(kind: Kind, seconds: float, seed: int, file: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", program, kind.name, str(file), str(tmp_path)]
        return subprocess.Popen(command, start_new_session=True)

    monkeypatch.setattr(gpu, "_start", start)
    kinds = [Kind(name, 60, "none", checks=name in "bc") for name in "abcd"]
    reported: list[int] = []
    outcomes = gpu._run_all(kinds, 1, tmp_path, 300, lambda outcomes: reported.append(len(outcomes)))
    assert reported == [1, 3, 5], "the report is written after every stage"
    assert [(each.stage, each.status) for each in outcomes] == [
        *((name, "measured") for name in "abcd"),
        ("d", "failed"),
    ]
    began = {each.stage: each.value or 0.0 for each in outcomes if each.status == "measured"}
    assert began["a"] < min(began["b"], began["c"])
    assert max(began["b"], began["c"]) < began["d"]
