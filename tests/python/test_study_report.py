# SPDX-License-Identifier: Apache-2.0
"""The page of a study, made from logs as the programs write them."""

from __future__ import annotations

import csv
import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nearmetal.cli.main import main
from nearmetal.core.errors import UsageError
from nearmetal.report.study_charts import bars, curves
from nearmetal.report.study_page import (
    headline,
    render_study_html,
    render_study_markdown,
    sentence,
)
from nearmetal.report.study_rules import rules
from nearmetal.report.study_view import Anchors, StudyView, legend, raw_lines, study_view
from nearmetal.study.model import Arm
from nearmetal.study.store import Study

SIZES = (1, 2, 4, 8, 16, 32)
LAUNCHES = 12
LABELS = """\
format: 1
run: made
arms:
  metal: {platform: bare metal, fabric: IB, placement: near, cores_per_node: 48,
          facts: {line_rate_gbit: 100, latency_sensitivity: high}}
  vm: {platform: VM, fabric: IB, placement: near, cores_per_node: 44,
       facts: {line_rate_gbit: 100, memory_gb: "144", latency_sensitivity: high, adapter: SRIOV}}
  far: {platform: VM, fabric: RoCE, placement: other rack, cores_per_node: 44}
sources:
  - path: "{arm}/osu_latency-{launch}.out"
    nodes: 2
  - path: "**/*.txt"
    ignore: notes
"""


def latency_log(factor: float, launch: int) -> str:
    jitter = 1 + 0.001 * launch
    rows = "".join(f"{s:<10d}{(1.2 + s / 8192) * factor * jitter:>20.4f}\n" for s in SIZES)
    return f"# OSU MPI Latency Test v7.2\n# Size          Latency (us)\n{rows}"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    for arm, factor in (("metal", 1.0), ("vm", 1.05), ("far", 3.0)):
        (folder / "logs" / arm).mkdir(parents=True)
        for launch in range(1, LAUNCHES + 1):
            value = factor * (5 if (arm, launch) == ("vm", 4) else 1)
            path = folder / "logs" / arm / f"osu_latency-{launch}.out"
            path.write_text(latency_log(value, launch))
    (folder / "logs" / "notes.txt").write_text("nothing here")
    (folder / "logs" / "study-labels.yaml").write_text(LABELS)
    assert main(["study", "import", str(folder / "logs"), "--output", str(folder / "s")]) == 0
    return folder / "s"


@pytest.fixture(scope="module")
def view(study: Path) -> StudyView:
    return study_view(Study(study), "metal", ["vm", "far"], percent=None, only=None)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "href", "srcset"):
                self.loads.append(value or "")


def test_the_page_needs_no_network_and_every_link_leads_somewhere(view: StudyView) -> None:
    page = Page(render_study_html(view))
    assert len(page.ids) == len(set(page.ids))
    assert len(page.links) > len(SIZES) * 3
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert page.loads == ["data:,"]


def test_the_verdict_is_the_headline(view: StudyView) -> None:
    text = render_study_html(view)
    assert sentence(view) == (
        "Against metal, vm is within the margin at 1 of 1 primary endpoint (other points: 5 ACCEPT); "
        "far cannot be compared at 1 of 1 primary endpoint (other points: 5 REFUSED)"
    )
    assert headline(view) == (
        "Against metal, 1 of 2 arms is within the margin, 1 cannot be compared"
    )
    assert text.index(headline(view)) < text.index("<nav")
    assert text.index(">ACCEPT<") < text.index(">REFUSED<") < text.index('id="testbed"')
    alone = replace(view, judged=view.judged[:1])
    assert headline(alone) == sentence(alone)
    assert sentence(alone) in render_study_html(alone)


def test_more_arms_than_a_page_has_room_for_are_refused(study: Path) -> None:
    names = [f"arm{n}" for n in range(8)]
    with pytest.raises(UsageError, match="at most 7 arms, 8 are named"):
        study_view(Study(study), "metal", names, percent=None, only=None)


def test_a_chart_beside_the_page_has_its_colours(study: Path, tmp_path: Path) -> None:
    words = ["study", "report", str(study), "metal", "vm", "--output", str(tmp_path / "p.html")]
    assert main(words) == 0
    chart = (tmp_path / "p-1.svg").read_text()
    ET.fromstring(chart)  # noqa: S314 - our own text
    assert ".arm-1{color:#" in chart
    assert "var(" not in chart, "programs that print know no variables"


def test_a_refusal_says_why_and_how_often(view: StudyView) -> None:
    text = render_study_html(view)
    assert "refused: the placement: near against other rack" in text
    markdown = render_study_markdown(view)
    assert "- far / metal: refused: the placement: near against other rack (6 points)" in markdown


def test_numbers_link_to_the_raw_lines_they_come_from(study: Path, view: StudyView) -> None:
    raw, left_out = raw_lines(view)
    assert left_out == 0
    assert len(raw) == 3 * len(SIZES)
    for cell in raw:
        assert len(cell.rows) == LAUNCHES
        for seen, where, text in cell.rows:
            path, _, line = where.rpartition(":")
            original = (study.parent / "logs" / path).read_text().splitlines()[int(line) - 1]
            assert text == original.strip()
            assert float(text.split()[1]) == seen.value
    text = render_study_html(view)
    assert f'id="{raw[0].anchor}"' in text


def test_what_does_not_fit_is_counted(view: StudyView) -> None:
    small = replace(view, max_raw=2 * LAUNCHES)
    raw, left_out = raw_lines(small)
    assert (len(raw), left_out) == (2, (3 * len(SIZES) - 2) * LAUNCHES)
    page = Page(render_study_html(small))
    assert all(link[1:] in page.ids for link in page.links)
    assert f"{left_out} more lines did not fit" in render_study_html(small)


def test_outliers_are_flagged_and_stay(view: StudyView) -> None:
    assert all(len(cell.values) == LAUNCHES for cell in view.cells)
    text = render_study_html(view)
    assert text.count("outlier: ") == len(SIZES)


def test_the_same_study_gives_the_same_bytes(study: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("a", "b"):
        page = tmp_path / name / "page.html"
        page.parent.mkdir()
        words = ["study", "report", str(study), "metal", "vm", "--output", str(page)]
        assert main(words) == 0
        pages.append({p.name: p.read_bytes() for p in page.parent.iterdir()})
    assert pages[0] == pages[1]
    assert {"page.html", "page.md", "page.csv", "page-1.svg", "page-2.svg"} == set(pages[0])


def test_charts_are_sound_xml_and_show_the_margin(view: StudyView) -> None:
    figures = [*curves(view, Anchors(view, [])), *bars(view, Anchors(view, []))]
    charts = [text for figure in figures for chart in figure.charts for text in chart]
    assert len(charts) == 4, "a curve and its ratio, each for a desk and for a telephone"
    for chart in charts:
        ET.fromstring(chart)  # noqa: S314 - our own text
    assert "margin: 44 of 48 cores" in charts[2]


def test_csv_has_a_point_per_line(study: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["study", "report", str(study), "metal", "vm", "far", "--output", str(page)]) == 0
    with page.with_suffix(".csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * len(SIZES)
    assert {row["verdict"] for row in rows if row["arm"] == "vm"} == {"ACCEPT"}
    assert float(rows[0]["loss_percent"]) == pytest.approx(5.0, abs=0.2)
    assert rows[0]["size_bytes"] == "1"


def test_hostile_text_stays_text(view: StudyView) -> None:
    evil = '<script>alert("x")</script>'
    lines = dict.fromkeys(view.lines, evil)
    base = Arm(view.base.name, evil, view.base.fabric, view.base.placement, 48)
    bad = StudyView(evil, base, view.judged, view.cells, view.violations, view.sources, lines)
    text = render_study_html(bad)
    assert evil not in text
    assert text.count("&lt;script&gt;") > len(SIZES)


def test_logs_that_tell_no_version_are_shown(view: StudyView) -> None:
    sources = {name: source._replace(header={}) for name, source in view.sources.items()}
    assert "osu_latency-1.out" in render_study_html(replace(view, sources=sources))


def test_the_checklist_is_filled_from_the_study(view: StudyView) -> None:
    found = {rule.number: rule for rule in rules(view)}
    assert sorted(found) == list(range(1, 13))
    assert found[2].met
    assert "1 files were left out" in found[2].why
    assert found[5].met
    assert found[9].met is False
    assert "MTU" in found[9].why
    assert found[11].met


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        (
            Arm(
                "x",
                "VM",
                "InfiniBand",
                "near",
                44,
                {"memory_gb": "144", "latency_sensitivity": "high", "adapter": "SRIOV"},
            ),
            "VM.44.144.LatSens.IB.SRIOV",
        ),
        (Arm("x", "bare metal", "RoCE", "", 48), "BM.48.RoCE"),
        (Arm("only-a-name"), "only-a-name"),
    ],
)
def test_legends_are_in_the_style_of_the_paper(arm: Arm, expected: str) -> None:
    assert legend(arm) == expected


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["metal", "nobody"], 1, "no arm 'nobody'"),
        (["metal", "metal"], 2, "named twice"),
        (["metal", "vm", "vm"], 2, "named twice"),
        (["metal", "vm", "--only", "osu_bw"], 1, "no point in common"),
        (["metal", "vm", "--margin", "-1"], 1, "margin"),
    ],
)
def test_wrong_words_are_explained(
    study: Path, words: list[str], code: int, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "report", str(study), *words]) == code
    assert what in capsys.readouterr().err


def test_a_changed_raw_file_stops_the_report(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(study, copy)
    victim = next(p for p in (copy / "objects").rglob("*") if p.is_file())
    victim.chmod(0o644)
    victim.write_bytes(victim.read_bytes().replace(b"1.2", b"9.9"))
    code = main(["study", "report", str(copy), "metal", "vm", "far"])
    assert code == 1
    assert "not what was recorded" in capsys.readouterr().err


def test_json_names_the_files(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "r.html"
    words = ["study", "report", str(study), "metal", "vm", "--output", str(page), "--json"]
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdicts"] == {"vm": "ACCEPT"}
    assert all(Path(path).is_file() for path in data["files"])
    assert re.search(r"r-1\.svg", " ".join(data["files"]))


def test_a_study_whose_logs_were_all_refused_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, target = tmp_path / "logs" / "metal", str(tmp_path / "study")
    logs.mkdir(parents=True)
    header = latency_log(1.0, 1).splitlines()[:2]
    (logs / "osu_latency-1.out").write_text("".join(f"{line}\n" for line in header))
    labels = LABELS.partition('  - path: "**/')[0].partition("  vm:")
    sources = "sources:" + labels[2].partition("sources:")[2]
    (tmp_path / "logs" / "study-labels.yaml").write_text(labels[0] + sources)
    main(["study", "import", str(tmp_path / "logs"), "--output", target])
    capsys.readouterr()
    assert main(["study", "judge", target, "metal", "vm"]) == 1
    said = capsys.readouterr().err
    assert "the study has no arms, because none of its 1 files was read; " in said
    assert "metal/osu_latency-1.out: refused, " in said
    words = ["study", "reproduce", "sdsc", target, "--arm", "native-ib=none"]
    assert main(words) == 1
    assert "the study has no arms" in capsys.readouterr().err
