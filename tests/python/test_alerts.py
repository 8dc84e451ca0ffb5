# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the alerting rules use metrics and labels that exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nearmetal.check.model import Analysis
from nearmetal.check.outputs import metrics as check_metrics
from nearmetal.cluster.store import Store
from nearmetal.core.resources import share
from nearmetal.job.exporter import Exporter

DASHBOARD = json.loads(share("prometheus", "dashboard.json").read_text())
ALERTS = yaml.safe_load(share("prometheus", "alerts.yaml").read_text())
TESTS = Path(__file__).with_name("alerts.test.yaml")
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
OF_PROMETHEUS = {"instance"}
"""Labels that a scrape adds."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every metric that there is, with its labels."""
    exporter = Exporter(list, Store(tmp_path_factory.mktemp("state")))
    exporter.read()
    found = [*exporter.metrics(), *check_metrics(Analysis("p"), 1)]
    return {metric.full_name: set(metric.labels) for metric in found}


def metrics_of(expression: str) -> list[tuple[str, set[str]]]:
    """Return each metric of an expression, and the labels that select its series."""
    return [
        (name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)))
        for name, selector in re.findall(r"\b(nearmetal_\w+)(\{[^}]*\})?", expression)
    ]


def grouped_by(expression: str) -> Iterator[str]:
    for names in re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", expression):
        yield from re.findall(r"\w+", names)


def check(expression: str, shown: str, known: dict[str, set[str]]) -> None:
    used = metrics_of(expression)
    assert used
    for name, labels in used:
        assert labels <= known[name], expression
    common = set.union(*(known[name] for name, _ in used)) | OF_PROMETHEUS
    assert set(grouped_by(expression)) <= common, expression
    assert set(re.findall(r"\$labels\.(\w+)|\{\{(\w+)\}\}", shown)) <= {
        pair for label in common for pair in ((label, ""), ("", label))
    }
    for name, _ in used:
        # A counter has a meaning in its growth only.
        if name.endswith("_total"):
            assert re.search(rf"\b(?:rate|increase)\({name}\b", expression), expression


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_uses_metrics_that_exist(rule: dict[str, Any], known: dict[str, set[str]]) -> None:
    check(rule["expr"], json.dumps(rule["annotations"]), known)
    assert rule["labels"]["severity"] in {"warning", "critical"}


@pytest.mark.parametrize(("title", "target"), PANELS)
def test_a_panel_uses_metrics_that_exist(
    title: str, target: dict[str, Any], known: dict[str, set[str]]
) -> None:
    assert title
    check(target["expr"], target["legendFormat"], known)
    grouped = set(grouped_by(target["expr"]))
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert shown <= grouped or not grouped


def test_variables_of_the_dashboard_exist(known: dict[str, set[str]]) -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD["panels"])))
    assert used == set(variables)
    query = variables["mpi_job"]["query"]["query"]
    name, label = re.findall(r"label_values\((\w+), (\w+)\)", query)[0]
    assert label in known[name]


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
    assert max(x for x, _ in taken) == 23
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_rule_is_tested() -> None:
    tested = [
        test
        for part in yaml.safe_load(TESTS.read_text())["tests"]
        for test in part["alert_rule_test"]
    ]
    fired = {test["alertname"] for test in tested if test["exp_alerts"]}
    assert fired == {rule["alert"] for rule in RULES}


@pytest.mark.full
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    promtool = Path(__file__).parents[2] / "build/promtool"
    for words in (("check", "rules", share("prometheus", "alerts.yaml")), ("test", "rules", TESTS)):
        done = subprocess.run(
            [promtool, *words], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
