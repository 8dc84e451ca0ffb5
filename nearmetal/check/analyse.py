# SPDX-License-Identifier: Apache-2.0
"""From snapshots to findings. Pure, and one snapshot at a time: a cluster may have 10,000 nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from nearmetal.check.expect import OWN
from nearmetal.check.families import CHECKS, RUNGS
from nearmetal.check.families.base import ANSWER
from nearmetal.check.model import (
    AcrossNodes,
    Analysis,
    CheckFinding,
    Gravity,
    HealthCheck,
    Muted,
    Partial,
    Spotted,
)
from nearmetal.check.profile import CheckProfile, Suppression
from nearmetal.check.snapshot import Snapshot
from nearmetal.core.text import printable

if TYPE_CHECKING:
    from nearmetal.check.performance.checks import FoundOnNodes
    from nearmetal.check.performance.findings import JudgedRun

_MOST_FINDINGS = 20_000
_MOST_OF_NODE = 50


def analyse(
    snapshots: Iterable[Snapshot],
    profile: CheckProfile,
    *,
    silent: Mapping[str, str],
    today: date,
    performance: JudgedRun | None = None,
    reported: Iterable[FoundOnNodes] = (),
) -> Analysis:
    """Judge all nodes by a profile. `silent`: nodes that did not answer, with the reason.

    `performance`: a run that was judged, to be part of the analysis. `reported`: failures that
    another program has found.
    """
    checks = [CHECKS[name] for name in profile.checks]
    found = _Findings()
    wanted = profile.expectations
    each = [check for check in checks if check.judge is not None]
    across = [(check, check.compare(wanted)) for check in checks if check.compare is not None]
    names = list(silent)
    for node in snapshots:
        names.append(node.name)
        for check in each:
            assert check.judge is not None  # noqa: S101 - chosen above
            for seen in check.judge(node, wanted):
                found.add(check, seen, [node.name])
        for _, comparison in across:
            comparison.add(node)
    not_run = dict(profile.not_run)
    for check, comparison in across:
        not_run |= found.take(check, comparison)
    if ANSWER.name in profile.checks:
        for node_name, why in silent.items():
            found.add(ANSWER, _silence(why), [node_name])
    ran = profile.checks
    if performance is not None:
        found.add_all(performance.findings)
        ran += performance.checks
        not_run |= performance.not_run
    others = tuple(reported)
    found.add_all(others)
    ran += tuple({check.name: 0 for check, _, _ in others})
    names = list(dict.fromkeys([*names, *(name for _, nodes, _ in others for name in nodes)]))
    found.add_rest()
    findings, muted = _muted(found.folded(), profile.suppressions, today)
    if found.more:
        not_run["findings"] = f"{found.more} more than the {_MOST_FINDINGS} that are shown"
    return Analysis(profile.name, tuple(names), findings, muted, ran, not_run)


def _silence(why: str) -> Spotted:
    reason, _, remedy = why.partition("|")
    return Spotted(
        printable(reason)[:200],
        "an answer",
        "no facts of this node could be collected",
        remedy or "ssh -v NODE true",
    )


class _Findings:
    """Findings that agree become one of several nodes."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[HealthCheck, Spotted], list[str]] = {}
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._rest: dict[tuple[HealthCheck, str], Gravity] = {}
        self.more = 0

    def add(self, check: HealthCheck, seen: Spotted, nodes: Iterable[str]) -> None:
        """Take a finding of some nodes."""
        kept = [node for node in nodes if self._has_room(check, seen, node)]
        if not kept:
            return
        if (check, seen) not in self._nodes and len(self._nodes) >= _MOST_FINDINGS:
            self.more += 1
            return
        self._nodes.setdefault((check, seen), []).extend(kept)

    def add_all(self, findings: Iterable[FoundOnNodes]) -> None:
        """Take the findings of a run of performance."""
        for check, nodes, seen in findings:
            self.add(check, seen, nodes)

    def _has_room(self, check: HealthCheck, seen: Spotted, node: str) -> bool:
        self._counts[check.name, node] += 1
        if self._counts[check.name, node] <= _MOST_OF_NODE:
            return True
        grade = check.grade if seen.grade is None else seen.grade
        self._rest[check, node] = max(grade, self._rest.get((check, node), grade))
        return False

    def add_rest(self) -> None:
        """Tell how many findings of a check and a node are not shown: no check floods a report."""
        for (check, node), grade in self._rest.items():
            count = self._counts[check.name, node] - _MOST_OF_NODE
            seen = Spotted(
                f"{count} more findings",
                "none",
                f"a node shows at most {_MOST_OF_NODE} findings of one check",
                "nearmetal check collect",
                source=OWN,
                grade=grade,
            )
            self._nodes.setdefault((check, seen), []).append(node)

    def take(self, check: HealthCheck, comparison: AcrossNodes) -> dict[str, str]:
        """Take the findings of a comparison; return what it left out, and why."""
        for nodes, seen in comparison.results():
            self.add(check, seen, nodes)
        if isinstance(comparison, Partial):
            return {f"{check.name} {place}": why for place, why in comparison.left_out()}
        return {}

    def folded(self) -> list[CheckFinding]:
        """Return the findings, the gravest first."""
        found = []
        for (check, seen), names in self._nodes.items():
            nodes = tuple(dict.fromkeys(names))
            found.append(
                CheckFinding(
                    check.name,
                    check.grade if seen.grade is None else seen.grade,
                    nodes,
                    _fold(nodes),
                    # Families keep to printable texts; a fact that they missed ends here.
                    printable(seen.about),
                    printable(seen.value),
                    printable(seen.expected),
                    seen.source or check.source,
                    printable(seen.reason),
                    printable(seen.remedy),
                )
            )
        found.sort(key=lambda f: (-f.grade, *_place(f.check), f.about, f.nodes))
        return found


def _place(check: str) -> tuple[str, int, str]:
    """Return where findings of a check stand: its family, and the rung of a family that has rungs."""
    family = check.partition(".")[0]
    return family, RUNGS.get(check, 0), check


def _muted(
    findings: list[CheckFinding], suppressions: tuple[Suppression, ...], today: date
) -> tuple[list[CheckFinding], list[Muted]]:
    """Split findings by the suppressions that are in force; a finding keeps its other nodes."""
    kept: list[CheckFinding] = []
    muted: list[Muted] = []
    for finding in findings:
        left = finding
        for suppression in suppressions:
            hidden, left_nodes = suppression.split(left, today)
            if hidden:
                muted.append(
                    Muted(_narrowed(left, hidden), suppression.reason, str(suppression.until))
                )
                if not left_nodes:
                    break
                left = _narrowed(left, left_nodes)
        else:
            kept.append(left)
    return kept, muted


def _narrowed(finding: CheckFinding, nodes: tuple[str, ...]) -> CheckFinding:
    return replace(finding, nodes=nodes, folded=_fold(nodes))


def _fold(nodes: tuple[str, ...]) -> str:
    if len(nodes) == 1:
        return nodes[0]
    from nearmetal.host.hosts_file import fold  # noqa: PLC0415 - slow to load, and for clusters

    return fold(list(nodes))
