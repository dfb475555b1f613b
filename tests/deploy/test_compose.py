"""docker-compose.yml: what it promises about images, secrets, ports and rights."""

import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from gateway.app import RELAY_DEADLINE_S
from gateway.config.setting_sources import ENV_PREFIX
from gateway.config.settings import Settings
from gateway.management.cli import app
from gateway.process.server import CUT_S
from tests.deploy.compose import ROOT, MissingVariable, compose_text, load_compose, required_variables
from tests.deploy.dockerfile import command_of, image_environment, last, stages
from tests.deploy.prometheus_server import prometheus_program
from tests.support.servers import ServerMissing

SECRETS = {name: f"value-of-{name.lower()}-{'x' * 32}" for name in required_variables()}
COMPOSE: dict[str, Any] = load_compose(SECRETS)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {"gateway", "topic", "sink"}
ENDS = {"topic"}
"""Services that do one thing and end."""
FULL_VERSION = re.compile(r"^[a-z0-9._/-]+:v?\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?$")
WRITES_ITS_ROOT = {
    "kafka": "the image writes server.properties from its variables",
    "clickhouse": "the image writes its first user",
    "grafana": "its plugins bring files along",
}

PUBLIC = "caddy"
"""Serves others than this machine, if its profile is chosen."""

every_service = pytest.mark.parametrize("name", list(SERVICES))


def test_everything_is_there() -> None:
    assert set(SERVICES) == OURS | {
        "postgres",
        "redis",
        "redis-sessions",
        "kafka",
        "clickhouse",
        "prometheus",
        "alertmanager",
        "grafana",
        "postgres-exporter",
        "redis-exporter",
        "kafka-exporter",
        "caddy",
    }
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["caddy"]


def test_what_clients_store_has_a_bounded_memory_apart_from_limits() -> None:
    environment = SERVICES["gateway"]["environment"]
    assert environment["TURNPIKE_REDIS_URL"].endswith("@redis:6379/0")
    assert environment["TURNPIKE_SESSIONS_REDIS_URL"].endswith("@redis-sessions:6379/0")
    for name in ("redis", "redis-sessions"):
        assert re.search(r"^maxmemory \d+mb$|^maxmemory \d+gb$", SERVICES[name]["command"][-1], re.MULTILINE)
        assert "maxmemory-policy noeviction" in SERVICES[name]["command"][-1]


@every_service
def test_images_are_pinned(name: str) -> None:
    image = SERVICES[name]["image"]
    assert FULL_VERSION.match(image), image
    if name in OURS:
        version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        assert image == f"turnpike:{version}"
        assert SERVICES[name]["build"]["target"] in stages()


@every_service
def test_rights_are_given_up(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add") == (["NET_BIND_SERVICE"] if name == PUBLIC else None)
    assert "privileged" not in service
    assert "no-new-privileges:true" in service["security_opt"]
    assert service.get("read_only", False) == (name not in WRITES_ITS_ROOT)
    if name == PUBLIC:
        assert "user" not in service, "the image's folders of certificates are root's"
    elif name != "kafka":  # whose image says itself that it is not root
        assert service["user"].split(":")[0] not in {"", "0", "root"}


@every_service
def test_every_service_has_bounds(name: str) -> None:
    """Of memory, cores and processes. A container cannot have more cores than there are, and a machine may have one."""
    service = SERVICES[name]
    assert bytes_of(service["mem_limit"]) >= 2**27
    assert float(service["cpus"]) == (0 if name == "gateway" else 1), "0: all there are"
    assert 128 <= service["pids_limit"] <= 4096


def test_what_a_store_is_told_to_use_fits_into_its_bounds() -> None:
    kafka = SERVICES["kafka"]
    (heap,) = re.findall(r"-Xmx(\w+)", kafka["environment"]["KAFKA_HEAP_OPTS"])
    assert 2 * bytes_of(heap) <= bytes_of(kafka["mem_limit"])
    for redis in (SERVICES["redis"], SERVICES["redis-sessions"]):
        (data,) = re.findall(r"maxmemory (\w+)b\n", redis["command"][-1])
        assert 2 * bytes_of(data) <= bytes_of(redis["mem_limit"]), "it forks to rewrite its log"


def test_the_gateways_bounds_can_be_set() -> None:
    stated = {"GATEWAY_MEMORY": "24g", "GATEWAY_CPUS": "6", "GATEWAY_KV_CACHE": "8GiB"}
    gateway = load_compose({**SECRETS, **stated})["services"]["gateway"]
    assert (gateway["mem_limit"], gateway["cpus"]) == ("24g", "6")
    assert gateway["environment"]["TURNPIKE_KV_CACHE_BYTES"] == "8GiB"


def test_the_machine_needs_what_the_bounds_add_up_to(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the file and the docs state it; the KV cache of both of the catalogue's models is a part of the gateway's."""
    total = sum(bytes_of(service["mem_limit"]) for service in SERVICES.values())
    assert 15 * 2**30 < total <= 16 * 2**30
    assert "add up to 16 GiB" in compose_text()
    assert "needs 16 GB" in (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    gateway = SERVICES["gateway"]
    monkeypatch.setenv("TURNPIKE_KV_CACHE_BYTES", gateway["environment"]["TURNPIKE_KV_CACHE_BYTES"])
    kv_cache_bytes = Settings().kv_cache_bytes
    assert kv_cache_bytes is not None
    assert 2 * kv_cache_bytes + 2**30 <= bytes_of(gateway["mem_limit"])


def bytes_of(text: str) -> int:
    """As Docker reads it: `512m`, `8g`."""
    return int(text[:-1]) * {"m": 2**20, "g": 2**30}[text[-1]]


def test_the_sink_has_the_gateways_pepper() -> None:
    peppers = {SERVICES[name]["environment"]["TURNPIKE_KEY_PEPPER"] for name in ("gateway", "sink")}
    assert peppers == {SECRETS["KEY_PEPPER"]}


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_services_run_as_the_image_says(name: str) -> None:
    assert SERVICES[name]["user"] == last("cpu", "USER")
    assert "/tmp" in SERVICES[name]["tmpfs"]
    arguments = SERVICES[name].get("command") or command_of(last("cpu", "CMD"))
    groups = [word for word in arguments if not word.startswith("-")][: 2 if name == "topic" else 1]
    assert CliRunner().invoke(app, [*groups, "--help"]).exit_code == 0


@every_service
def test_every_service_says_whether_it_is_well(name: str) -> None:
    if name in ENDS:
        assert SERVICES[name]["restart"] == "no"
        assert "healthcheck" not in SERVICES[name]
    else:
        assert SERVICES[name]["restart"] == "unless-stopped"
        assert SERVICES[name]["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}


@every_service
def test_who_waits_waits_for_what_can_come(name: str) -> None:
    for other, stated in SERVICES[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if other in ENDS else "service_healthy"
        assert stated == {"condition": expected}


@every_service
def test_ports_are_this_machines_alone(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"(80|443):\d+(/udp)?" if name == PUBLIC else r"127\.0\.0\.1:\d+:\d+", port)
    assert "network_mode" not in SERVICES[name]


def test_stores_publish_nothing_and_have_no_way_out() -> None:
    assert COMPOSE["networks"]["stores"] == {"internal": True}
    exporters = [name for name in SERVICES if name.endswith("-exporter")]
    for name in ("postgres", "redis", "redis-sessions", "kafka", "clickhouse", *exporters):
        assert SERVICES[name]["networks"] == ["stores"]
        assert "ports" not in SERVICES[name]


def test_volumes_are_declared_and_used_and_what_is_mounted_is_there() -> None:
    used = set()
    for service in SERVICES.values():
        for mount in service.get("volumes", []):
            source, target, *mode = mount.split(":")
            assert target.startswith("/")
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
                assert mode == ["ro"]
            else:
                used.add(source)
    assert used == set(COMPOSE["volumes"])


def test_what_the_gateway_must_keep_is_on_a_volume() -> None:
    environment = image_environment("cpu")
    targets = [mount.split(":")[1] for mount in SERVICES["gateway"]["volumes"]]
    for path in (environment["TURNPIKE_DATA_DIR"], environment["TURNPIKE_MODELS_DIR"]):
        assert any(Path(path).is_relative_to(target) for target in targets)


@pytest.mark.parametrize("name", sorted(OURS))
def test_variables_are_settings(name: str) -> None:
    known = {ENV_PREFIX + field.upper() for field in Settings.model_fields}
    assert set(SERVICES[name]["environment"]) <= known


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_settings_take_them(name: str, no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in (image_environment("cpu") | SERVICES[name]["environment"]).items():
        monkeypatch.setenv(variable, value)
    settings = Settings()
    assert settings.kafka_url is not None
    assert settings.log_format == "json"


def test_there_is_time_to_go_down() -> None:
    margin_s = 5
    deadline_s = int(SERVICES["gateway"]["environment"]["TURNPIKE_SHUTDOWN_DEADLINE_S"])
    grace_s = int(SERVICES["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= deadline_s + CUT_S + RELAY_DEADLINE_S + margin_s


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_nothing_starts_without_its_secrets(name: str) -> None:
    with pytest.raises(MissingVariable, match="make compose-secrets"):
        load_compose({**SECRETS, name: ""})


def test_no_secret_is_written_down() -> None:
    """Every password in the environment of a service, or in a URL there, is a variable of the installation."""
    literal = yaml.safe_load(compose_text())
    for service in literal["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|PEPPER|AUTH$|TOKEN", name):
                assert re.fullmatch(r"\$\{\w+:\?[^}]*\}", value), name
            for password in re.findall(r"://[^:@/]*:(.*)@", value):
                assert re.fullmatch(r"\$\{\w+:\?[^}]*\}", password), name


def test_secrets_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("POSTGRES_PASSWORD=as it is\nREDIS_PASSWORD=\n", encoding="utf-8")
    command = ["sh", str(ROOT / "deploy" / "compose" / "secrets.sh"), str(file)]
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True)
    made = dict(line.split("=", 1) for line in file.read_text(encoding="utf-8").splitlines())
    assert set(made) == set(SECRETS)
    assert made.pop("POSTGRES_PASSWORD") == "as it is"
    assert len(set(made.values())) == len(made)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in made.values())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    load_compose({**made, "POSTGRES_PASSWORD": "as it is"})


def test_secrets_stay_out_of_the_repository_and_the_image() -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", ".env"], cwd=ROOT)
    assert ignored.returncode == 0
    assert "!.env" not in (ROOT / ".dockerignore").read_text(encoding="utf-8")


def test_prometheus_scrapes_what_serves_metrics() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    port = SERVICES["sink"]["command"][SERVICES["sink"]["command"].index("--metrics-port") + 1]
    assert targets["turnpike-sink"] == [f"sink:{port}"]
    assert targets["turnpike-gateway"] == [f"gateway:{image_environment('cpu')['TURNPIKE_PORT']}"]
    for job, port in (("postgres", "9187"), ("kafka", "9308")):
        assert targets[job] == [f"{job}-exporter:{port}"]
        assert f":{port}/" in SERVICES[f"{job}-exporter"]["healthcheck"]["test"][-1]
    assert SERVICES["kafka-exporter"]["environment"]["EXPORTER_PORT"] == "9308"
    served = ElementTree.parse(ROOT / "deploy" / "compose" / "clickhouse-prometheus.xml").getroot()
    assert targets["clickhouse"] == [f"clickhouse:{served.findtext('prometheus/port')}"]
    for host in {target.partition(":")[0] for each in targets.values() for target in each} - {"localhost"}:
        assert set(SERVICES[host]["networks"]) & set(SERVICES["prometheus"]["networks"])
    mounts = {mount.split(":")[1]: mount.split(":")[0] for mount in SERVICES["prometheus"]["volumes"]}
    assert mounts["/etc/prometheus"] == "./deploy/prometheus"


def test_alerts_lead_to_grafana_where_it_is() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (port,) = SERVICES["grafana"]["ports"]
    host, published, _ = port.split(":")
    assert config["global"]["external_labels"]["grafana_base"] == f"http://{host}:{published}/"


def test_grafana_has_what_its_provisioning_asks_for() -> None:
    environment, mounts = SERVICES["grafana"]["environment"], SERVICES["grafana"]["volumes"]
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    for file in provisioning.rglob("*.yml"):
        text = file.read_text(encoding="utf-8")
        for variable in re.findall(r"\$\{(\w+)\}", text):
            assert environment[variable], variable
        for provider in yaml.safe_load(text).get("providers", []):
            assert any(mount.split(":")[1] == provider["options"]["path"] for mount in mounts)
    assert f"./{provisioning.relative_to(ROOT)}:/etc/grafana/provisioning:ro" in mounts
    assert re.fullmatch(r"grafana-clickhouse-datasource@\d+\.\d+\.\d+", environment["GF_PLUGINS_PREINSTALL_SYNC"])


def test_grafana_reads_clickhouse_as_a_user_who_cannot_write() -> None:
    (mount,) = [each for each in SERVICES["clickhouse"]["volumes"] if "/users.d/" in each]
    users = ElementTree.parse(ROOT / mount.split(":")[0]).getroot()
    environment = SERVICES["grafana"]["environment"]
    user = users.find(f"users/{environment['CLICKHOUSE_USER']}")
    password = user.find("password")
    assert SERVICES["clickhouse"]["environment"][password.attrib["from_env"]] == environment["CLICKHOUSE_PASSWORD"]
    assert users.findtext(f"profiles/{user.findtext('profile')}/readonly") == "2"
    grants = [query.text for query in user.iterfind("grants/query")]
    assert grants == [f"GRANT SELECT ON {environment['CLICKHOUSE_DATABASE']}.*"]


def test_prometheus_takes_its_configuration() -> None:
    try:
        promtool = prometheus_program("promtool")
    except ServerMissing as error:
        pytest.skip(str(error))
    config = ROOT / "deploy" / "prometheus" / "prometheus.yml"
    checked = subprocess.run([promtool, "check", "config", config], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
