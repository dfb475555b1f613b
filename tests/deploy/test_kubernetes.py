"""The manifests: valid for Kubernetes, and true to what the program does."""

import json
import re
import shutil
import textwrap
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from engine.config import CPU_SIZES, LARGE_GPU_SIZES
from gateway.app import RELAY_DEADLINE_S
from gateway.config.safety import stores_without_tls
from gateway.config.setting_sources import ENV_PREFIX
from gateway.config.settings import Settings
from gateway.http.middleware import OPEN_PATHS
from gateway.management.cli import app
from gateway.process.server import CUT_S
from gateway.telemetry.metrics import Metrics
from tests.deploy.dockerfile import ROOT, command_of, image_environment, last
from tests.deploy.manifests import (
    KUBERNETES,
    MANIFESTS,
    SECRET_SETTINGS,
    containers,
    gateway_container,
    kustomized,
    one,
    patience_s,
    port_names,
    problems,
    rendered,
    settings_map,
    workloads,
)

RENDERED = ("base", "gpu")

every_overlay = pytest.mark.parametrize("overlay", RENDERED)


@every_overlay
def test_kubernetes_takes_every_manifest(overlay: str) -> None:
    for manifest in rendered(overlay):
        assert problems(manifest) == [], manifest["metadata"]["name"]


@pytest.mark.parametrize("file", sorted(MANIFESTS.glob("base/[!k]*.yaml")), ids=lambda file: file.stem)
def test_the_files_are_valid_as_they_are_written(file: Path) -> None:
    """Also where there is no kubectl."""
    manifests = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    assert manifests
    for manifest in manifests:
        assert problems(manifest, KUBERNETES[-1:]) == []


def test_a_slip_would_be_found() -> None:
    gateway = one(rendered("base"), "StatefulSet", "gateway")
    for slip in ({"terminationGracePeriodSecond": 1}, {"securityContext": {"runAsUser": "root"}}):
        wrong = deepcopy(gateway)
        wrong["spec"]["template"]["spec"].update(slip)
        assert len(problems(wrong)) == len(KUBERNETES)


@every_overlay
def test_pods_meet_the_restricted_standard(overlay: str) -> None:
    """The rules that the namespace enforces (Pod Security Standards), and a root file system that cannot be written."""
    manifests = rendered(overlay)
    labels = one(manifests, "Namespace", "turnpike")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    user, group = (int(each) for each in last("cpu", "USER").split(":"))
    for workload in workloads(manifests):
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (user, group)
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all("hostPath" not in volume for volume in pod["volumes"])
        for container in containers(workload):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"memory", "cpu"} <= container["resources"]["limits"].keys()


@every_overlay
def test_images_are_those_of_this_version(overlay: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    gateway, sink = workloads(rendered(overlay))
    wanted = f"turnpike:{version}" + ("-gpu" if overlay == "gpu" else "")
    assert {container["image"] for container in containers(gateway)} == {wanted}
    assert {container["image"] for container in containers(sink)} == {f"turnpike:{version}"}


@every_overlay
def test_containers_run_commands_that_there_are(overlay: str) -> None:
    assert command_of(last("cpu", "ENTRYPOINT")) == ["turnpike"]
    for workload in workloads(rendered(overlay)):
        for container in containers(workload):
            assert "command" not in container
            group = container["args"][: 2 if container["args"][0] in {"models", "kafka"} else 1]
            assert CliRunner().invoke(app, [*group, "--help"]).exit_code == 0
            stated = {word for word in container["args"] if word.startswith("--")}
            text = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "200"}).output
            assert all(option in text for option in stated)


@every_overlay
def test_variables_are_valid_settings(overlay: str, no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered(overlay)
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    stated = settings_map(manifests)
    assert set(stated) <= known
    assert not set(stated) & SECRET_SETTINGS
    for workload in workloads(manifests):
        for container in containers(workload):
            assert {variable["name"] for variable in container.get("env", [])} <= known
    for name, value in stated.items():
        monkeypatch.setenv(name, value)
    Settings()


@every_overlay
def test_secrets_are_named_and_never_written(overlay: str) -> None:
    manifests = rendered(overlay)
    assert not [each for each in manifests if each["kind"] == "Secret"]
    asked = set()
    for workload in workloads(manifests):
        for container in containers(workload):
            for variable in container.get("env", []):
                assert "value" not in variable
                if variable["name"] in SECRET_SETTINGS:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference["name"] == "turnpike"
                    asked.add(reference["key"])
    readme = (MANIFESTS / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^    ([a-z-]+)=", readme, re.MULTILINE)) == asked


def test_stores_are_asked_for_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the secrets of the README have them."""
    readme = (MANIFESTS / "README.md").read_text(encoding="utf-8")
    for name, value in re.findall(r"^    ([a-z]+-url)=(.*)$", readme, re.MULTILINE):
        monkeypatch.setenv(ENV_PREFIX + name.upper().replace("-", "_"), value)
    settings = Settings()
    assert settings.kafka_url is not None
    assert stores_without_tls(settings) == []


def test_the_sink_has_the_gateways_pepper() -> None:
    names = {"TURNPIKE_KEY_PEPPER", "TURNPIKE_KAFKA_URL", "TURNPIKE_ANALYTICS_URL"}
    stated = [
        {variable["name"]: variable["valueFrom"] for variable in container["env"] if variable["name"] in names}
        for file in ("gateway.yaml", "sink.yaml")
        for manifest in yaml.safe_load_all((MANIFESTS / "base" / file).read_text(encoding="utf-8"))
        if manifest["kind"] in {"StatefulSet", "Deployment"}
        for container in manifest["spec"]["template"]["spec"]["containers"]
    ]
    assert stated[0] == stated[1]
    assert stated[0].keys() == names


def test_pods_reach_names_stores_and_models_and_nothing_else() -> None:
    """Every rule says whom, and none a cloud's metadata (169.254.169.254) or, but for models, the Internet."""
    text = (MANIFESTS / "base" / "network-policies.yaml").read_text(encoding="utf-8")
    for policy in yaml.safe_load_all(text):
        for rule in policy["spec"]["egress"]:
            blocks = [each["ipBlock"] for each in rule["to"] if "ipBlock" in each]
            ports = {port["port"] for port in rule["ports"]}
            assert blocks
            assert not any(_holds(block, "169.254.169.254") for block in blocks)
            if any(_holds(block, "203.0.113.7") for block in blocks):
                assert (policy["metadata"]["name"], ports) == ("gateway", {443})
                assert not any(_holds(block, "10.1.2.3") for block in blocks)


def _holds(block: Mapping[str, Any], address: str) -> bool:
    inside, *outside = (ip_network(cidr) for cidr in (block["cidr"], *block.get("except", ())))
    return ip_address(address) in inside and not any(ip_address(address) in each for each in outside)


@every_overlay
def test_containers_without_bounds_get_some(overlay: str) -> None:
    (limits,) = one(rendered(overlay), "LimitRange", "turnpike")["spec"]["limits"]
    assert limits["type"] == "Container"
    assert limits["default"].keys() == limits["defaultRequest"].keys() == {"cpu", "memory"}


@every_overlay
def test_kubernetes_own_variables_do_not_become_settings(overlay: str) -> None:
    """For a Service it tells every pod NAME_PORT, NAME_SERVICE_HOST and so on, unless told not to."""
    for workload in workloads(rendered(overlay)):
        assert workload["spec"]["template"]["spec"]["enableServiceLinks"] is False


@every_overlay
def test_probes_ask_for_what_there_is(overlay: str) -> None:
    gateway = gateway_container(rendered(overlay))
    (port,) = gateway["ports"]
    assert str(port["containerPort"]) == image_environment("cpu")["TURNPIKE_PORT"] == last("cpu", "EXPOSE")
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert gateway[name]["httpGet"]["path"] in OPEN_PATHS
        assert gateway[name]["httpGet"]["port"] == port["name"]
    (sink,) = one(rendered(overlay), "Deployment", "sink")["spec"]["template"]["spec"]["containers"]
    (port,) = sink["ports"]
    assert sink["args"][-2:] == ["--metrics-port", str(port["containerPort"])]
    assert sink["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": port["name"]}


@every_overlay
def test_a_drain_has_the_time_that_it_takes(overlay: str) -> None:
    manifests, margin_s = rendered(overlay), 5
    stated = settings_map(manifests)
    deadline_s = int(stated["TURNPIKE_SHUTDOWN_DEADLINE_S"])
    ends_s = deadline_s + CUT_S + RELAY_DEADLINE_S + margin_s
    pod = one(manifests, "StatefulSet", "gateway")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= ends_s
    gateway = gateway_container(manifests)
    # A load balancer that follows readiness has noticed before the listener closes; readiness, off in a drain, kills
    # nothing.
    assert patience_s(gateway["readinessProbe"]) < float(stated["TURNPIKE_DRAIN_DELAY_S"]) < deadline_s
    assert patience_s(gateway["livenessProbe"]) > ends_s


@every_overlay
def test_what_a_replica_keeps_lies_on_claims_of_its_own(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in image_environment("gpu" if overlay == "gpu" else "cpu").items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    manifests = rendered(overlay)
    gateway = one(manifests, "StatefulSet", "gateway")
    claims = {claim["metadata"]["name"] for claim in gateway["spec"]["volumeClaimTemplates"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in gateway_container(manifests)["volumeMounts"]}
    for path in (settings.journal_path, settings.models_dir):
        (claim,) = [name for mounted, name in mounts.items() if path.is_relative_to(mounted)]
        assert claim in claims
    assert mounts["/tmp"] not in claims
    assert gateway["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    (fetching,) = gateway["spec"]["template"]["spec"]["initContainers"]
    fetched = {mount["mountPath"]: mount["name"] for mount in fetching["volumeMounts"]}
    assert mounts.items() >= fetched.items()


@every_overlay
def test_selectors_find_their_pods(overlay: str) -> None:
    manifests = rendered(overlay)
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in workloads(manifests)}
    ports = {each["metadata"]["name"]: port_names(each) for each in workloads(manifests)}

    def found(selector: Mapping[str, str]) -> list[str]:
        return [name for name, pod in labels.items() if selector.items() <= pod.items()]

    for each in manifests:
        spec, name = each.get("spec", {}), each["metadata"]["name"]
        if each["kind"] == "Service":
            assert found(spec["selector"]) == ["gateway"]
            assert {port["targetPort"] for port in spec["ports"]} <= ports["gateway"]
        elif each["kind"] == "NetworkPolicy":
            assert found(spec["podSelector"]["matchLabels"]) == [name]
            for rule in spec["ingress"]:
                assert {port["port"] for port in rule["ports"]} <= ports[name]
        elif each["kind"] in {"PodDisruptionBudget", "StatefulSet", "Deployment"}:
            assert found(spec["selector"]["matchLabels"]) == [name]
    for constraint in one(manifests, "StatefulSet", "gateway")["spec"]["template"]["spec"]["topologySpreadConstraints"]:
        assert found(constraint["labelSelector"]["matchLabels"]) == ["gateway"]
    assert one(manifests, "StatefulSet", "gateway")["spec"]["serviceName"] == "gateway-replicas"
    assert one(manifests, "Service", "gateway-replicas")["spec"]["clusterIP"] == "None"


@every_overlay
def test_the_autoscaler_follows_metrics_that_there_are(overlay: str) -> None:
    manifests = rendered(overlay)
    scaler = one(manifests, "HorizontalPodAutoscaler", "gateway")["spec"]
    gateway = one(manifests, "StatefulSet", "gateway")
    assert (scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"]) == ("StatefulSet", "gateway")
    assert "replicas" not in gateway["spec"]
    values = yaml.safe_load((MANIFESTS / "monitoring" / "prometheus-adapter-values.yaml").read_text(encoding="utf-8"))
    rules = {rule["name"]["as"]: rule for rule in values["rules"]["custom"]}
    exported = {family.name for family in Metrics(dict).registry.collect()}
    followed = {metric["pods"]["metric"]["name"]: metric["pods"]["target"] for metric in scaler["metrics"]}
    assert followed.keys() == rules.keys()
    for rule in rules.values():
        assert rule["seriesQuery"].partition("{")[0] in exported
        assert "<<.Series>>" in rule["metricsQuery"]
    assert rules["turnpike_queue_depth"]["seriesQuery"].startswith("turnpike_sequences_waiting{")
    max_running = {"base": CPU_SIZES, "gpu": LARGE_GPU_SIZES}[overlay].max_running
    assert float(followed["turnpike_running_sequences"]["averageValue"]) == 0.75 * max_running


@every_overlay
def test_one_replica_is_to_spare(overlay: str) -> None:
    manifests = rendered(overlay)
    scaler = one(manifests, "HorizontalPodAutoscaler", "gateway")["spec"]
    needed = 1
    assert scaler["minReplicas"] == needed + 1
    assert one(manifests, "PodDisruptionBudget", "gateway")["spec"]["maxUnavailable"] == 1
    assert scaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"] >= 600
    assert scaler["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 0


def test_the_gpu_overlay_asks_for_a_gpu_for_the_gateway_alone() -> None:
    plain, gpu = rendered("base"), rendered("gpu")
    for manifests, count in ((plain, None), (gpu, "1")):
        for part in ("limits", "requests"):
            assert gateway_container(manifests)["resources"][part].get("nvidia.com/gpu") == count
    assert one(plain, "Deployment", "sink") == one(gpu, "Deployment", "sink")
    assert image_environment("gpu")["TURNPIKE_DEVICE"] == "cuda"


def test_prometheus_finds_the_pods_under_the_names_of_the_compose_file() -> None:
    """The jobs' names are what rules and dashboards go by; the labels are what the adapter goes by."""
    scraped = yaml.safe_load((MANIFESTS / "monitoring" / "prometheus-scrape.yaml").read_text(encoding="utf-8"))
    composed = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    jobs = {job["job_name"]: job for job in scraped["scrape_configs"]}
    ours = {job["job_name"] for job in composed["scrape_configs"] if job["job_name"].startswith("turnpike-")}
    assert jobs.keys() == ours
    for name, job in jobs.items():
        component = name.removeprefix("turnpike-")
        (workload,) = [each for each in workloads(rendered("base")) if each["metadata"]["name"] == component]
        keep = next(rule for rule in job["relabel_configs"] if rule.get("action") == "keep")
        assert keep["regex"] in {f"{component};{port}" for port in port_names(workload)}
        assert {rule["target_label"] for rule in job["relabel_configs"] if rule is not keep} == {"namespace", "pod"}
        assert job["kubernetes_sd_configs"] == [{"role": "pod", "namespaces": {"names": ["turnpike"]}}]


def test_the_overlay_in_the_readme_works(tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS, tmp_path, dirs_exist_ok=True)
    readme = (MANIFESTS / "README.md").read_text(encoding="utf-8")
    example = readme[readme.index("    resources: [../base]") :].partition("\n\n")[0]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(textwrap.dedent(example), encoding="utf-8")
    manifests = list(yaml.safe_load_all(kustomized(tmp_path / "mine")))
    assert gateway_container(manifests)["image"].startswith("registry.example.com/turnpike:")
    stated = settings_map(manifests)
    assert stated.items() > settings_map(rendered("base")).items()
    assert list(json.loads(stated["TURNPIKE_MODELS"])) == ["qwen3"]
    assert all(problems(manifest) == [] for manifest in manifests)
