"""The alerts fire when they should, on metrics that there are, and each leads to a section that says what to do."""

import asyncio
import json
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from gateway.config.settings import Settings
from gateway.metering.journal.journal_file import JournalFile
from gateway.metering.metrics import SinkCollector
from gateway.metering.reconciliation.gaps import MissingRange
from gateway.metering.signature import Verification
from gateway.metering.sink.intake import Intake
from gateway.metering.sink.message_source import Partition
from gateway.metering.sink.sink import Sink
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.metrics import UpstreamCollector
from gateway.upstreams.opening import open_upstreams
from tests.deploy.exporters import CLICKHOUSE, KMINION, metrics_of, running_exporter
from tests.deploy.prometheus_server import prometheus_program
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.program import Program, running
from tests.support.scheduler_stats import stats
from tests.support.servers import PostgresServer, RedisServer, ServerMissing, running_redis
from tests.support.usage_requests import SIGNER, finish, journal_at

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
CASES = RULES.with_name("alerts.test.yml")
RUNBOOKS = ROOT / "docs" / "runbooks.md"
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
GRAFANA_BASE = "{{ $externalLabels.grafana_base }}"
RUNBOOK_BASE = "{{ $externalLabels.runbook_base }}"
OF_PROMETHEUS = {"up": {"job", "instance"}}
"""Metrics that it makes itself, and their labels; those that it adds to every one."""
OF_STORES = "turnpike-stores"
_WORDS = {"and", "or", "unless"}


def rules(kind: str) -> list[dict[str, Any]]:
    """All rules that are an `alert`, or a `record`."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def rules_of(group: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    (found,) = [each["rules"] for each in groups if each["name"] == group]
    return list(found)


def promtool(*arguments: str) -> None:
    try:
        program = prometheus_program("promtool")
    except ServerMissing as error:
        pytest.skip(str(error))
    done = subprocess.run([program, *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_rules() -> None:
    promtool("check", "rules", RULES.name)


def test_each_alert_fires_when_it_should() -> None:
    promtool("test", "rules", CASES.name)


def test_each_alert_is_tried_on_what_is_bad_and_on_what_is_good() -> None:
    tried = [case for each in yaml.safe_load(CASES.read_text())["tests"] for case in each["alert_rule_test"]]
    fires = [(case["alertname"], alert["exp_labels"]) for case in tried for alert in case["exp_alerts"]]
    silent = {case["alertname"] for case in tried if not case["exp_alerts"]}
    for rule in rules("alert"):
        own = rule["labels"].items()
        assert any(name == rule["alert"] and own <= labels.items() for name, labels in fires), rule
        assert rule["alert"] in silent
    assert {name for name, _ in fires} == {rule["alert"] for rule in rules("alert")}


def test_each_alert_says_what_is_wrong_and_where_to_read_on() -> None:
    headings = re.findall(r"^#+ (.+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    dashboards = {json.loads(path.read_bytes())["uid"] for path in DASHBOARDS.iterdir()}
    for rule in rules("alert"):
        assert rule["labels"]["severity"] in {"page", "ticket"}
        said = rule["annotations"]
        assert said.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
        assert said["dashboard_url"].removeprefix(f"{GRAFANA_BASE}d/") in dashboards
        assert said["runbook_url"].startswith(RUNBOOK_BASE)
        path, _, anchor = said["runbook_url"].removeprefix(RUNBOOK_BASE).partition("#")
        assert (ROOT / path, anchor) == (RUNBOOKS, rule["alert"].lower())
        assert anchor in anchors
    stale = {heading for heading in headings if heading.startswith("Turnpike")} - {
        rule["alert"] for rule in rules("alert")
    }
    assert not stale, "a runbook for an alert that there is not"


def test_the_runbook_is_below_the_base_that_prometheus_states(tmp_path: Path) -> None:
    base = "https://docs.example.com/turnpike/"
    tests = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    fired = next(each for each in tests["tests"] if any(case["exp_alerts"] for case in each["alert_rule_test"]))
    fired["external_labels"] = {"runbook_base": base}
    for case in fired["alert_rule_test"]:
        for alert in case["exp_alerts"]:
            alert["exp_annotations"]["runbook_url"] = base + alert["exp_annotations"]["runbook_url"]
    tests |= {"tests": [fired], "rule_files": [str(RULES)]}
    file = tmp_path / "based.test.yml"
    file.write_text(yaml.safe_dump(tests), encoding="utf-8")
    promtool("test", "rules", str(file))


def test_what_the_runbook_does_to_a_journal_lets_events_come_again(tmp_path: Path) -> None:
    async def write() -> None:
        async with journal_at(path) as journal:
            await finish(journal, 5)
            journal.acknowledge(5)

    path = tmp_path / "journal.db"
    asyncio.run(write())
    text = RUNBOOKS.read_text(encoding="utf-8")
    command, _, rest = text.partition('python3 - "$JOURNAL" 4711')[2].partition("\n    END\n")[0].partition("\n")
    assert command == " <<'END'"
    subprocess.run([sys.executable, "-c", textwrap.dedent(rest), str(path), "3"], check=True)
    file = JournalFile(path, read_only=True)
    assert [row.sequence for row in file.events_after(file.relayed_sequence(), 10)] == [3, 4, 5]
    file.close()


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway whose limits are in `redis` and whose usage goes to `clickhouse`, which is away at first."""

    program: Program
    redis: RedisServer
    clickhouse: ClickHouseServer

    def ask(self, times: int) -> None:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        headers = {"authorization": f"Bearer {self.program.key}"}
        for _ in range(times):
            answer = httpx.post(f"{self.program.url}/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text

    def value(self, name: str) -> float:
        return self.program.metric(f"turnpike_{name}")

    def await_value(self, name: str, least: float, most: float) -> None:
        deadline = time.monotonic() + 60
        while not least <= self.value(name) <= most:
            assert time.monotonic() < deadline, f"{name} is {self.value(name)}"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The program with everything but the engine, which is a fake."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "clickhouse").mkdir()
    clickhouse = ClickHouseServer(folder / "clickhouse")
    try:
        with running_redis() as redis:
            environment = {
                "TURNPIKE_REDIS_URL": redis.url,
                "TURNPIKE_ANALYTICS_URL": clickhouse.url(),
                "TURNPIKE_PRICES": json.dumps({"tiny": ["0.1", "0.4"], "org/tiny-2": ["0.1", "0.4"]}),
            }
            serving = (sys.executable, "-m", "tests.support.fake_engine_program")
            with running(folder / "data", program=serving, environment=environment) as program:
                program.command("limit", "set", "--tenant", "acme", "--requests-per-minute", "1000")
                yield Site(program, redis, clickhouse)
    except ServerMissing as error:
        pytest.skip(str(error))
    finally:
        clickhouse.kill()


def test_what_is_away_shows_and_is_gone_when_it_is_back(site: Site) -> None:
    site.ask(3)
    assert (site.value("ready"), site.value("engine_healthy"), site.value("limits_breaker_open")) == (1, 1, 0)
    site.await_value("usage_backlog_events", 3, 3)
    site.await_value("usage_failing_seconds", 0.001, 1e6)
    assert site.value("usage_backlog_age_seconds") > 0
    site.redis.stop()
    site.ask(10)
    site.await_value("limits_breaker_open", 1, 1)
    assert site.value("usage_backlog_events") == 13
    assert site.value("limits_unmerged") > 0
    site.redis.start()
    site.await_value("limits_breaker_open", 0, 0)
    site.await_value("limits_unmerged", 0, 0)
    site.clickhouse.start()
    site.await_value("usage_backlog_events", 0, 0)
    assert (site.value("usage_failing_seconds"), site.value("usage_backlog_age_seconds")) == (0, 0)
    assert site.value("usage_delivered_events_total") == 13


@dataclass(frozen=True, slots=True)
class Found:
    """The last findings of a sink's watches."""

    behind: Mapping[Partition, int]
    missing: tuple[MissingRange, ...]


class NoSource:
    """A `MessageSource` and an `Analytics` that are never called."""


def exported(site: Site) -> dict[str, set[str]]:
    """Each metric that the programs have, with its labels: those of the gateway itself with those of an engine,
    and those of a sink."""
    metrics = Metrics(stats)
    metrics.sheds.labels("m", "premium", "overloaded").inc()
    sink = CollectorRegistry()
    found = Found({Partition("t", 0): 1}, (MissingRange("s", 1, 2),))
    intake = Intake(NoSource(), Verification(SIGNER))  # type: ignore[arg-type]
    sink.register(SinkCollector(Sink(NoSource(), intake), found, found, lambda: True))  # type: ignore[arg-type]
    site.ask(1)
    assert httpx.get(f"{site.program.url}/v1/models").status_code == 401
    settings = Settings(upstreams={"m": {"url": "http://127.0.0.1:9/v1"}})
    sink.register(UpstreamCollector(open_upstreams(settings)))
    texts = (httpx.get(f"{site.program.url}/metrics").text, metrics.render().decode(), generate_latest(sink).decode())
    named: dict[str, set[str]] = {}
    for line in "".join(texts).splitlines():
        if not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            named.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return named


def selectors(expr: str) -> list[tuple[str, set[str]]]:
    """The metrics that an expression reads, each with the labels that it asks for."""
    bare = re.sub(r"\bby \([^)]*\)|\[\w+\]", "", expr)
    names = re.finditer(r"(?<![\w.])([a-zA-Z_:][\w:]*)(\{[^}]*\})?(\s*\()?", bare)
    return [
        (each[1], set(re.findall(r"(\w+)\s*[=!]", each[2] or "")))
        for each in names
        if each[1] not in _WORDS and not each[3]
    ]


def check_metrics(known: Mapping[str, set[str]], checked: list[dict[str, Any]]) -> None:
    for rule in checked:
        read = selectors(rule["expr"])
        assert read, rule
        for name, labels in read:
            assert name in known, f"{name} in {rule}"
            assert labels <= known[name] | OF_PROMETHEUS["up"], f"labels of {name} in {rule}"


def test_the_alerts_are_computed_from_metrics_that_there_are(site: Site) -> None:
    known = exported(site) | OF_PROMETHEUS | {rule["record"]: set() for rule in rules("record")}
    of_stores = rules_of(OF_STORES)
    check_metrics(known, [rule for rule in rules("alert") + rules("record") if rule not in of_stores])


def test_the_alerts_of_the_stores_are_computed_from_what_their_exporters_have(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    known = OF_PROMETHEUS | KMINION | CLICKHOUSE
    try:
        with running_redis() as redis:
            sources = {
                "prometheus-postgres-exporter": {"DATA_SOURCE_NAME": f"{postgres.url}?sslmode=disable"},
                "prometheus-redis-exporter": {"REDIS_ADDR": redis.url},
            }
            for program, environment in sources.items():
                with running_exporter(program, environment, tmp_path / program) as url:
                    known |= metrics_of(httpx.get(f"{url}/metrics", timeout=30).text)
    except ServerMissing as error:
        pytest.skip(str(error))
    check_metrics(known, rules_of(OF_STORES))


def test_what_an_expression_reads_is_found() -> None:
    expr = 'sum by (a, le) (rate(x_total{b="1", c!~"(2)"}[5m])) > 4 * y or z unless (w:r == 0.5) and vector(0)'
    assert selectors(expr) == [("x_total", {"b", "c"}), ("y", set()), ("z", set()), ("w:r", set())]
