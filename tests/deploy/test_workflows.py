"""The workflows for a public runner: what they name is there. No test runs them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.process.demo_banner import demo_banner
from tests.support.demo_banner import LAST

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def workflow(file: Path) -> dict[str, Any]:
    return dict(yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader))


def scripts(file: Path) -> list[str]:
    return [step["run"] for job in workflow(file)["jobs"].values() for step in job["steps"] if "run" in step]


def test_they_are_these() -> None:
    assert [file.stem for file in FILES] == ["check", "newcomer", "release"]


@every_file
def test_rights_and_time_are_bounded(file: Path) -> None:
    stated = workflow(file)
    assert stated["permissions"] == {"contents": "read"}, "a job that needs more states it"
    for job in stated["jobs"].values():
        assert int(job["timeout-minutes"]) <= 90
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/x@v1"))


@every_file
def test_targets_of_make_are_there(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = {target for script in scripts(file) for target in re.findall(r"^make ([a-z-]+)", script, re.MULTILINE)}
    assert named <= targets


def test_the_newcomer_waits_for_the_last_line_of_the_banner() -> None:
    [script] = [each for each in scripts(ROOT / ".github/workflows/newcomer.yml") if "make run" in each]
    assert f'grep -q "^{LAST}"' in script
    banner = demo_banner("http://127.0.0.1:8080", "smollm2", "tp-key", Path("/data"), Path("/models"))
    assert banner.rstrip("\n").splitlines()[-1].startswith(LAST)
