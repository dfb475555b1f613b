"""A gateway with all that dashboards look at: traffic in two classes, Kafka, a sink, ClickHouse, and Prometheus.

Everything is the real program. What was sent is written down, so that what a panel shows can be compared with it.
"""

import json
import math
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clickhouse_connect
import httpx
from kafka import KafkaProducer

from tests.deploy.prometheus_server import prometheus_program, running_prometheus
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.kafka_server import KafkaServer
from tests.support.program import TURNPIKE, Program, running, turnpike
from tests.support.servers import free_port
from tests.support.tiny_models import make_checkpoint

NANODOLLARS = {"big": (1000, 500, 4000), "small": (100, 50, 400)}
"""A token of a prompt, of a cached one, of an answer, for standard; premium pays three times as much."""
MULTIPLIER = {"premium": 3, "standard": 1}
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
DEADLINE_S = 120
_QUESTION = "The quick brown fox jumps over the lazy dog. " * 4
_SETTINGS = """
kv_cache_bytes = "16MiB"
dtype = "float32"
threads = 1
kafka_url = "kafka://{bootstrap}"
kafka_topic = "{topic}"
analytics_url = "{analytics_url}"
[models]
big = "{big}"
small = "{small}"
[small_models]
big = "small"
[prices]
big = ["1", "0.5", "4"]
small = ["0.1", "0.05", "0.4"]
"""
_SCRAPING = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - {{job_name: turnpike-gateway, static_configs: [{{targets: ["{gateway}"]}}]}}
  - {{job_name: turnpike-sink, static_configs: [{{targets: ["{sink}"]}}]}}
"""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer that a client received."""

    service_class: str
    served_model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def nanodollars(self) -> int:
        fresh, cached, answer = NANODOLLARS[self.served_model]
        amount = (self.prompt_tokens - self.cached_tokens) * fresh + self.cached_tokens * cached
        return MULTIPLIER[self.service_class] * (amount + self.completion_tokens * answer)


@dataclass(slots=True)
class WatchedGateway:
    """`answered` is what was sent; all of it had arrived and been scraped by `end_s`."""

    program: Program
    prometheus_url: str
    database_url: str
    end_s: int = 0
    keys: dict[str, str] = field(default_factory=dict)
    answered: list[Answered] = field(default_factory=list)
    requests: int = 0
    refused: int = 0

    def instant(self, expr: str) -> list[dict[str, Any]]:
        """Series of the answer at the end of the span."""
        return self._asked("query", {"query": expr, "time": self.end_s or time.time()})

    def over_time(self, expr: str, period_s: int, step_s: int) -> list[dict[str, Any]]:
        """Series of the answer over the period before that."""
        span = {"start": self.end_s - period_s, "end": self.end_s, "step": step_s}
        return self._asked("query_range", {"query": expr, **span})

    def label_values(self, label: str, metric: str = "") -> list[str]:
        match = {"match[]": metric} if metric else {}
        url = f"{self.prometheus_url}/api/v1/label/{label}/values"
        found: list[str] = httpx.get(url, params=match).raise_for_status().json()["data"]
        return found

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Rows by the names of their columns."""
        client = clickhouse_connect.get_client(dsn=self.database_url)
        try:
            return list(client.query(sql).named_results())
        finally:
            client.close()

    def _asked(self, path: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        answer = httpx.post(f"{self.prometheus_url}/api/v1/{path}", data=dict(parameters)).json()
        assert answer["status"] == "success", (answer["error"], parameters)
        if answer["data"]["resultType"] == "scalar":
            return [{"metric": {}, "value": answer["data"]["result"]}]
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@contextmanager
def running_watched_gateway(folder: Path, kafka: KafkaServer, clickhouse: ClickHouseServer) -> Iterator[WatchedGateway]:
    """With traffic that has ended, been scraped twice and arrived in ClickHouse, a dead letter with it.

    Raises:
        ServerMissing: Prometheus is not installed.
    """
    prometheus_program("prometheus")  # before anything is started in vain
    data_dir, topic, database_url = folder / "data", f"usage-{time.time_ns()}", clickhouse.new_database()
    _write_settings(folder, data_dir, kafka.bootstrap, topic, database_url)
    kafka.create_topic(topic)
    keys = _make_tenants(data_dir)
    sink_port = free_port()
    with ExitStack() as stack:
        program = stack.enter_context(running(data_dir))
        stack.enter_context(_running_sink(data_dir, sink_port))
        scraping = _SCRAPING.format(
            rules=RULES, gateway=program.url.removeprefix("http://"), sink=f"127.0.0.1:{sink_port}"
        )
        prometheus = stack.enter_context(running_prometheus(scraping))
        watched = WatchedGateway(program, prometheus.url, database_url, keys=keys)
        for _ in range(2):  # what appears with the first traffic grows with the second
            _talk(watched)
            _await(lambda: _scraped(watched))
        _write_nonsense(kafka.bootstrap, topic)
        _await(lambda: _arrived(watched))
        watched.end_s = math.ceil(time.time())
        yield watched


def _write_settings(folder: Path, data_dir: Path, bootstrap: str, topic: str, database_url: str) -> None:
    """The small model has the large one's weights: then it drafts what that would say."""
    big, small = (make_checkpoint(folder / name, "qwen3", seed=0) for name in ("big", "small"))
    data_dir.mkdir()
    values = {"bootstrap": bootstrap, "topic": topic, "analytics_url": database_url, "big": big, "small": small}
    (data_dir / "turnpike.toml").write_text(_SETTINGS.format(**values), encoding="utf-8")


def _make_tenants(data_dir: Path) -> dict[str, str]:
    """A tenant of each class, by class its key. The standard one's cascade trusts no small model's answer."""
    here = ("--data-dir", str(data_dir))
    turnpike("db", "upgrade", *here)
    keys = {}
    for service_class in MULTIPLIER:
        turnpike("tenant", "create", f"{service_class}-tenant", "--tier", service_class, *here)
        keys[service_class] = turnpike("key", "create", "--tenant", f"{service_class}-tenant", *here)
    turnpike("route", "set", "--tenant", "standard-tenant", "--cascade", "99", *here)
    limit = ("--model", "small", "--requests-per-minute", "1")
    turnpike("limit", "set", "--tenant", "premium-tenant", *limit, *here)
    return keys


@contextmanager
def _running_sink(data_dir: Path, metrics_port: int) -> Iterator[None]:
    log = data_dir / "sink.log"
    command = [TURNPIKE, "sink", "--metrics-port", str(metrics_port), "--data-dir", str(data_dir)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait()


def _talk(watched: WatchedGateway) -> None:
    """Some requests of each tenant: to one model, to whichever of the two is chosen, and some over a limit."""
    for turn in range(3):
        _ask(watched, "premium", "big", turn)
        _ask(watched, "standard", "auto", turn)
        _ask(watched, "standard", "small", turn)
        _ask(watched, "premium", "small", turn)


def _ask(watched: WatchedGateway, service_class: str, model: str, turn: int) -> None:
    """Streamed, and as many tokens as are asked for: a tiny model says the same again and again, which is guessed."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{_QUESTION} {turn}"}],
        "max_tokens": 32,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {watched.keys[service_class]}"}
    answer = httpx.post(f"{watched.program.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    watched.requests += 1
    if answer.status_code == 429:
        watched.refused += 1
        return
    answer.raise_for_status()
    chunks = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    usage = json.loads(chunks[-1])["usage"]
    watched.answered.append(
        Answered(
            service_class,
            answer.headers["x-turnpike-served-model"],
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens"],
        )
    )


def _write_nonsense(bootstrap: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(topic, b"no usage").get(timeout=DEADLINE_S)
    producer.close()


def _scraped(watched: WatchedGateway) -> bool:
    """Prometheus has seen every request so far."""
    series = watched.instant("sum(turnpike_requests_total)")
    return bool(series) and float(series[0]["value"][1]) == watched.requests


def _arrived(watched: WatchedGateway) -> bool:
    """Usage is in ClickHouse, the dead letter too, and Prometheus has seen that the sink knows that it has all."""
    expected = {
        "sum(turnpike_sink_events_total)": len(watched.answered),
        "sum(turnpike_sink_dead_letters_total)": 1,
        "sum(turnpike_sink_lag_messages)": 0,
    }
    found = {expr: [float(series["value"][1]) for series in watched.instant(expr)] for expr in expected}
    return found == {expr: [value] for expr, value in expected.items()}


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "Prometheus does not see what was sent"
        time.sleep(0.1)
