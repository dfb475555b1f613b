"""Files of traffic, targets and prices: what they give, and the field that an error names."""

from pathlib import Path

import pytest

from engine.planning.targets import Target
from engine.planning.traffic import Lengths
from gateway.errors import OperatorError
from gateway.planning.description import read_description
from gateway.planning.devices import stated_device
from gateway.planning.trace_file import read_trace

DAY = """
[[traffic]]
tenant = "a"
class = "premium"
requests_per_s = 2
prompt_tokens = 100
answer_tokens = { mean = 50, sigma = 0.2, max = 80 }
prefix_tokens = 64
turns = 3

[targets.premium]
ttft_p99_ms = 300

[prices]
prompt = 1.0
answer = 3.0
"""


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_description(tmp_path: Path) -> None:
    found = read_description(written(tmp_path, "day.toml", DAY))
    assert found.traffic is not None
    (stream,) = found.traffic.streams
    assert stream.rates == (2.0,) * 24
    assert (stream.prompt, stream.answer) == (Lengths(100), Lengths(50, 0.2, 1, 80))
    assert (stream.prefix_tokens, stream.turns) == (64, 3)
    assert found.targets == {"premium": Target(300, None, 0.01)}
    assert found.prices is not None
    assert (found.prices.prompt, found.prices.cached, found.prices.answer) == (1.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("requests_per_s = 2", "requests_per_s = [1, 2]", r"traffic\.0\.requests_per_s: must be one number, or 24"),
        ("requests_per_s = 2", "requests_per_s = -1", r"traffic\.0\.requests_per_s"),
        ("requests_per_s = 2", "requests_per_s = nan", r"traffic\.0\.requests_per_s"),
        ('class = "premium"', "", r"traffic\.0\.class"),
        ("prompt_tokens = 100", "prompt_tokens = 0", r"traffic\.0\.prompt_tokens\.mean"),
        ("turns = 3", "turns = 0.5", r"traffic\.0\.turns"),
        ("turns = 3", "turn = 3", r"traffic\.0\.turn"),
        ("ttft_p99_ms = 300", "ttft_p99_ms = 0", r"targets\.premium\.ttft_p99_ms"),
        ("prompt = 1.0", "", r"prices\.prompt"),
        ("[prices]", "[prices", "is not TOML"),
    ],
)
def test_an_error_names_the_field(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in DAY
    with pytest.raises(OperatorError, match=named):
        read_description(written(tmp_path, "day.toml", DAY.replace(old, new)))


HEADER = "arrival_s,tenant,class,prompt_tokens,output_tokens,prefix_group,prefix_tokens,session\n"


def test_traces_of_both_forms_are_equal(tmp_path: Path) -> None:
    lines = HEADER + "12.5,a,premium,100,10,g,64,\n10,b,standard,50,5,,,s1\n"
    as_csv = read_trace(written(tmp_path, "t.csv", lines))
    as_json = read_trace(
        written(
            tmp_path,
            "t.jsonl",
            '{"arrival_s": 10, "tenant": "b", "class": "standard", "prompt_tokens": 50, "output_tokens": 5, '
            '"session": "s1"}\n\n{"arrival_s": 12.5, "tenant": "a", "class": "premium", "prompt_tokens": 100, '
            '"output_tokens": 10, "prefix_group": "g", "prefix_tokens": 64}\n',
        )
    )
    assert as_csv == as_json
    assert [row.at_s for row in as_csv.rows] == [0.0, 2.5]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("x,a,premium,100,10,,,", "line 2: arrival_s must be seconds, got 'x'"),
        ("nan,a,premium,100,10,,,", "arrival_s"),
        ("1,a,,100,10,,,", "class is empty"),
        ("1,a,premium,0,10,,,", "prompt_tokens must be a whole number from 1"),
        ("1,a,premium,100,1.5,,,", "output_tokens"),
        ("1,a,premium,100,10,g,,", "prefix_group and prefix_tokens"),
        ("1,a,premium,100,10,g,101,", "prefix_tokens 101 exceeds prompt_tokens 100"),
        ("1,a,premium,100", "other fields than the header"),
        ("1,a,premium,100,10,,,,9", "other fields than the header"),
    ],
)
def test_an_error_names_line_and_field(tmp_path: Path, row: str, named: str) -> None:
    with pytest.raises(OperatorError, match=named):
        read_trace(written(tmp_path, "t.csv", f"{HEADER}{row}\n"))


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("t.csv", "tenant,class\n", "arrival_s is missing"),
        ("t.csv", HEADER, "has no requests"),
        ("t.csv", HEADER.replace("session", "sesion") + "1,a,premium,9,9,,,\n", "sesion is not one of"),
        ("t.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("t.jsonl", "{\n", "line 1: not JSON"),
    ],
)
def test_files_that_are_no_traces(tmp_path: Path, name: str, text: str, named: str) -> None:
    with pytest.raises(OperatorError, match=named):
        read_trace(written(tmp_path, name, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="No such file"):
        read_trace(tmp_path / "t.csv")


def test_devices() -> None:
    assert stated_device("h200", None, None, None).bytes_s == 4.8e12
    assert stated_device("H100", 94, None, None).memory_bytes == 94_000_000_000
    own = stated_device(None, 24, 1.0, 165)
    assert (own.memory_bytes, own.bytes_s, own.flop_s) == (24_000_000_000, 1e12, 165e12)
    for arguments, named in (
        (("B9000", None, None, None), "H100, H200, A100, L40S"),
        ((None, 24, None, 165), "--bandwidth-tb-s is missing"),
        (("H100", -1, None, None), "--memory-gb must be positive"),
    ):
        with pytest.raises(OperatorError, match=named):
            stated_device(*arguments)
