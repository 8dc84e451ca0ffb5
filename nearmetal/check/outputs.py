# SPDX-License-Identifier: Apache-2.0
"""An analysis as text, JSON, JUnit and metrics of Prometheus. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from nearmetal.check.model import Analysis, CheckFinding, Gravity
from nearmetal.core.junit import JunitCase, JunitRemark, JunitTag, junit_report
from nearmetal.core.metrics import OTHER, Metric, one

_MOST_NODES = 64
_MOST_SERIES = 10_000
"""Findings with labels of their own among the metrics."""


def lines(analysis: Analysis) -> Iterator[str]:
    """Yield the analysis for people: the findings by severity, then what is hidden and not run."""
    for finding in analysis.findings:
        where = f" {finding.about}" if finding.about else ""
        yield f"{finding.grade.word}  {finding.check}{where}  [{finding.folded}]"
        yield f"  found     {finding.value}"
        yield f"  expected  {finding.expected}{_by(finding)}"
        yield f"  reason    {finding.reason}"
        yield f"  remedy    {finding.remedy}"
    for muted in analysis.muted:
        finding = muted.finding
        yield f"suppressed until {muted.until}: {finding.key} [{finding.folded}]: {muted.reason}"
    for part, why in analysis.not_run.items():
        yield f"not run: {part}: {why}"
    counts = {
        grade: sum(finding.grade == grade for finding in analysis.findings) for grade in Gravity
    }
    total = ", ".join(
        f"{counts[grade]} {grade.word}{'' if counts[grade] == 1 else 's'}"
        for grade in sorted(Gravity, reverse=True)
    )
    yield (
        f"{len(analysis.nodes)} nodes, {len(analysis.checks)} checks of {analysis.profile}: {total}"
    )


def _by(finding: CheckFinding) -> str:
    return f"  (source: {finding.source})" if finding.source else ""


def data(analysis: Analysis) -> dict[str, Any]:
    """Return the analysis as a JSON object."""
    return {
        "profile": analysis.profile,
        "nodes": list(analysis.nodes),
        "checks": list(analysis.checks),
        "findings": [_finding(finding) for finding in analysis.findings],
        "suppressed": [
            _finding(muted.finding) | {"suppressed": muted.reason, "until": muted.until}
            for muted in analysis.muted
        ],
        "not_run": analysis.not_run,
    }


def _finding(finding: CheckFinding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "severity": finding.grade.word,
        "about": finding.about,
        "nodes": list(finding.nodes),
        "folded": finding.folded,
        "value": finding.value,
        "expected": finding.expected,
        "source": finding.source,
        "reason": finding.reason,
        "remedy": finding.remedy,
    }


def junit(analysis: Analysis, least: Gravity) -> str:
    """Return a JUnit report: a suite for each family, a case for each check."""
    remarks: dict[str, list[JunitRemark]] = defaultdict(list)
    for finding in analysis.findings:
        where = f"{finding.folded} {finding.about}".rstrip()
        text = f"{finding.reason}: {finding.value}, expected {finding.expected}"
        remarks[finding.check].append(
            JunitRemark(
                JunitTag.FAILURE if finding.grade >= least else JunitTag.NOTE,
                finding.grade.word,
                f"{finding.grade.word}: {where}: {text}",
                f"remedy: {finding.remedy}",
            )
        )
    suites: dict[str, list[JunitCase]] = defaultdict(list)
    for name in analysis.checks:
        family = name.partition(".")[0]
        suites[family].append(JunitCase(family, name, tuple(remarks[name])))
    return junit_report(f"nearmetal check {analysis.profile}", suites)


def metrics(analysis: Analysis, taken: float) -> list[Metric]:
    """Return the metrics of an analysis; `taken` is the time of the snapshots."""
    # Labels name a time series, and two findings may differ in their values only.
    found: dict[tuple[str, ...], None] = {}
    for finding in analysis.findings:
        for node in finding.nodes[:_MOST_NODES] if finding.grade is Gravity.NOTE else finding.nodes:
            if len(found) < _MOST_SERIES:
                found[finding.check, finding.grade.word, node, finding.about] = None
            else:
                found[finding.check, finding.grade.word, OTHER, ""] = None
    return [
        Metric(
            "check_finding",
            "gauge",
            "A finding of the last check.",
            ("check", "severity", "node", "about"),
            tuple((labels, 1) for labels in found),
        ),
        one("check_nodes", "Nodes of the last check.", len(analysis.nodes)),
        one("check_timestamp_seconds", "Time of the snapshots of the last check.", taken),
    ]
