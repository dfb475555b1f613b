"""The alerts that one gateway judges are those of Prometheus."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge

from gateway.telemetry.alert_conditions import CONDITIONS, NEEDS_PROMETHEUS, Condition, judge

RULES = [
    rule
    for group in yaml.safe_load(Path("deploy/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
]


def test_every_alert_is_judged_here_or_says_why_not() -> None:
    judged = {condition.alert for condition in CONDITIONS}
    assert judged.isdisjoint(NEEDS_PROMETHEUS)
    assert judged | NEEDS_PROMETHEUS.keys() == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda each: f"{each.alert}-{each.severity}")
def test_a_condition_is_that_of_its_rule(condition: Condition) -> None:
    def states(rule: dict) -> bool:
        """Whether the rule compares this metric, maybe over a window, with this threshold."""
        compared = rf"{condition.metric}[^<>=]*(\{{[^}}]*\}})?[^<>=]*{condition.comparison} {condition.threshold:g}\b"
        return rule["labels"]["severity"] == condition.severity and bool(re.search(compared, rule["expr"]))

    (rule,) = [rule for rule in RULES if rule["alert"] == condition.alert and states(rule)]
    for name, value in condition.labels.items():
        assert f'{name}="{value}"' in rule["expr"]
    for name, value in condition.without.items():
        assert f'{name}!="{value}"' in rule["expr"]
    assert condition.times in rule["expr"]


def test_samples_are_judged_by_label_and_multiple() -> None:
    registry = CollectorRegistry()
    age = Gauge("age", "", ["turnpike_class"], registry=registry)
    free, needed = Gauge("free", "", registry=registry), Gauge("needed", "", registry=registry)
    age.labels("premium").set(5)
    age.labels("batch").set(7)
    free.set(39)
    needed.set(10)
    premium = Condition("A", "page", "", "age", ">", 2, labels={"turnpike_class": "premium"})
    others = Condition("B", "page", "", "age", ">", 6, without={"turnpike_class": "premium"})
    disk = Condition("C", "page", "", "free", "<", 4, times="needed")
    missing = Condition("D", "page", "", "nothing", "==", 0)
    judged = judge(registry, (premium, others, disk, missing))
    assert [len(each.met) for each in judged] == [1, 1, 1, 0]
    assert [each.samples for each in judged] == [1, 1, 1, 0]
    assert judged[1].met == (({"turnpike_class": "batch"}, 7.0),)
    free.set(40)
    assert judge(registry, (disk,))[0].met == ()
