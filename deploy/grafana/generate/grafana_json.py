"""From panels to the JSON of a Grafana dashboard (schema version 39, of Grafana 11; newer ones read it)."""

import json
from typing import Any

from deploy.grafana.generate.layout import Box, placed
from deploy.grafana.generate.panels import SQL, Dashboard, Form, Panel, PromQL, Variable

SCHEMA_VERSION = 39
TAG = "turnpike"
PROMETHEUS = {"type": "prometheus", "uid": "turnpike-prometheus"}
CLICKHOUSE = {"type": "grafana-clickhouse-datasource", "uid": "turnpike-clickhouse"}
TENANT_LINK = "/d/turnpike-usage?var-tenant=${__value.raw}&${__url_time_range}"

_TYPES = {
    Form.STAT: "stat",
    Form.PIE: "piechart",
    Form.TABLE: "table",
    Form.LINES: "timeseries",
    Form.STACK: "timeseries",
    Form.BARS: "timeseries",
    Form.HEATMAP: "heatmap",
}
_FORMAT_TIME_SERIES, _FORMAT_TABLE = 0, 1
"""Of the ClickHouse data source."""


def dashboard_text(dashboard: Dashboard) -> str:
    """As the file has it."""
    return json.dumps(dashboard_json(dashboard), indent=1, ensure_ascii=False) + "\n"


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    panels = [
        _panel(number, what, box) if isinstance(what, Panel) else _heading(number, what, box)
        for number, (what, box) in enumerate(placed(dashboard.rows), start=1)
    ]
    return {
        "uid": f"turnpike-{dashboard.slug}",
        "title": f"Turnpike / {dashboard.title}",
        "description": dashboard.question,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "timezone": "utc",
        "time": {"from": f"now-{dashboard.period}", "to": "now"},
        "refresh": dashboard.refresh,
        "graphTooltip": 1,  # the same moment in all panels
        "links": [_LINKS],
        "annotations": {"list": []},
        "templating": {"list": [_variable(each) for each in dashboard.variables]},
        "panels": panels,
    }


_LINKS = {
    "type": "dashboards",
    "tags": [TAG],
    "title": "",
    "asDropdown": False,
    "keepTime": True,
    "includeVars": True,
    "targetBlank": False,
}


def _heading(number: int, title: str, box: Box) -> dict[str, Any]:
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": box, "panels": []}


def _panel(number: int, panel: Panel, box: Box) -> dict[str, Any]:
    sources = {_source(query)["uid"]: _source(query) for query in panel.queries}
    (source,) = sources.values()
    return {
        "id": number,
        "type": _TYPES[panel.form],
        "title": panel.title,
        "description": _description(panel),
        "datasource": source,
        "gridPos": box,
        "fieldConfig": {"defaults": _field_defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel.form),
        "targets": [_target(chr(ord("A") + place), query, panel.form) for place, query in enumerate(panel.queries)],
    }


def _description(panel: Panel) -> str:
    parts = [panel.meaning, f"**Bad:** {panel.bad}"]
    if panel.runbook is not None:
        parts.append(f"**Runbook:** `docs/runbooks.md#{panel.runbook.lower()}`")
    return "\n\n".join(parts)


def _source(query: PromQL | SQL) -> dict[str, str]:
    return PROMETHEUS if isinstance(query, PromQL) else CLICKHOUSE


def _target(ref_id: str, query: PromQL | SQL, form: Form) -> dict[str, Any]:
    target: dict[str, Any] = {"refId": ref_id, "datasource": _source(query)}
    if isinstance(query, PromQL):
        return target | {
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "format": "heatmap" if form is Form.HEATMAP else "time_series",
            "range": form.over_time,
            "instant": not form.over_time,
        }
    return target | {
        "editorType": "sql",
        "queryType": "timeseries" if form.over_time else "table",
        "format": _FORMAT_TIME_SERIES if form.over_time else _FORMAT_TABLE,
        "rawSql": query.text,
    }


def _field_defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green" if panel.thresholds else "text", "value": None}]
    steps += [{"color": each.color, "value": each.value} for each in panel.thresholds]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if panel.form is Form.STAT else "palette-classic-by-name"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "noValue": "–",
    }
    if panel.form is not Form.TABLE:
        defaults["min"] = 0
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if _TYPES[panel.form] == "timeseries":
        defaults["custom"] = _drawing(panel)
        if any(isinstance(query, SQL) and " AS series" in query.text for query in panel.queries):
            defaults["displayName"] = "${__field.labels.series}"
    return defaults


def _drawing(panel: Panel) -> dict[str, Any]:
    stacked = panel.form in (Form.STACK, Form.BARS)
    return {
        "drawStyle": "bars" if panel.form is Form.BARS else "line",
        "lineWidth": 1,
        "fillOpacity": {Form.BARS: 80, Form.STACK: 40}.get(panel.form, 0),
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
    }


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    overrides = [_override(name, "unit", unit) for name, unit in panel.columns.items()]
    if panel.form is Form.TABLE:
        links = [{"title": "Usage of ${__value.raw}", "url": TENANT_LINK}]
        overrides.append(_override("tenant", "links", links))
    return overrides


def _override(column: str, what: str, value: Any) -> dict[str, Any]:
    return {"matcher": {"id": "byName", "options": column}, "properties": [{"id": what, "value": value}]}


def _options(form: Form) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    match form:
        case Form.STAT:
            return {"colorMode": "value", "graphMode": "none", "textMode": "auto", "reduceOptions": last}
        case Form.PIE:
            legend = {"displayMode": "table", "placement": "right", "showLegend": True, "values": ["percent"]}
            return {"pieType": "donut", "reduceOptions": last, "legend": legend}
        case Form.TABLE:
            return {"showHeader": True, "cellHeight": "sm"}
        case Form.HEATMAP:
            return {
                "calculate": False,
                "cellGap": 1,
                "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
                "yAxis": {"unit": "s"},
                "legend": {"show": True},
            }
        case _:
            return {
                "legend": {
                    "displayMode": "table",
                    "placement": "bottom",
                    "showLegend": True,
                    "calcs": ["lastNotNull", "max"],
                },
                "tooltip": {"mode": "multi", "sort": "desc"},
            }


def _variable(variable: Variable) -> dict[str, Any]:
    common = {"name": variable.name, "label": variable.label, "hide": 0, "skipUrlSync": False}
    if variable.query is not None:
        return common | _queried(variable, variable.query)
    if variable.choices:
        options = [{"text": each, "value": each, "selected": each == variable.first} for each in variable.choices]
        return common | {
            "type": "custom",
            "query": ",".join(variable.choices),
            "options": options,
            "current": {"text": variable.first, "value": variable.first, "selected": True},
            "multi": False,
            "includeAll": False,
        }
    return common | {
        "type": "textbox",
        "query": variable.first,
        "current": {"text": variable.first, "value": variable.first, "selected": True},
    }


def _queried(variable: Variable, query: PromQL | SQL) -> dict[str, Any]:
    """A PromQL variable's All is a pattern; SQL asks $__conditionalAll instead, as the list of all may be long."""
    asked: Any
    if isinstance(query, PromQL):
        text = query.expr
        asked = {"query": text, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
    else:
        text = asked = query.text
    everything = {"text": ["All"], "value": ["$__all"], "selected": True}
    one = {"text": variable.first, "value": variable.first, "selected": True}
    return {
        "type": "query",
        "datasource": _source(query),
        "query": asked,
        "definition": text,
        "refresh": 2,  # whenever the span of time changes
        "sort": 1,
        "multi": variable.many,
        "includeAll": variable.many,
        "allValue": ".+" if variable.many and isinstance(query, PromQL) else None,
        "current": everything if variable.many else one,
    }
