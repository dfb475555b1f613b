"""The dashboards as files: what Grafana needs of them, and what each panel promises. Grafana itself is not here."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.generate.__main__ import FOLDER
from deploy.grafana.generate.dashboards import DASHBOARDS
from deploy.grafana.generate.grafana_json import dashboard_json, dashboard_text
from tests.deploy.grafana_macros import Page

GRAFANA = Path(FOLDER).parent
FILES = sorted(GRAFANA.glob("dashboards/*.json"))
CORE_PANELS = {"stat", "timeseries", "table", "piechart", "heatmap", "row"}
UNITS = {"s", "ms", "h", "short", "ops", "reqps", "percentunit", "currencyUSD", "bytes", "dateTimeAsIso"}
RUNBOOKS = GRAFANA.parent.parent / "docs" / "runbooks.md"
SOURCES = {"prometheus": "turnpike-prometheus", "grafana-clickhouse-datasource": "turnpike-clickhouse"}

each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def panels_of(file: Path) -> list[dict[str, Any]]:
    """Without the headings."""
    return [panel for panel in read(file)["panels"] if panel["type"] != "row"]


def provisioned(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((GRAFANA / "provisioning" / name / "turnpike.yml").read_text())
    return found


def queries_of(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every query of a panel or a variable, with the type of its data source."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["datasource"]["type"], target.get("expr") or target["rawSql"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["datasource"]["type"], variable["definition"]


def first_page(dashboard: dict[str, Any]) -> Page:
    """As it opens."""
    variables = dashboard["templating"]["list"]
    current = {each["name"]: each["current"]["value"] for each in variables}
    chosen = {name: (value,) if isinstance(value, str) else tuple(value) for name, value in current.items()}
    return Page(0, 60, chosen=chosen, all_values={each["name"]: each.get("allValue") or "" for each in variables})


def test_the_files_are_what_the_generator_writes() -> None:
    assert {file.stem for file in FILES} == {dashboard.slug for dashboard in DASHBOARDS}
    for dashboard in DASHBOARDS:
        written = (FOLDER / f"{dashboard.slug}.json").read_text(encoding="utf-8")
        assert written == dashboard_text(dashboard), "python -m deploy.grafana.generate"


def test_every_dashboard_has_a_name_of_its_own_and_leads_to_the_others() -> None:
    dashboards = [read(file) for file in FILES]
    assert len({each["uid"] for each in dashboards}) == len({each["title"] for each in dashboards}) == len(dashboards)
    for dashboard in dashboards:
        assert dashboard["tags"] == ["turnpike"]
        (link,) = dashboard["links"]
        assert (link["type"], link["tags"], link["keepTime"]) == ("dashboards", ["turnpike"], True)


@each_file
def test_a_dashboard_is_of_a_version_that_grafana_11_reads_and_shows_utc(file: Path) -> None:
    dashboard = read(file)
    assert (dashboard["schemaVersion"], dashboard["timezone"]) == (39, "utc")
    assert dashboard["refresh"] in {"10s", "30s", "1m"}
    assert {panel["type"] for panel in dashboard["panels"]} <= CORE_PANELS


@each_file
def test_panels_are_told_apart_and_do_not_overlap(file: Path) -> None:
    panels = read(file)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    boxes = [panel["gridPos"] for panel in panels]
    for box in boxes:
        assert 0 <= box["x"] < box["x"] + box["w"] <= 24
    for one, other in combinations(boxes, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


@each_file
def test_a_panel_says_what_it_is_and_what_is_bad(file: Path) -> None:
    titles = [panel["title"] for panel in panels_of(file)]
    assert all(titles)
    for panel in panels_of(file):
        assert "**Bad:**" in panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        for override in panel["fieldConfig"]["overrides"]:
            for each in override["properties"]:
                assert each["id"] != "unit" or each["value"] in UNITS


@each_file
def test_a_target_is_one_of_its_data_source(file: Path) -> None:
    for panel in panels_of(file):
        assert panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert SOURCES[target["datasource"]["type"]] == target["datasource"]["uid"]
            over_time = panel["type"] in {"timeseries", "heatmap"}
            if target["datasource"]["type"] == "prometheus":
                assert target["expr"]
                assert (target["range"], target["instant"]) == (over_time, not over_time)
            else:
                assert target["rawSql"]
                assert (target["format"], target["queryType"]) == ((0, "timeseries") if over_time else (1, "table"))


@each_file
def test_a_query_names_only_what_its_page_lets_one_choose(file: Path) -> None:
    dashboard = read(file)
    page = first_page(dashboard)
    for source, query in queries_of(dashboard):
        page.promql(query) if source == "prometheus" else page.sql(query)


@each_file
def test_many_values_are_asked_for_as_many(file: Path) -> None:
    """`= "$x"` and `IN ($x)` would be wrong with two values, or with one that has a quote in it."""
    dashboard = read(file)
    for name in (each["name"] for each in dashboard["templating"]["list"] if each.get("multi")):
        well = rf'=~"\${name}"|\$__conditionalAll\(\w+ IN \(\$\{{{name}:singlequote\}}\), \${name}\)'
        for _, query in queries_of(dashboard):
            assert not re.search(rf"\$\{{?{name}\b", re.sub(well, "", query)), query


@each_file
def test_a_panels_runbook_is_there(file: Path) -> None:
    headings = re.findall(r"^#+ (\w+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"docs/runbooks\.md#(\w+)`", " ".join(panel["description"] for panel in panels_of(file)))
    assert set(named) <= {heading.lower() for heading in headings}


def test_panels_that_runbooks_name_are_there() -> None:
    """They write *Dashboard / Panel*."""
    titles = {
        (read(file)["title"].removeprefix("Turnpike / "), panel["title"]) for file in FILES for panel in panels_of(file)
    }
    named = re.findall(r"\*([^*\n/]+) / ([^*\n]+)\*", RUNBOOKS.read_text(encoding="utf-8"))
    assert named
    assert set(named) <= titles


@each_file
def test_grafanas_own_types_know_all_of_it(file: Path) -> None:
    """They keep what they know: a key or a value of ours that they do not is lost on the way through them."""
    register_default_plugins()
    dashboard = read(file)
    known = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    assert set(lost(dashboard, known)) <= {"templating.list.definition"}  # of its editor: Grafana writes it, too


def lost(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Where `theirs` is not what we say; that it says more is as well."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            if value is not None:
                yield from lost(value, theirs.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            yield from lost(one, other, path)
    elif ours != theirs:
        yield path


def test_provisioning_names_the_sources_and_holds_no_secret() -> None:
    sources = provisioned("datasources")["datasources"]
    assert {each["type"]: each["uid"] for each in sources} == SOURCES
    (clickhouse,) = [each for each in sources if each["type"] == "grafana-clickhouse-datasource"]
    assert clickhouse["secureJsonData"] == {"password": "${CLICKHOUSE_PASSWORD}"}
    assert "password" not in clickhouse["jsonData"]
    (provider,) = provisioned("dashboards")["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)


def test_what_the_generator_makes_is_json_through_and_through() -> None:
    """No value that only Python knows, which `json` would write in its own way."""
    for dashboard in DASHBOARDS:
        made = dashboard_json(dashboard)
        assert json.loads(json.dumps(made)) == made
