"""Every query of every panel, put as Grafana would to a real Prometheus and to ClickHouse, after real traffic."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.grafana.generate.dashboards import DASHBOARDS
from deploy.grafana.generate.grafana_json import dashboard_json
from tests.deploy.grafana_macros import Page
from tests.deploy.watched_gateway import Answered, WatchedGateway, running_watched_gateway
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.kafka_server import KafkaServer
from tests.support.servers import ServerMissing

PAGES = {dashboard.slug: dashboard_json(dashboard) for dashboard in DASHBOARDS}
INTERVAL_S = 60

OF_RECURRENT_LAYERS = {
    *("turnpike_state_slots", "turnpike_state_slots_used", "turnpike_state_slots_kept"),
    *("turnpike_state_hits_total", "turnpike_state_evictions_total"),
}
"""Metrics of models with recurrent layers, which no model of the watched gateway has."""
WITHOUT_SERIES = {"turnpike_usage_missing_events"}
"""Has one for each journal that lacks some. Its panel says 0 where there is none."""

Target = tuple[str, dict[str, Any], dict[str, Any]]
"""A page's name, a panel of it, a target of that."""


def targets(source: str) -> list[Any]:
    return [
        pytest.param((slug, panel, target), id=f"{slug}-{panel['title']}-{target['refId']}".replace(" ", "_"))
        for slug, dashboard in PAGES.items()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        if target["datasource"]["type"] == source
    ]


def variables(source: str) -> list[Any]:
    return [
        pytest.param((slug, variable), id=f"{slug}-{variable['name']}")
        for slug, dashboard in PAGES.items()
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query" and variable["datasource"]["type"] == source
    ]


each_promql = pytest.mark.parametrize("where", targets("prometheus"))
each_sql = pytest.mark.parametrize("where", targets("grafana-clickhouse-datasource"))


@pytest.fixture(scope="module")
def watched(
    kafka_server: KafkaServer, clickhouse_server: ClickHouseServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WatchedGateway]:
    try:
        with running_watched_gateway(tmp_path_factory.mktemp("watched"), kafka_server, clickhouse_server) as gateway:
            yield gateway
    except ServerMissing as error:
        pytest.skip(str(error))


def period_s(slug: str) -> int:
    """How far back a page looks."""
    hours: str = PAGES[slug]["time"]["from"].removeprefix("now-").removesuffix("h")
    return int(hours) * 3600


def page(watched: WatchedGateway, slug: str, **chosen: tuple[str, ...]) -> Page:
    """The dashboard as it opens when the traffic has ended, but for what is chosen."""
    stated = {each["name"]: each for each in PAGES[slug]["templating"]["list"]}
    first = {name: each["current"]["value"] for name, each in stated.items()}
    return Page(
        watched.end_s - period_s(slug),
        watched.end_s,
        INTERVAL_S,
        chosen={name: (value,) if isinstance(value, str) else tuple(value) for name, value in first.items()} | chosen,
        all_values={name: each.get("allValue") or "" for name, each in stated.items()},
    )


def asked(watched: WatchedGateway, target: dict[str, Any], opened: Page) -> list[dict[str, Any]]:
    """The series of the answer that have a number."""
    expr = opened.promql(target["expr"])
    if target["range"]:
        found = watched.over_time(expr, opened.end_s - opened.start_s, INTERVAL_S)
    else:
        found = watched.instant(expr)
    return [series for series in found if any(map(is_number, series.get("values") or [series["value"]]))]


def is_number(sample: tuple[float, str]) -> bool:
    return not math.isnan(float(sample[1]))


@each_promql
def test_prometheus_answers_a_panel(watched: WatchedGateway, where: Target) -> None:
    slug, _, target = where
    found = asked(watched, target, page(watched, slug))
    of_recurrent_layers = any(name in target["expr"] for name in OF_RECURRENT_LAYERS)
    assert bool(found) is not of_recurrent_layers
    labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert all(labels <= set(series["metric"]) for series in found), "a legend names a label that is not there"


@each_promql
def test_what_is_chosen_is_quoted_for_prometheus(watched: WatchedGateway, where: Target) -> None:
    slug, _, target = where
    odd = ("qwen2.5-1.5b", "a+(b)|c\\d")
    opened = page(watched, slug, model=odd, instance=odd)
    asked(watched, target, opened)


@each_sql
def test_clickhouse_answers_a_panel(watched: WatchedGateway, where: Target) -> None:
    slug, panel, target = where
    rows = watched.rows(page(watched, slug).sql(target["rawSql"]))
    assert rows
    if target["queryType"] == "timeseries":
        assert {type(row["time"]).__name__ for row in rows} == {"datetime"}
        moments = [row["time"] for row in rows]
        assert moments == sorted(moments)
    named = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]} - {"tenant"}
    assert named <= set(rows[0]), "a unit for a column that is not there"


@each_sql
def test_what_is_chosen_is_quoted_for_clickhouse(watched: WatchedGateway, where: Target) -> None:
    slug, _, target = where
    if slug == "usage":
        odd = ("o'brien", "premium")
        watched.rows(page(watched, slug, tenant=odd, key=odd, model=odd, grain=("minute",)).sql(target["rawSql"]))
        watched.rows(page(watched, slug, **{"class": odd}, grain=("day",)).sql(target["rawSql"]))


@pytest.mark.parametrize("where", variables("prometheus"))
def test_prometheus_knows_what_can_be_chosen(watched: WatchedGateway, where: tuple[str, dict[str, Any]]) -> None:
    _, variable = where
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
    expected = {"model": {"big", "small"}, "class": {"premium", "standard", "batch"}}
    found = set(watched.label_values(label, metric))
    assert found == expected.get(variable["name"], found) != set()


@pytest.mark.parametrize("where", variables("grafana-clickhouse-datasource"))
def test_clickhouse_knows_what_can_be_chosen(watched: WatchedGateway, where: tuple[str, dict[str, Any]]) -> None:
    slug, variable = where
    rows = watched.rows(page(watched, slug).sql(variable["definition"]))
    expected = {"tenant": 2, "key": 2, "model": 2, "class": 2}
    assert len(rows) == expected[variable["name"]]


def test_every_metric_that_is_named_is_exported(watched: WatchedGateway) -> None:
    exprs = [target["expr"] for where in targets("prometheus") for _, _, target in where.values]
    named = {
        name for expr in exprs for name in re.findall(r"\b(?:turnpike|gen_ai|process)[_:][\w:]+(?=[{\[ )]|$)", expr)
    }
    labels = {"turnpike_class", "turnpike_tier", "turnpike_proposer", "gen_ai_request_model"}
    exported = set(watched.label_values("__name__"))
    assert named - labels - exported == WITHOUT_SERIES | OF_RECURRENT_LAYERS
    assert len(named) > 40


def panel_rows(watched: WatchedGateway, slug: str, title: str, **chosen: tuple[str, ...]) -> list[dict[str, Any]]:
    (panel,) = [each for each in PAGES[slug]["panels"] if each["title"] == title]
    (target,) = panel["targets"]
    return watched.rows(page(watched, slug, grain=("minute",), **chosen).sql(target["rawSql"]))


def dollars(answered: list[Answered]) -> Any:
    return pytest.approx(sum(each.nanodollars for each in answered) / 1e9, rel=1e-12)


def test_totals_are_what_clients_were_told(watched: WatchedGateway) -> None:
    (row,) = panel_rows(watched, "usage", "Requests, tokens")
    assert row == {
        "requests": len(watched.answered),
        "prompt": sum(each.prompt_tokens - each.cached_tokens for each in watched.answered),
        "cached": sum(each.cached_tokens for each in watched.answered),
        "answers": sum(each.completion_tokens for each in watched.answered),
    }
    assert panel_rows(watched, "usage", "Charged") == [{"dollars": dollars(watched.answered)}]


def test_each_model_and_class_has_its_own(watched: WatchedGateway) -> None:
    rows = {(row["model"], row["class"]): row for row in panel_rows(watched, "usage", "Models and classes")}
    assert set(rows) == {("big", "premium"), ("big", "standard"), ("small", "premium"), ("small", "standard")}
    for (model, service_class), row in rows.items():
        those = [e for e in watched.answered if (e.served_model, e.service_class) == (model, service_class)]
        assert row["requests"] == len(those)
        assert row["prompt tokens"] == sum(each.prompt_tokens for each in those)
        assert row["of them cached"] == sum(each.cached_tokens for each in those)
        assert row["answer tokens"] == sum(each.completion_tokens for each in those)
        assert row["dollars"] == dollars(those)


@pytest.mark.parametrize("title", ["Tenants", "Keys"])
def test_who_is_charged_most_is_first(watched: WatchedGateway, title: str) -> None:
    rows = panel_rows(watched, "usage", title)
    by_class = [[e for e in watched.answered if e.service_class == each] for each in ("premium", "standard")]
    amounts = sorted((sum(each.nanodollars for each in those) / 1e9 for those in by_class), reverse=True)
    assert [row["dollars"] for row in rows] == pytest.approx(amounts, rel=1e-12)


def test_bars_add_up_to_what_was_charged(watched: WatchedGateway) -> None:
    for title in ("Charged by tenant", "Charged by key", "Charged by model", "Charged by class"):
        rows = panel_rows(watched, "usage", title)
        assert sum(row["amount"] for row in rows) == dollars(watched.answered), title
    tokens = panel_rows(watched, "usage", "Tokens")
    assert sum(row["answers"] for row in tokens) == sum(each.completion_tokens for each in watched.answered)


def test_one_class_can_be_looked_at_alone(watched: WatchedGateway) -> None:
    premium = [each for each in watched.answered if each.service_class == "premium"]
    (row,) = panel_rows(watched, "usage", "Charged", **{"class": ("premium",)})
    assert row == {"dollars": dollars(premium)}
    (row,) = panel_rows(watched, "usage", "Charged", **{"class": ("premium", "standard")})
    assert row == {"dollars": dollars(watched.answered)}
    (row,) = panel_rows(watched, "usage", "Charged", tenant=("o'brien",))
    assert row == {"dollars": 0}


def test_a_margin_is_the_charge_less_the_time(watched: WatchedGateway) -> None:
    for row in panel_rows(watched, "usage", "Margins", gpu_hour_dollars=("36",)):
        assert row["engine hours"] > 0
        assert row["cost"] == pytest.approx(36 * row["engine hours"])
        assert row["margin"] == pytest.approx(row["charged"] - row["cost"])


def test_the_books_are_whole(watched: WatchedGateway) -> None:
    (row,) = panel_rows(watched, "books", "Journals as ClickHouse has them")
    events = len(watched.answered)
    assert (row["numbers"], row["first"], row["last"]) == (events, 1, events)
    assert (row["holes"], row["copies not merged"]) == (0, 0)
    sides: dict[str, int] = {}
    for each in panel_rows(watched, "books", "Events and the sums of them"):
        sides[each["series"]] = sides.get(each["series"], 0) + each["amount"]
    assert sides == {"events": events, "sums": events}
    (letter,) = panel_rows(watched, "books", "Dead letters")
    assert letter["begins"] == "no usage"


def test_the_metrics_of_the_same_traffic(watched: WatchedGateway) -> None:
    """Counters that this traffic alone moved, as they stand."""
    stands = {
        "sum(gen_ai_server_time_to_first_token_seconds_count)": len(watched.answered),
        'sum(turnpike_requests_total{outcome="turned_away"})': watched.refused,
        "sum(turnpike_class_sheds_total)": watched.refused,
        "sum(turnpike_sink_events_total)": len(watched.answered),
        "sum(turnpike_usage_journalled_events_total)": len(watched.answered),
        "sum(turnpike_usage_backlog_events)": 0,
        "sum(turnpike_sink_lag_messages)": 0,
        "sum(turnpike_class_kv_blocks_missing)": 0,
    }
    found = {expr: float(watched.instant(expr)[0]["value"][1]) for expr in stands}
    assert found == stands
    assert watched.refused
