"""The manifests as `kubectl apply -k` sends them, and what tests of them and of the chart ask."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.config.setting_sources import ENV_PREFIX
from gateway.config.settings import Settings
from tests.deploy.dockerfile import ROOT

MANIFESTS = ROOT / "deploy" / "kubernetes"
INSTALL = "kubernetes.io/docs/tasks/tools, 1.27 or newer"
KUBERNETES = ("1.32", kubernetes_validate.latest_version())
"""The oldest version whose fields are used, and the newest that is known."""
SECRET_SETTINGS = {
    ENV_PREFIX + name.upper() for name, field in Settings.model_fields.items() if "Secret" in str(field.annotation)
}

Manifest = dict[str, Any]


@cache
def kustomized(folder: Path) -> str:
    asked = ["kubectl", "version", "--client", "--output", "json"]
    if shutil.which("kubectl") is None:
        pytest.skip(f"kubectl is not installed: {INSTALL}")
    version = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout).get("kustomizeVersion", "v0")
    if int(version.removeprefix("v").partition(".")[0]) < 5:
        pytest.skip(f"kubectl is too old, with kustomize {version}: {INSTALL}")
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(overlay: str) -> list[Manifest]:
    """The manifests that `kubectl apply -k` sends."""
    return list(yaml.safe_load_all(kustomized(MANIFESTS / overlay)))


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def workloads(manifests: list[Manifest]) -> list[Manifest]:
    return [one(manifests, "StatefulSet", "gateway"), one(manifests, "Deployment", "sink")]


def containers(workload: Manifest) -> Iterator[Manifest]:
    pod = workload["spec"]["template"]["spec"]
    yield from pod.get("initContainers", [])
    yield from pod["containers"]


def port_names(workload: Manifest) -> set[str]:
    return {port["name"] for container in containers(workload) for port in container.get("ports", [])}


def gateway_container(manifests: list[Manifest]) -> Manifest:
    (container,) = one(manifests, "StatefulSet", "gateway")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def settings_map(manifests: list[Manifest]) -> dict[str, str]:
    (found,) = [each["data"] for each in manifests if each["kind"] == "ConfigMap"]
    return dict(found)


def patience_s(probe: Mapping[str, Any]) -> int:
    """For how long it may fail before something happens."""
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def problems(manifest: Manifest, versions: Sequence[str] = KUBERNETES) -> list[str]:
    found = []
    for version in versions:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{version}: {error.message}")
    return found
