# SPDX-License-Identifier: Apache-2.0
"""Profiles with their expectations and suppressions; outputs; the tables of the manual."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from nearmetal.check import outputs
from nearmetal.check.analyse import analyse
from nearmetal.check.expect import KEYS
from nearmetal.check.families import CHECKS, FAMILIES
from nearmetal.check.model import Gravity
from nearmetal.check.node_pattern import expand, node_pattern
from nearmetal.check.profile import BUILT_IN, load_profile, parse_profile
from nearmetal.core.errors import SpecError, UsageError
from nearmetal.core.exposition import metrics_text
from tests.python.check_nodes import cluster, judged, named, node

MANUAL = (Path(__file__).parents[2] / "nearmetal/share/man/nearmetal-check.md").read_text()


def test_the_profiles_of_nearmetal_grow() -> None:
    sets = [set(load_profile(name).checks) for name in BUILT_IN]
    assert sets[0] < sets[1] == sets[2] == sets[3] == set(CHECKS)
    assert all(load_profile(name).name == name for name in BUILT_IN)
    assert load_profile("hpc_platform").expectations.value("services") == ("sshd",)


def test_performance_tests_of_a_profile_are_listed_as_not_run() -> None:
    analysis = judged(cluster(), "simulation")
    assert list(analysis.not_run) == ["stream", "dgemm", "hpl", "hpcg", "mpi"]
    assert "not run: hpl: this version" in "\n".join(outputs.lines(analysis))


def test_an_unknown_profile_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="no profile 'health'"):
        load_profile("health")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("checks: ['*']\n", "site.yaml:1:1: name: is not a text"),
        ("name: a\nbase: big\n", "site.yaml:2:7: base: is not a profile of nearmetal"),
        ("name: a\nchecks: [fabrics.*]\n", "site.yaml:2:10: checks[0]: matches no check"),
        ("name: a\nchecks: all\n", "site.yaml:2:9: checks: is not a list of words"),
        ("name: a\nspeed: 1\n", "site.yaml:2:1: unknown key 'speed'"),
        ("name: a\nexpect: {mtuu: 1}\n", "site.yaml:2:10: unknown key 'expect.mtuu'"),
        ("name: a\nexpect: {mtu: big}\n", "site.yaml:2:15: expect.mtu: is not a number"),
        ("name: a\nexpect: {memlock: 64}\nexpect: 1\n", "duplicate key"),
        ("name: a\nexpect: {shm_bytes: 64 GB}\n", "has the unknown unit GB"),
        ("name: a\nexpect: {services: [1]}\n", "is not a list of words"),
        ("name: a\nexpect: {packages: [a]}\n", "is not a table of words"),
        ("name: a\nperformance: [linpack]\n", "performance[0]: is not known"),
        ("name: a\nsuppress:\n  - check: base.swap\n", "suppress[0].until: is required"),
        (
            "name: a\nsuppress:\n  - {check: base.swap, until: soon, reason: r}\n",
            "suppress[0].until: is not a day",
        ),
        (
            "name: a\nsuppress:\n  - {check: x, until: 2030-01-01, reason: r}\n",
            "suppress[0].check: matches no check",
        ),
        (
            "name: a\nsuppress:\n  - {check: base.swap, until: 2030-01-01, reason: r, about: 5}\n",
            "suppress[0].about: is not text",
        ),
        (
            "name: a\nsuppress:\n" + "  - {check: base.swap, until: 2030-01-01, reason: r}\n" * 201,
            "suppress: has more than 200 entries",
        ),
        (
            "name: a\nsuppress:\n  - {check: base.swap, until: 2030-01-01, reason: r, nodes: 'a b'}\n",
            "suppress[0].nodes: is not a set of nodes",
        ),
    ],
)
def test_a_wrong_profile_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_profile(text, "site.yaml")
    assert problem in refused.value.message


SUPPRESS = """\
name: site
base: health_extended
suppress:
  - check: storage.*
    nodes: compute-[02-04]
    until: "2026-06-30"
    reason: the disks are on order
"""


def test_a_suppression_hides_its_nodes_until_its_day() -> None:
    full = [node(i, ("storage>/>free", 1)) for i in (2, 3, 5)]
    profile = parse_profile(SUPPRESS, "site.yaml")
    before = analyse(cluster(*full), profile, silent={}, today=date(2026, 6, 30))
    assert named(before) == [("storage.full", "fault", "compute-05")]
    assert [(m.finding.folded, m.until) for m in before.muted] == [
        ("compute-[02-03]", "2026-06-30")
    ]
    assert any("the disks are on order" in line for line in outputs.lines(before))
    after = analyse(cluster(*full), profile, silent={}, today=date(2026, 7, 1))
    assert named(after) == [("storage.full", "fault", "compute-[02-03,05]")]


def test_a_suppression_takes_the_words_of_a_finding_or_a_pattern() -> None:
    for about in ("sysctl[vm.swappiness]", "sysctl*"):
        profile = (
            "name: s\nbase: hpc_platform\nsuppress:\n"
            f"  - {{check: '*', about: '{about}', until: '2030-01-01', reason: r}}\n"
        )
        found = judged(cluster(node(3, ("sysctl>vm.swappiness", "60"))), profile)
        assert not [f for f in found.findings if "swappiness" in f.about]
        assert [m.finding.folded for m in found.muted] == ["compute-03"]


def test_an_expectation_that_is_null_is_not_checked() -> None:
    odd = node(1, ("limits>memlock>soft", 65536))
    assert named(judged([odd])) == [("base.memlock", "fault", "compute-01")]
    assert named(judged([odd], "name: s\nbase: health_extended\nexpect: {memlock: null}\n")) == []


@pytest.mark.parametrize(
    ("text", "name", "has"),
    [
        ("n1", "n1", True),
        ("n1", "n11", False),
        ("n[1-3]", "n2", True),
        ("n[1-3]", "n02", False),
        ("n[01-12]", "n07", True),
        ("n[01-12]", "n7", False),
        ("n[08-120]", "n100", True),
        ("n[08-120]", "n009", False),
        ("a,n[1,3-4]-ib", "n4-ib", True),
        ("a,n[1,3-4]-ib", "n2-ib", False),
        ("n[1-999999999]", "n5", True),
    ],
)
def test_patterns_of_nodes(text: str, name: str, *, has: bool) -> None:
    assert node_pattern(text).has(name) is has


@pytest.mark.parametrize(
    "text", ["", "a b", "n[", "n[1-", "n[a-b]", "n[1]]", "-n1", ",", "n[1][2]"]
)
def test_what_is_no_pattern_of_nodes(text: str) -> None:
    with pytest.raises(ValueError, match=r"\|"):
        expand(text, 100)


def test_nodes_are_listed_up_to_a_limit() -> None:
    assert expand("n[08-10],login", 100) == ["n08", "n09", "n10", "login"]
    with pytest.raises(ValueError, match="more than 100 nodes"):
        expand("n[1-999999999]", 100)


def test_outputs_have_all_findings() -> None:
    odd = node(3, ("storage>/da\x1bta", {"error": 'I/O "error"'}), ("processor>throttled", 1))
    analysis = judged(cluster(odd))
    data = json.loads(json.dumps(outputs.data(analysis)))
    assert [f["severity"] for f in data["findings"]][:1] == ["fault"]
    root = ET.fromstring(outputs.junit(analysis, Gravity.FAULT))  # noqa: S314 - our own text
    assert len(root.findall(".//testcase")) == len(CHECKS)
    (failed,) = [
        case.get("name") for case in root.iter("testcase") if case.find("failure") is not None
    ]
    assert failed == "storage.broken"
    text = metrics_text(outputs.metrics(analysis, 5.0))
    rows = [row for row in text.splitlines() if row.startswith("nearmetal_check_finding{")]
    assert len(rows) == sum(len(f.nodes) for f in analysis.findings)
    assert all(re.fullmatch(r'\w+\{(\w+="(\\.|[^"\\\n])*",?){4}\} 1\.0', row) for row in rows)
    assert "\x1b" not in text + outputs.junit(analysis, Gravity.FAULT) + "".join(
        outputs.lines(analysis)
    )


def test_findings_that_differ_in_values_are_one_series_of_prometheus() -> None:
    full = {"options": "rw", "bytes": 100, "free": 0, "inodes": 100, "inodes_free": 0}
    analysis = judged([node(1, ("storage>/x", full))])
    assert len(analysis.findings) == 2
    text = metrics_text(outputs.metrics(analysis, 5.0))
    rows = [row for row in text.splitlines() if row.startswith("nearmetal")]
    assert len(rows) == len({row.rpartition(" ")[0] for row in rows}) == 3


def test_no_node_floods_a_report() -> None:
    broken = {f"/d/{i}": {"error": "Stale file handle"} for i in range(3000)}
    analysis = judged(
        cluster(node(3, ("storage", broken)), node(4, ("storage>/x", broken["/d/0"])))
    )
    found = [f for f in analysis.findings if f.check == "storage.broken"]
    assert len(found) == 52
    assert [(f.grade, f.folded, f.value) for f in found if "more" in f.value] == [
        (Gravity.FAULT, "compute-03", "2950 more findings")
    ]
    assert [f.folded for f in found if f.about == "/x"] == ["compute-04"]


def test_an_analysis_fails_from_a_severity_on() -> None:
    analysis = judged(cluster(node(3, ("processor>throttled", 1))))
    assert not analysis.fails(Gravity.FAULT)
    assert analysis.fails(Gravity.WARNING)


def test_names_of_checks_begin_with_their_family_and_stand_once() -> None:
    names = [check.name for family in FAMILIES for check in family.CHECKS]
    assert len(names) == len(set(names))
    assert all(
        (check.judge is None) != (check.compare is None)
        for check in CHECKS.values()
        if check.name != "base.answer"
    )


def rows_of(section: str) -> list[list[str]]:
    text = MANUAL.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_manual_lists_the_checks_and_expectations_of_the_code() -> None:
    assert rows_of("CHECKS") == [
        [f"`{c.name}`", c.grade.word, c.title, c.source or "the expectation"]
        for c in CHECKS.values()
    ]
    assert [row[0].strip("`") for row in rows_of("EXPECTATIONS")] == list(KEYS)
    for row in rows_of("EXPECTATIONS"):
        key = KEYS[row[0].strip("`")]
        assert key.text in row
        assert not key.source or row[-1] == key.source
