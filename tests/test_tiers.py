"""Every test is in a tier, and the files and fixtures that define the tiers exist."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tiers import BY_NAME, BY_PLACE, FIXTURES, KEPT, OTHERS, PARAMETERS, PLACES, UNIT, is_left_out, tiers_of

ROOT = Path(__file__).parent.parent
FILES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py")}


def test_each_tier_is_a_declared_marker() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert {line.partition(":")[0] for line in options["markers"]} == {UNIT, *OTHERS}


@pytest.mark.parametrize("place", [*KEPT, *(place for places in PLACES.values() for place in places)])
def test_each_place_is_there(place: str) -> None:
    file, *names = place.split("::")
    if file.endswith("/"):
        assert any(path.startswith(file) for path in FILES)
    else:
        assert all(f" {name.partition('[')[0]}" in FILES[file] for name in names)
        assert file in FILES


def test_tiers_by_name_are_left_out_of_a_run_of_all() -> None:
    waiting, computing = re.findall(r'\$\(PYTEST\) -m "([^"]*)"', (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert set(waiting.removeprefix("not (").removesuffix(")").split(" or ")) == {*computing.split(" or "), *BY_NAME}
    assert {*computing.split(" or "), *BY_NAME} == BY_PLACE, "so that a test is in one of the two runs, never in both"


def test_each_fixture_and_parameter_is_there() -> None:
    text = "\n".join(FILES.values())
    fixtures = set(re.findall(r"@pytest\.fixture(?:\([^\n]*\))?\n(?:async )?def (\w+)", text))
    assert set().union(*FIXTURES.values()) <= fixtures
    stated = " ".join(re.findall(r"@pytest\.fixture\([^\n]*params=\[([^\n]*)\]\)", text))
    assert all(f'"{value}"' in stated for values in PARAMETERS.values() for value in values)


@pytest.mark.parametrize(
    ("nodeid", "fixtures", "parameters", "tiers"),
    [
        ("tests/gateway/billing/test_prices.py::test_x", {"tmp_path"}, set(), {"unit"}),
        ("tests/gateway/billing/test_tables.py::test_x[sqlite]", {"database"}, {"sqlite"}, {"unit"}),
        ("tests/gateway/billing/test_tables.py::test_x[postgresql]", {"database"}, {"postgresql"}, {"services"}),
        ("tests/gateway/metering/test_pipeline.py::test_x", {"kafka_server"}, set(), {"services"}),
        ("tests/e2e/test_drain.py::test_x", {"redis"}, set(), {"e2e", "services"}),
        ("tests/kernels/triton/test_norms.py::test_x", set(), set(), {"unit"}),
        ("tests/kernels/triton/test_ops.py::test_x", set(), set(), {"kernels"}),
        ("tests/engine/execution/test_golden.py::test_logits[gemma3-1]", set(), set(), {"models"}),
        ("tests/engine/execution/test_golden.py::test_logits[llama-1]", set(), set(), {"unit"}),
        ("tests/engine/simulation/test_ahead.py::test_a_planted_bug_is_found[x]", set(), set(), {"campaign"}),
        ("tests/engine/simulation/test_campaign.py::test_x[sample]", {"campaign"}, set(), {"campaign"}),
        (
            "tests/engine/simulation/test_campaign.py::test_no_seed_breaks_an_invariant[whole]",
            {"campaign"},
            set(),
            {"soak"},
        ),
    ],
)
def test_a_test_is_in_all_its_tiers(nodeid: str, fixtures: set[str], parameters: set[str], tiers: set[str]) -> None:
    assert tiers_of(nodeid, fixtures, parameters) == tiers


@pytest.mark.parametrize(
    ("path", "markers", "left_out"),
    [
        ("tests/e2e/test_drain.py", "unit", True),
        ("tests/console/test_hostile.py", "unit", True),
        ("tests/kernels/triton/test_norms.py", "unit", False),
        ("tests/engine/execution/test_golden.py", "unit", False),
        ("tests/engine/execution/test_hybrid.py", "unit", True),
        ("tests/whole/test_whole.py", "unit", False),
        ("tests/e2e/test_drain.py", "", False),
        ("tests/e2e/test_drain.py", "e2e", False),
        ("tests/e2e/test_drain.py", "kernels or models", True),
        ("tests/gateway/test_life.py", "models", True),
        ("tests/kernels/triton/test_ops.py", "kernels or models", False),
        ("tests/engine/execution/parallel/test_lost_ranks.py", "models", False),
        ("tests/kernels/triton/test_norms.py", "kernels", True),
        ("tests/kernels/triton/test_ops.py", "not (kernels or models)", True),
        ("tests/kernels/triton/test_ops.py", "not (models or soak)", False),
        ("tests/kernels/triton/test_norms.py", "not (kernels or models)", False),
        ("tests/engine/execution/parallel/test_lost_ranks.py", "not (models)", False),
        ("tests/engine/execution/parallel/test_text.py", "not (models or matrix)", False),
        ("tests/e2e/test_drain.py", "not (kernels or e2e)", False),
        ("tests/gateway/test_life.py", "not slow", False),
    ],
)
def test_only_files_without_tests_of_a_run_are_left_out_of_it(path: str, markers: str, left_out: bool) -> None:
    config = SimpleNamespace(option=SimpleNamespace(markexpr=markers))
    assert is_left_out(path, config) is left_out  # type: ignore[arg-type]
