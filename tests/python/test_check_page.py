# SPDX-License-Identifier: Apache-2.0
"""The page of `check performance`: heat maps with labels, evidence, what is missing, and escapes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearmetal.check.analyse import analyse
from nearmetal.check.collect import Gathered
from nearmetal.check.model import Analysis
from nearmetal.check.performance.classes import NodeClasses, classes
from nearmetal.check.performance.findings import judge_run
from nearmetal.check.performance.line_verdict import measured_lines
from nearmetal.check.performance.run import (
    PERFORMANCE,
    Item,
    MeasuredTurn,
    PerformanceRun,
    run_text,
)
from nearmetal.check.profile import parse_profile
from nearmetal.cli.main import main
from nearmetal.report.check_heat import MOST_SIDE, slower
from nearmetal.report.check_page import MOST_ROWS, CheckRun, environment, render_check
from tests.python.check_nodes import TODAY, node
from tests.python.check_performance_clusters import measure, names, places
from tests.python.test_report import Page

EVIL = "<script>alert(1)</script>\"'&"
CLASSES = places({"h1": names(6)})


def slow_n1() -> PerformanceRun:
    """Return a run in which one node is slow in all."""
    return measure(names(6), lambda _, item: 1.5 if "n1" in item else 1.0, CLASSES)


def analysed(run: PerformanceRun, known: NodeClasses, **more: Any) -> Analysis:
    profile = parse_profile("name: site\n", "p.yaml")
    judged = judge_run(run, known, more.get("lines", ()))
    return analyse([], profile, silent={}, today=TODAY, performance=judged)


def page(run: PerformanceRun, known: NodeClasses = CLASSES, **more: Any) -> str:
    return render_check(CheckRun(run, known, analysed(run, known, **more), **more))


def cells(text: str, row: str, table: str) -> list[str]:
    """Return the texts of a row of the table with a title."""
    body = text.partition(f"<h2>{table}")[2].partition("</table>")[0]
    found = re.search(rf'<tr><th scope="row">{row}</th>(.*?)</tr>', body, re.DOTALL)
    assert found is not None, row
    return [" ".join(re.sub(r"<[^>]*>", " ", c).split()) for c in found[1].split("</td>")][:-1]


def test_the_page_needs_no_network_no_script_and_every_link_leads_somewhere() -> None:
    text = page(slow_n1(), command="nearmetal check performance x --report y")
    found = Page(text)
    assert found.open == []
    assert found.loaded == []
    assert len(found.ids) == len(set(found.ids))
    assert {h for h in found.hrefs if h[0] != "#" or h[1:] not in found.ids} == set()
    assert not re.search(r"url\(|@import|https?://|<script| on[a-z]+=", text)
    assert text == page(slow_n1(), command="nearmetal check performance x --report y")


def test_each_cell_has_its_value_its_slowness_and_a_link_to_its_values() -> None:
    text = page(slow_n1())
    assert cells(text, "n0", "Latency") == ["-", "150 +50 %", *["100 0 %"] * 4]
    assert cells(text, "n1", "Memory bandwidth")[0] == "66.6 +50 %"
    assert text.count('class="slowest"') >= 20
    href = re.search(r'<a href="#(raw-latency-0-1)">150</a>', text)
    assert href is not None
    raw = re.search(rf'<span id="{href[1]}">([^<]*)', text)
    assert raw is not None
    first, _, retests = raw[1].strip().partition("; retests: ")
    assert first.startswith("n0 to n1: ")
    assert len(first.split(", ")) == 3
    assert len(retests.split(", ")) > 3
    assert "from each row to each column" in text
    assert text.count('scope="col"') > 20


def test_the_evidence_of_a_finding_is_shown() -> None:
    text = page(slow_n1())
    assert "<h1>2 findings, on n1</h1>" in text
    assert "50 % slower" in text
    row = re.findall(
        r'<th scope="row"[^>]*>n1</th>(.*?)</tr>', text.partition("Suspicions and retests")[2]
    )
    words = " ".join(re.sub(r"<[^>]*>", " ", row[0]).split())
    assert re.match(
        r"memory bandwidth all \+50 % [0-9.]+ (\d+) of \1 \+50 % each retest slow", words
    )
    assert "guest" in text.partition("Classes</summary>")[2]


def test_a_pair_shows_its_exchanged_partners() -> None:
    run = measure(names(8), lambda _, i: 1.5 if set(i) == {"n2", "n5"} else 1.0, NodeClasses())
    text = page(run, NodeClasses())
    after = text.partition("Suspicions and retests")[2]
    words = " ".join(re.sub(r"<[^>]*>", " ", after.partition("n2 to n5")[2][:900]).split())
    assert "the pair +50 %" in words
    assert "0 % and 0 %" in words


def test_what_is_missing_is_shown_as_missing() -> None:
    values: dict[Item, float] = {("n0", "n1"): 2.0, ("n1", "n0"): 2.0}
    run = PerformanceRun(
        names(3),
        screening=(MeasuredTurn("latency", values),),
        failures={("n0", "n2"): "no route", ("n2",): "gone"},
        lacking={"stream": "no program|make it"},
    )
    text = page(run, NodeClasses())
    assert cells(text, "n0", "Latency") == ["-", "2.00 not compared", "failed"]
    assert cells(text, "n2", "Latency") == ["failed", "failed", "-"]
    missing = text.partition('id="missing"')[2].partition("</section>")[0]
    for words in ("n0 to n2: no route", "n2: gone", "triad of STREAM</b>: no program", "not run"):
        assert words in missing
    assert "<h1>2 findings, on n[0-2]</h1>" in text


def test_nothing_slow_is_said_with_what_is_missing() -> None:
    run = measure(names(4), lambda *_: 1.0, CLASSES)
    assert "<h1>Nothing in 4 nodes is slower than its class</h1>" in page(run)
    empty = PerformanceRun(names(3))
    assert "No quantity was measured" in page(empty)


def test_the_first_line_says_that_pairs_of_three_nodes_were_not_compared() -> None:
    run = measure(names(3), lambda *_: 1.0, CLASSES)
    title = "Nothing in 3 nodes is slower than its class, but some were not compared"
    assert f"<h1>{title}</h1>" in page(run)
    run = replace(run, lacking={"hpl": "no hpcc"}, failures={})
    found = analysed(run, CLASSES)
    calm = replace(found, findings=[])
    text = render_check(CheckRun(run, CLASSES, calm))
    assert "than its class, but values are missing and some were not compared</h1>" in text


def test_many_failures_are_counted() -> None:
    pairs = [(a, b) for a in names(30) for b in names(30) if a != b]
    run = PerformanceRun(names(30), failures=dict.fromkeys(pairs, "no route"))
    missing = page(run, NodeClasses()).partition('id="missing"')[2].partition("</section>")[0]
    assert missing.count("no route") == MOST_ROWS
    assert f"{30 * 29 - MOST_ROWS} more, see performance.json" in missing


def test_the_share_of_the_line_is_shown() -> None:
    nodes = [node(n, ("system>boot_id", f"k{n}")) for n in (1, 2)]
    ends = tuple(each.name for each in nodes)
    values = {ends: 6000.0, ends[::-1]: 12_000.0}
    run = PerformanceRun(ends, screening=(MeasuredTurn("mpi_bandwidth", values),))
    known = classes(nodes, {})
    text = page(run, known, lines=measured_lines(run, nodes, known))
    assert "<h2>Bandwidth of MPI, MB/s</h2>" in text
    after = text.partition("Line rate</summary>")[2]
    words = " ".join(re.sub(r"<[^>]*>", " ", after).split())
    assert "compute-01 to compute-02 bandwidth of MPI 48 99.37 48.3%" in words
    assert "InfiniBand of 100 Gbit/s with an MTU of 4096 of compute-01 does not fill it" in words
    assert "96.6%" in words


def test_hostile_words_stay_words() -> None:
    run = replace(
        slow_n1(),
        setup={"memory": EVIL},
        hosts=dict.fromkeys(names(6), EVIL),
        software={"n0": EVIL},
        failures={("n0", "n1"): EVIL, ("n3",): EVIL},
        lacking={"dgemm": f"{EVIL}|{EVIL}"},
    )
    about = environment([node(1, ("processor>model", EVIL), ("system>kernel", EVIL))])
    text = page(run, command=EVIL, environment=about)
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert") >= 8
    assert Page(text).open == []


def test_a_large_cluster_shows_its_slowest_nodes() -> None:
    count = MOST_SIDE + 6
    run = measure(
        names(count),
        lambda _, item: 1.5 if f"n{count - 1}" in item else 1.0,
        NodeClasses(),
        ("latency",),
    )
    text = page(run, NodeClasses())
    assert "6 faster nodes not shown" in text
    assert f'<th scope="row">n{count - 1}</th>' in text.partition("Latency")[2]
    assert text.count("raw-latency") <= 2 * MOST_SIDE * MOST_SIDE
    assert len(text) < 3 << 20


@pytest.mark.parametrize(
    ("left", "words"),
    [(0.0, "0 %"), (0.001, "0 %"), (-0.001, "0 %"), (0.4055, "+50 %"), (-0.2, "-18 %")],
)
def test_slowness_in_words(left: float, words: str) -> None:
    assert slower(left) == words


def test_equal_nodes_share_a_line_of_the_testbed() -> None:
    found = dict(environment([node(1), node(2), node(3, ("system>kernel", "6.9"))]))
    assert found["kernel"] == "6.1.0-18-amd64 (compute-[01-02]); 6.9 (compute-03)"
    assert found["kind"] == "no virtual machine (compute-[01-03])"
    guest = ("virtual>guest", True)
    kinds = environment([node(1, guest), node(2, guest, ("virtual>container", "lxc"))])
    assert dict(kinds)["kind"] == "virtual machine (compute-01); container (compute-02)"


def collection(tmp_path: Path) -> Path:
    """Write a collection with a run in which one node is slow."""
    run = slow_n1()
    silent = dict.fromkeys(run.names, "no answer")
    Gathered(silent=silent).write(tmp_path / "speed", {PERFORMANCE: run_text(run)})
    return tmp_path / "speed"


def test_the_page_of_a_collection_is_written_on_request(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    folder = collection(tmp_path)
    assert main(["check", "analyse", str(folder), "--report", str(file)]) == 4
    text = file.read_text(encoding="utf-8")
    assert "performance.memory" in text
    digest = hashlib.sha256((folder / PERFORMANCE).read_bytes()).hexdigest()
    assert f"has the SHA-256 {digest}" in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["empty", "--report", "page.html"], "no values of `check performance`"),
        (["empty", "--report", "no/page.html"], "no is no directory"),
    ],
)
def test_a_page_without_values_or_place_is_refused(
    words: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Gathered().write(tmp_path / "empty")
    assert main(["check", "analyse", *words]) == 2
    assert why in capsys.readouterr().err
    assert not list(tmp_path.glob("**/page.html"))


def test_values_at_the_limits_of_a_file_are_shown() -> None:
    values: dict[Item, float] = {("n0",): 2e-12, ("n1",): 9e17, ("n2",): 1.0, ("n3",): 9e17}
    turns = tuple(MeasuredTurn("memory", values) for _ in range(3))
    text = page(PerformanceRun(names(4), screening=turns), NodeClasses())
    assert cells(text, "n0", "Memory bandwidth")[0].startswith("0.00000000000200 +")
    assert Page(text).open == []
