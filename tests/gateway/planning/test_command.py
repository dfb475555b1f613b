"""`turnpike plan` in-process: its table, its JSON, comparisons, and one line for each error."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.planning.fit_file import MeasuredMachine, StoredFit
from engine.planning.fitting import StepSample, fit_steps
from engine.planning.step_features import StepFeatures
from tests.support.command_line import failure, ok
from tests.support.planning import LLAMA_8B, SMOLLM2, linear_times

pytestmark = pytest.mark.usefixtures("no_settings")

TRAFFIC = """
[[traffic]]
tenant = "a"
class = "premium"
requests_per_s = 3
prompt_tokens = 200
answer_tokens = 40

[[traffic]]
tenant = "b"
class = "standard"
requests_per_s = 4
prompt_tokens = 300
answer_tokens = 30

[prices]
prompt = 0.1
answer = 0.4
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Options with a model and traffic."""
    (tmp_path / "day.toml").write_text(TRAFFIC)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA_8B))
    model = ["--model", str(tmp_path / "model"), "--traffic", str(tmp_path / "day.toml")]
    return ["plan", *model, "--requests", "50", "--jobs", "1"]


def test_the_table(files: list[str]) -> None:
    printed = ok(*files, "--device", "H100", "--device-price", "2", "--sums")
    assert "1 replicas of H100 (the fewest that meet the targets, assumed)" in printed
    assert "131,072 bytes" in printed
    assert "32 layers x 2 x 8 heads x 128 x 2 bytes" in printed
    assert "continuous over static" in printed
    assert "The busiest hour" in printed
    assert "Cost (stated price): $48.00" in printed
    assert "margin" in printed
    assert "Breaks first: " in printed
    assert printed == ok(*files, "--device", "H100", "--device-price", "2", "--sums"), "the same seed, the same plan"


def test_json(files: list[str]) -> None:
    found: dict[str, Any] = json.loads(ok(*files, "--device", "H200", "--replicas", "2", "--json"))
    assert found.keys() == {
        *("replicas", "devices", "tensor_parallel", "quantize", "kv_dtype", "device", "sums", "busiest_hour", "hours"),
        *("loads", "knee", "day", "time_over_least", "costs", "targets", "fit", "origins", "remarks", "what_ifs"),
        "what_if",
    }
    assert (found["replicas"], found["device"], found["costs"], found["fit"]) == (2, "H200", None, None)
    assert {each["origin"] for each in found["sums"]} <= {"computed", "assumed"}
    assert found["origins"]["replicas"] == "stated"
    assert found["origins"]["hours"] == "assumed"
    (hour,) = found["hours"]
    assert hour["stands_for"] == list(range(24))
    assert [each["name"] for each in hour["outcome"]["classes"]] == ["premium", "standard"]
    assert all(each["ttft_p50_ms"] <= each["ttft_p99_ms"] for each in hour["outcome"]["classes"])
    assert [each["factor"] for each in found["loads"]] == [0.5, 1.0, 1.25, 1.5, 2.0]
    assert found["targets"]["premium"] == {"ttft_p99_ms": 500, "tpot_p99_ms": 50, "refused_share": 0.01}


def test_what_ifs_are_compared(files: list[str]) -> None:
    options = ("--what-if", "premium=2x", "--what-if", "quantize=fp8,replicas=3", "--json")
    found = json.loads(ok(*files, "--device", "H100", "--replicas", "1", *options))
    double, fp8 = found["what_ifs"]
    assert [double["what_if"], fp8["what_if"]] == ["premium=2x", "quantize=fp8,replicas=3"]
    assert double["day"]["requests"] == pytest.approx(24 * 3600 * (6 + 4))
    assert (fp8["replicas"], fp8["quantize"]) == (3, "fp8")
    plain, smaller = (next(each["value"] for each in plan["sums"] if each["name"] == "blocks") for plan in (found, fp8))
    assert smaller > plain, "smaller weights leave more memory"
    printed = ok(*files, "--device", "H100", "--replicas", "1", *options[:-1])
    heading = next(line for line in printed.splitlines() if "quantize=fp8,replicas=3" in line)
    assert heading.split() == ["plan", "premium=2x", "quantize=fp8,replicas=3"]


@pytest.fixture
def fit_path(tmp_path: Path) -> Path:
    """A fit of a small model with up to 12 rows in a step."""
    truth, samples = linear_times(), []
    for rows in range(13):
        for tokens in (0, 40, 400, 1600):
            features = StepFeatures(tokens, tokens * 900, rows, rows * 700)
            samples += [StepSample(features, round(truth.predict_ns(features)))] * 2
    machine = MeasuredMachine(
        name="here",
        memory_bytes=10**10,
        bytes_s=1e10,
        flop_s=1e12,
        on_gpu=False,
        model="small",
        weight_bytes=270_000_000,
        num_blocks=800,
        max_running=32,
        step_tokens=1024,
        chunk_tokens=1024,
        max_model_len=4096,
        request_ns=2_000_000,
    )
    StoredFit(machine, fit_steps(samples)).save(tmp_path / "fit.json")
    (tmp_path / "model" / "config.json").write_text(json.dumps(SMOLLM2))
    return tmp_path / "fit.json"


def test_a_fit_of_this_machine(files: list[str], fit_path: Path) -> None:
    found = json.loads(ok(*files, "--fit", str(fit_path), "--replicas", "2", "--json"))
    assert found["device"] == "here"
    assert found["origins"]["hours"] == "fitted"
    assert found["fit"]["range"]["decode_rows"] == 12
    printed = ok(*files, "--fit", str(fit_path), "--replicas", "2")
    assert "step times: fitted to 104 steps" in printed


def test_outside_the_fit_no_figures_are_given(files: list[str], fit_path: Path, tmp_path: Path) -> None:
    (tmp_path / "day.toml").write_text(TRAFFIC.replace("requests_per_s = 4", "requests_per_s = 60"))
    error = failure(1, *files, "--fit", str(fit_path), "--replicas", "1")
    assert "were not fitted on work of this size: " in error
    assert "decode_rows up to" in error


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (("--device", "B9000"), 1, "--device 'B9000' is not one of H100, H200, A100, L40S"),
        ((), 1, "--memory-gb is missing"),
        (("--device", "H100", "--quantize", "fp7"), 2, "--quantize must be one of"),
        (("--device", "A100", "--quantize", "fp8"), 1, "fp8 is not computed by A100"),
        (("--device", "H100", "--what-if", "gold=2x"), 1, "gold"),
        (("--device", "H100", "--what-if", "replicas=0"), 1, "replicas=0: must be a whole number"),
        (("--device", "H100", "--what-if", "premium"), 1, "not NAME=VALUE"),
        (("--device", "H100", "--from-clickhouse"), 2, "one of --traffic FILE and --from-clickhouse"),
        (("--device", "H100", "--tensor-parallel", "3"), 1, "tensor_parallel 3 does not divide"),
        (("--fit", "nothing.json"), 1, "nothing.json"),
    ],
)
def test_errors_are_one_line(files: list[str], options: tuple[str, ...], code: int, named: str) -> None:
    assert named in failure(code, *files, *options)


def test_a_class_that_is_not_configured(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "day.toml").write_text(TRAFFIC.replace('"premium"', '"gold"'))
    assert "'gold' is not one of the service classes" in failure(1, *files, "--device", "H100")


def test_targets_that_no_fleet_meets(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "day.toml").write_text(f"{TRAFFIC}\n[targets.premium]\nttft_p99_ms = 0.001\n")
    error = failure(1, *files, "--device", "H100")
    assert "no number of replicas up to" in error
    assert "meets the targets" in error
