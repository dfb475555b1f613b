"""The Helm chart, rendered by Helm: by default the objects of kustomize's base, and by value what operators ask for."""

import json
import re
import subprocess
import tarfile
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.workers.sources import DNS_SECONDS, DNSSource, parse_source
from gateway.app import RELAY_DEADLINE_S
from gateway.config.setting_sources import ENV_PREFIX
from gateway.config.settings import Settings, load_settings
from gateway.process.server import CUT_S
from gateway.telemetry.metrics import Metrics
from tests.deploy.dockerfile import image_environment
from tests.deploy.helm import (
    CHART,
    HELM_MISSING,
    LIBRARY,
    ROOT,
    ChartError,
    chart_notes,
    lint_findings,
    packaged_chart,
    rendered_chart,
)
from tests.deploy.manifests import (
    KUBERNETES,
    SECRET_SETTINGS,
    Manifest,
    gateway_container,
    one,
    patience_s,
    problems,
    rendered,
)
from tests.deploy.prometheus_server import prometheus_program
from tests.support.servers import ServerMissing

pytestmark = pytest.mark.skipif(not (LIBRARY / "helm_python").is_dir(), reason=HELM_MISSING)

GPU = {"gpu": {"enabled": True}}
KEDA = {"autoscaling": {"kind": "keda", "keda": {"prometheusAddress": "http://prometheus.monitoring:9090"}}}
EVERYTHING = {
    **GPU,
    **KEDA,
    "ingress": {"enabled": True, "className": "nginx", "host": "llm.example.com", "tlsSecretName": "llm-tls"},
    "monitoring": {
        "podMonitors": {"enabled": True, "labels": {"release": "prometheus"}},
        "rules": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True},
    },
    "config": 'log_level = "debug"\n',
    "gateway": {"storage": {"adapters": {"existingClaim": "adapters"}}},
    "imagePullSecrets": [{"name": "registry"}],
}
WORKERS = {
    "workers": {"enabled": True, "tlsSecretName": "worker-tls"},
    "settings": {"TURNPIKE_MODELS": {"chat": "/var/cache/turnpike/models/qwen3", "small": "smollm2"}},
}
OLDEST = "1.27"
OF_OPERATORS = {"PodMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds that Kubernetes itself does not have."""
OF_HELM = re.compile(r"helm\.sh/chart|app\.kubernetes\.io/(instance|version|managed-by)")


def bare(manifest: Manifest) -> Manifest:
    """Without what Helm and kustomize each say in a way of their own: Helm's labels, the namespace (Helm's is the
    release's), and how a change of settings replaces the pods (a hash in a name, or in an annotation)."""
    copy = deepcopy(manifest)
    metadata = copy["metadata"]
    metadata.pop("namespace", None)
    metadata["labels"] = {key: value for key, value in metadata["labels"].items() if not OF_HELM.fullmatch(key)}
    if copy["kind"] == "ConfigMap":
        metadata["name"] = re.sub(r"-[0-9a-z]{10}$", "", metadata["name"])
    template = copy["spec"].get("template") if "spec" in copy else None
    if template and "annotations" in template["metadata"]:
        assert template["metadata"].pop("annotations").keys() == {"turnpike/settings"}
    for each in template["spec"]["containers"] if template else []:
        each["env"].sort(key=lambda variable: str(variable["name"]))
        for source in each.get("envFrom", []):
            source["configMapRef"]["name"] = re.sub(r"-[0-9a-z]{10}$", "", source["configMapRef"]["name"])
    return copy


def by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    found = {(each["kind"], each["metadata"]["name"]): bare(each) for each in manifests}
    return {(kind, re.sub(r"-[0-9a-z]{10}$", "", name)): each for (kind, name), each in found.items()}


@pytest.mark.parametrize(("overlay", "values"), [("base", {}), ("gpu", GPU)])
def test_by_default_it_is_what_kustomize_makes(overlay: str, values: dict[str, Any]) -> None:
    expected, found = by_name(rendered(overlay)), by_name(rendered_chart(values))
    del expected[("Namespace", "turnpike")]
    assert found.keys() == expected.keys()
    for key, manifest in found.items():
        assert manifest == expected[key]


SCALED_WORKERS = {**EVERYTHING, **WORKERS, "workers": {**WORKERS["workers"], "autoscaling": {"enabled": True}}}


@pytest.mark.parametrize(
    "values", [{}, GPU, EVERYTHING, WORKERS, SCALED_WORKERS], ids=["default", "gpu", "everything", "workers", "scaled"]
)
def test_kubernetes_takes_what_it_renders(values: dict[str, Any]) -> None:
    manifests = rendered_chart(values)
    for manifest in manifests:
        if manifest["kind"] not in OF_OPERATORS:
            assert problems(manifest, (OLDEST, *KUBERNETES)) == [], manifest["metadata"]["name"]
        assert "namespace" not in manifest["metadata"]
    keys = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(set(keys)) == len(keys)


def test_the_oldest_version_is_the_one_that_the_chart_states() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"


@pytest.mark.parametrize("values", [{}, EVERYTHING, SCALED_WORKERS], ids=["default", "everything", "workers"])
def test_helm_has_nothing_to_say_about_it(values: dict[str, Any]) -> None:
    assert lint_findings(values) == []


def test_it_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert gateway_container(rendered_chart({}))["image"] == f"turnpike:{version}"


def test_an_archive_has_the_alerts_and_dashboards_themselves(tmp_path: Path) -> None:
    """In the repository they are links."""
    with tarfile.open(packaged_chart(tmp_path)) as archive:
        members = {member.name.removeprefix("turnpike/"): member for member in archive.getmembers()}
        assert all(member.isfile() for member in members.values())
        rules = archive.extractfile(members["files/alerts.yml"])
        assert rules
        assert rules.read() == (ROOT / "deploy" / "prometheus" / "alerts.yml").read_bytes()
    dashboards = {path.name for path in (ROOT / "deploy" / "grafana" / "dashboards").iterdir()}
    assert {name.rpartition("/")[2] for name in members if name.startswith("files/dashboards/")} == dashboards


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gatway": {}}, "'gatway' not allowed"),
        ({"settings": {"TURNPIKE_MAX_RUNNING": 64}}, "/settings/TURNPIKE_MAX_RUNNING"),
        ({"settings": {"MAX_RUNNING": "64"}}, "MAX_RUNNING"),
        ({"settings": {"TURNPIKE_KEY_PEPPER": "0123"}}, "TURNPIKE_KEY_PEPPER"),
        ({"settings": {"TURNPIKE_SHUTDOWN_DEADLINE_S": "two minutes"}}, "TURNPIKE_SHUTDOWN_DEADLINE_S"),
        ({"secrets": {"TURNPIKE_KAFKA_URL": {"value": "kafka://user:password@host"}}}, "TURNPIKE_KAFKA_URL"),
        ({"secrets": {"TURNPIKE_KAFKA_URL": None}}, "the sink needs secrets.TURNPIKE_KAFKA_URL"),
        ({"gateway": {"resources": {"requests": {"cpu": None}}}}, "/gateway/resources/requests"),
        ({"autoscaling": {"kind": "vpa"}}, "/autoscaling/kind"),
        ({"autoscaling": {"kind": "keda"}}, "autoscaling.keda.prometheusAddress is not set"),
        ({"ingress": {"enabled": True}}, "ingress.host is not set"),
        ({"monitoring": {"rules": {"enabled": True, "runbookBase": "https://docs.example.com"}}}, "runbookBase"),
        ({"image": {"digest": "sha256:12"}}, "/image/digest"),
        ({"networkPolicies": {"clients": []}}, "/networkPolicies/clients"),
    ],
)
def test_values_that_cannot_work_are_rejected_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ChartError, match=re.escape(message)):
        rendered_chart(values)


def test_secrets_are_references_and_cannot_be_settings() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    stated = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["secrets"]
    assert stated.keys() == schema["properties"]["secrets"]["properties"].keys() == SECRET_SETTINGS
    assert set(schema["properties"]["settings"]["propertyNames"]["not"]["enum"]) == SECRET_SETTINGS
    assert not [each for each in rendered_chart(EVERYTHING) if each["kind"] == "Secret"]


def test_secrets_of_operators_are_taken_as_they_are() -> None:
    """Such as the one that an operator of PostgreSQL makes."""
    values = {"secrets": {"TURNPIKE_DATABASE_URL": {"name": "pg-app", "key": "uri"}, "TURNPIKE_KAFKA_URL": None}}
    manifests = rendered_chart(values | {"sink": {"enabled": False}})
    environment = {each["name"]: each["valueFrom"] for each in gateway_container(manifests)["env"]}
    assert environment["TURNPIKE_DATABASE_URL"] == {"secretKeyRef": {"name": "pg-app", "key": "uri"}}
    assert "TURNPIKE_KAFKA_URL" not in environment
    assert {each["metadata"]["name"] for each in manifests if each["kind"] == "Deployment"} == set()
    assert "sink" not in {each["metadata"]["name"] for each in manifests}


def test_settings_reach_the_gateway_and_replace_its_pods(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"qwen3": "/var/cache/turnpike/models/qwen3"}
    values = {"settings": {"TURNPIKE_MODELS": models, "TURNPIKE_MAX_RUNNING": "64"}}
    manifests = rendered_chart(values)
    stated = one(manifests, "ConfigMap", "turnpike")["data"]
    assert json.loads(stated["TURNPIKE_MODELS"]) == models
    assert stated.items() > one(rendered_chart({}), "ConfigMap", "turnpike")["data"].items()
    for name, value in stated.items():
        monkeypatch.setenv(name, value)
    assert Settings().max_running == 64
    marks = {
        json.dumps(one(rendered_chart(each), "StatefulSet", "gateway")["spec"]["template"]["metadata"]["annotations"])
        for each in ({}, values, {"config": "max_running = 64\n"})
    }
    assert len(marks) == 3


def test_a_configuration_file_lies_where_the_gateway_reads_it(
    tmp_path: Path, no_settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'max_running = 7\n[models]\nqwen3 = "/models/qwen3"\n'
    manifests = rendered_chart({"config": text})
    assert one(manifests, "ConfigMap", "turnpike-config")["data"] == {"turnpike.toml": text}
    (mount,) = [each for each in gateway_container(manifests)["volumeMounts"] if each["name"] == "config"]
    folder = image_environment("cpu")["TURNPIKE_DATA_DIR"]
    assert mount["mountPath"] == f"{folder}/{mount['subPath']}"
    (tmp_path / mount["subPath"]).write_text(text, encoding="utf-8")
    monkeypatch.setenv(f"{ENV_PREFIX}DATA_DIR", str(tmp_path))
    assert Settings().max_running == 7


@pytest.mark.parametrize("deadline_s", [30, 120, 900])
def test_a_drain_has_the_time_that_it_takes(deadline_s: int) -> None:
    manifests = rendered_chart({"settings": {"TURNPIKE_SHUTDOWN_DEADLINE_S": str(deadline_s)}})
    ends_s = deadline_s + CUT_S + RELAY_DEADLINE_S
    pod = one(manifests, "StatefulSet", "gateway")["spec"]["template"]["spec"]
    assert ends_s < pod["terminationGracePeriodSeconds"] < ends_s + 30
    assert patience_s(gateway_container(manifests)["livenessProbe"]) > ends_s


def test_digests_win_over_tags() -> None:
    cpu, gpu = (f"sha256:{digit * 64}" for digit in "1f")
    image = {"repository": "registry.example.com/turnpike", "tag": "main", "digest": cpu}
    manifests = rendered_chart({"image": image, "gpu": {"enabled": True, "imageDigest": gpu}})
    assert gateway_container(manifests)["image"] == f"registry.example.com/turnpike@{gpu}"
    sink = one(manifests, "Deployment", "sink")["spec"]["template"]["spec"]
    assert {each["image"] for each in sink["containers"] + sink["initContainers"]} == {
        f"registry.example.com/turnpike@{cpu}"
    }


def test_keda_asks_prometheus_for_what_the_other_autoscaler_follows() -> None:
    manifests = rendered_chart(KEDA)
    assert not [each for each in manifests if each["kind"] == "HorizontalPodAutoscaler"]
    spec = one(manifests, "ScaledObject", "gateway")["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "gateway"}
    scaler = one(rendered_chart({}), "HorizontalPodAutoscaler", "gateway")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (scaler["minReplicas"], scaler["maxReplicas"])
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scaler["behavior"]
    asked = {trigger["metadata"]["query"]: trigger for trigger in spec["triggers"]}
    found = {re.search(r"turnpike_\w+", query)[0]: each for query, each in asked.items()}  # type: ignore[index]
    assert found.keys() <= {family.name for family in Metrics(dict).registry.collect()}
    assert all('{namespace="turnpike"}' in query for query in asked)
    assert {each["metricType"] for each in found.values()} == {"AverageValue"}
    thresholds = {name: each["metadata"]["threshold"] for name, each in found.items()}
    followed = {each["pods"]["metric"]["name"]: each["pods"]["target"]["averageValue"] for each in scaler["metrics"]}
    assert thresholds == {
        "turnpike_sequences_waiting": followed["turnpike_queue_depth"],
        "turnpike_sequences_running": followed["turnpike_running_sequences"],
    }


def variables(container: Manifest) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_gateways_find_workers_by_their_headless_service(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered_chart(WORKERS)
    service, workers = one(manifests, "Service", "workers"), one(manifests, "Deployment", "workers")
    pod = workers["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    assert service["spec"]["clusterIP"] == "None", "its name has the addresses of the pods"
    assert service["spec"]["selector"].items() <= workers["spec"]["template"]["metadata"]["labels"].items()
    for name, value in variables(gateway_container(manifests)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TURNPIKE_MODELS", one(manifests, "ConfigMap", "turnpike")["data"]["TURNPIKE_MODELS"])
    settings = load_settings()
    assert settings.replicas.keys() == settings.models.keys()
    for (source,) in settings.replicas.values():
        parsed = parse_source(source)
        assert isinstance(parsed, DNSSource)
        host, port = source.removeprefix("tcp+dns://").split(":")
        assert host == service["metadata"]["name"]
        assert {"port": int(port)}.items() <= service["spec"]["ports"][0].items()
        assert worker["args"] == ["worker", "--listen", f"0.0.0.0:{port}"]
        assert worker["ports"] == [{"name": "worker", "containerPort": int(port)}]
    assert settings.worker_tls is not None
    mounts = {each["name"]: each["mountPath"] for each in worker["volumeMounts"]}
    assert str(settings.worker_tls.certificate.parent) == mounts["worker-tls"]
    assert variables(worker)["TURNPIKE_WORKER_TLS"] == variables(gateway_container(manifests))["TURNPIKE_WORKER_TLS"]
    assert "TURNPIKE_REPLICAS" not in variables(worker)


def test_a_worker_drains_after_names_have_forgotten_it() -> None:
    manifests = rendered_chart(WORKERS)
    pod = one(manifests, "Deployment", "workers")["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    (_, sleep_s) = worker["lifecycle"]["preStop"]["exec"]["command"]
    assert int(sleep_s) > DNS_SECONDS
    deadline_s = int(one(manifests, "ConfigMap", "turnpike")["data"]["TURNPIKE_SHUTDOWN_DEADLINE_S"])
    assert pod["terminationGracePeriodSeconds"] >= int(sleep_s) + deadline_s + 10


def test_with_workers_the_devices_are_theirs_and_gateways_alone_reach_them() -> None:
    manifests = rendered_chart({**WORKERS, **GPU})
    (worker,) = one(manifests, "Deployment", "workers")["spec"]["template"]["spec"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in gateway_container(manifests)["resources"]["limits"]
    (rule,) = one(manifests, "NetworkPolicy", "workers")["spec"]["ingress"]
    (peer,) = rule["from"]
    gateway = one(manifests, "StatefulSet", "gateway")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= gateway.items()
    egress = one(manifests, "NetworkPolicy", "gateway")["spec"]["egress"]
    assert {"port": 9010} in [port for each in egress for port in each["ports"]]


def test_workers_scale_by_the_load_that_gateways_see() -> None:
    spec = one(rendered_chart(SCALED_WORKERS), "ScaledObject", "workers")["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "workers"}
    (trigger,) = spec["triggers"]
    asked = set(re.findall(r"turnpike_\w+", trigger["metadata"]["query"]))
    assert asked == {"turnpike_sequences_running", "turnpike_sequences_waiting"}
    assert asked <= {family.name for family in Metrics(dict).registry.collect()}
    assert "replicas" not in one(rendered_chart(SCALED_WORKERS), "Deployment", "workers")["spec"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": {"enabled": True}}, "workers.tlsSecretName"),
        ({"workers": {"enabled": True, "tlsSecretName": "x"}}, "workers need settings.TURNPIKE_MODELS"),
    ],
)
def test_workers_need_certificates_and_models(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ChartError, match=re.escape(message)):
        rendered_chart(values)


def test_without_an_autoscaler_replicas_are_stated() -> None:
    manifests = rendered_chart({"autoscaling": {"kind": "none", "replicas": 3}})
    assert one(manifests, "StatefulSet", "gateway")["spec"]["replicas"] == 3
    assert not {each["kind"] for each in manifests} & {"HorizontalPodAutoscaler", "ScaledObject"}


def test_an_ingress_passes_the_api_alone_and_does_not_buffer() -> None:
    ingress = one(rendered_chart(EVERYTHING), "Ingress", "gateway")
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == "llm.example.com"
    assert [path["path"] for path in rule["http"]["paths"]] == ["/v1"]
    assert ingress["spec"]["tls"] == [{"hosts": ["llm.example.com"], "secretName": "llm-tls"}]
    annotations = ingress["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    allowed = int(annotations["nginx.ingress.kubernetes.io/proxy-body-size"].removesuffix("m")) * 2**20
    assert allowed >= Settings.model_fields["max_body_bytes"].default, "the gateway states its own bound"


def test_pod_monitors_find_the_pods_under_the_names_that_rules_go_by() -> None:
    composed = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    jobs = {job["job_name"] for job in composed["scrape_configs"]}
    manifests = rendered_chart(EVERYTHING)
    monitors = {each["metadata"]["name"]: each for each in manifests if each["kind"] == "PodMonitor"}
    assert monitors.keys() == {"gateway", "sink"}
    for name, kind in (("gateway", "StatefulSet"), ("sink", "Deployment")):
        spec = monitors[name]["spec"]
        pods = one(manifests, kind, name)["spec"]["template"]
        assert spec["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
        (endpoint,) = spec["podMetricsEndpoints"]
        ports = {port["name"] for each in pods["spec"]["containers"] for port in each["ports"]}
        assert endpoint["port"] in ports
        (relabelled,) = endpoint["relabelings"]
        assert (relabelled["targetLabel"], relabelled["replacement"]) == ("job", f"turnpike-{name}")
        assert relabelled["replacement"] in jobs
        assert monitors[name]["metadata"]["labels"]["release"] == "prometheus"


def test_the_rules_are_those_of_the_file(tmp_path: Path) -> None:
    expected = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    rule = one(rendered_chart(EVERYTHING), "PrometheusRule", "turnpike")
    assert rule["spec"] == expected
    based = deepcopy(EVERYTHING)
    bases = {"runbookBase": "https://docs.example.com/turnpike/", "grafanaBase": "https://grafana.example.com/"}
    based["monitoring"]["rules"] |= bases  # type: ignore[index]
    spec = one(rendered_chart(based), "PrometheusRule", "turnpike")["spec"]
    urls = [
        each["annotations"]["runbook_url"] for group in spec["groups"] for each in group["rules"] if "alert" in each
    ]
    assert all(url.startswith("https://docs.example.com/turnpike/docs/runbooks.md#turnpike") for url in urls)
    try:
        promtool = prometheus_program("promtool")
    except ServerMissing as error:
        pytest.skip(str(error))
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    checked = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_dashboards_are_those_of_the_folder() -> None:
    found = [each for each in rendered_chart(EVERYTHING) if each["metadata"]["name"].startswith("turnpike-dashboard-")]
    files = {path.name: json.loads(path.read_bytes()) for path in (ROOT / "deploy/grafana/dashboards").iterdir()}
    assert {name: json.loads(text) for each in found for name, text in each["data"].items()} == files
    for each in found:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(each)) < 2**20, "etcd takes no more"


def test_notes_say_what_is_missing() -> None:
    assert "turnpike/key-pepper" in chart_notes({})
    assert "http://gateway.turnpike:8080/v1" in chart_notes({})
    assert "prometheus-adapter" in chart_notes({})
    assert "https://llm.example.com/v1" in chart_notes(EVERYTHING)
    assert "WARNING" not in chart_notes(EVERYTHING)
    assert "plain text" in chart_notes({"ingress": {"enabled": True, "host": "llm.example.com"}})


def test_replicas_share_the_adapters_of_tenants() -> None:
    """A claim that all replicas mount lies where the gateway looks for their files."""
    manifests = rendered_chart({"gateway": {"storage": {"adapters": {"existingClaim": "tuned"}}}})
    pod = one(manifests, "StatefulSet", "gateway")["spec"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if each.get("persistentVolumeClaim") == {"claimName": "tuned"})
    (mount,) = (each for each in gateway_container(manifests)["volumeMounts"] if each["name"] == volume["name"])
    settings = Settings(data_dir=Path(image_environment("cpu")["TURNPIKE_DATA_DIR"]))
    assert Path(mount["mountPath"]) == settings.adapters_folder
