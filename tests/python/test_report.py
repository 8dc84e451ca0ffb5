# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from nearmetal.cli.main import main
from nearmetal.evidence import load_run, read_manifest, write_manifest
from nearmetal.report.analysis import Evidence, Quantity, Which, headlines
from nearmetal.report.checks import State, run_checks
from nearmetal.report.matrix import locality_picture
from nearmetal.report.run_page import render_csv, render_html, render_markdown
from tests.python.evidence_runs import limits_log, make_launch, make_run, pair, patterns_log


class Page(HTMLParser):
    """Collects anchors, links and what would be loaded."""

    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.hrefs: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [v for k, v in attrs if k == "id" and v]
        self.hrefs += [v for k, v in attrs if k == "href" and v and tag == "a"]
        icon = tag == "link" and given.get("href") == "data:,"
        if not icon and (tag in ("script", "link", "img", "iframe", "object") or "src" in given):
            self.loaded.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    return make_run(tmp_path / "r")


def test_the_page_needs_no_network_and_every_link_leads_somewhere(run_directory: Path) -> None:
    text = render_html(load_run(run_directory))
    page = Page(text)
    assert page.open == []
    assert page.loaded == []
    assert not re.search(
        r"(?:url\(|@import|https?://)", text.replace("http://www.w3.org/2000/svg", "")
    )
    assert len(page.ids) == len(set(page.ids))
    assert page.hrefs
    assert all(h[1:] in page.ids for h in page.hrefs if h.startswith("#"))
    assert all(h.startswith("#") for h in page.hrefs)


def test_numbers_link_to_the_raw_line_they_stand_in(run_directory: Path) -> None:
    text = render_html(load_run(run_directory))
    href = re.search(r'<td><a href="#(f\d+-l\d+)">304 ns</a>', text)
    assert href is not None
    line = re.search(rf'<span id="{href[1]}">([^<]*)', text)
    assert line is not None
    assert line[1].split()[0] == "8"
    assert line[1].split()[5] == "0.3038"


def test_the_same_run_gives_the_same_bytes(run_directory: Path) -> None:
    first, second = load_run(run_directory), load_run(run_directory)
    assert render_html(first) == render_html(second)
    assert render_markdown(first) == render_markdown(second)
    assert render_csv(first) == render_csv(second)


def test_charts_are_sound_xml(tmp_path: Path) -> None:
    text = render_html(load_run(make_run(tmp_path / "r", blocks=6)))
    charts = re.findall(r'<svg class="chart".*?</svg>', text, re.DOTALL)
    assert len(charts) == 10, "five, each for a desk and for a telephone"
    for chart in charts:
        ET.fromstring(chart)  # noqa: S314 - our own output
    for label in ("nearmetal", "MPI&#x27;s own TCP", "network only", "limit: one copy"):
        assert label in text


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&"
    directory = make_run(tmp_path / "r", reason=evil)
    manifest = read_manifest(directory)
    launch = make_launch(directory, 50, patterns_log(1, 1), exit_code=1, program=evil)
    write_manifest(
        directory,
        manifest.model_copy(
            update={"name": evil, "launches": (*manifest.launches, launch), "spec": evil}
        ),
    )
    run = load_run(directory)
    assert "<script" not in render_html(run)
    Page(render_html(run))
    assert "<script" not in render_markdown(run)
    ET.fromstring(locality_picture(run.manifest))  # noqa: S314 - our own output


def test_a_headline_is_judged_as_a_study_is(tmp_path: Path) -> None:
    evidence = Evidence(load_run(make_run(tmp_path / "r", blocks=6)))
    latency, rate, _, bandwidth = headlines(evidence)
    assert latency.ours is not None
    assert latency.ratio is not None
    # (9 + 8/2500) / (0.3 + 8/10000), the same in every block but for the common drift of 5 %
    assert latency.ratio.value == pytest.approx(9.0032 / 0.3008, rel=0.01)
    assert latency.ratio.low is not None
    assert latency.ratio.high is not None
    assert 28 < latency.ratio.low < latency.ratio.value < latency.ratio.high < 32
    assert (latency.launches, latency.reached, latency.verdict) == (6, True, "reached")
    assert latency.limit is not None
    assert latency.limit.value == pytest.approx(0.06)
    assert rate.quantity is Quantity.RATE
    assert rate.ratio is not None
    assert rate.ratio.value == pytest.approx(2.2532 / 0.0758, rel=0.02)
    assert rate.reached is None
    assert rate.verdict.startswith("not settled: the margin lies within the interval")
    assert bandwidth.ours is not None
    assert bandwidth.ours.value == pytest.approx(10000, rel=0.05)
    assert bandwidth.ratio is not None
    assert bandwidth.ratio.value == pytest.approx(4.0, rel=0.05)
    page = render_html(evidence.run)
    assert "95 % interval" in page
    assert "<b>reached</b>" in page


def test_three_launches_give_no_ratio_but_the_reason(run_directory: Path) -> None:
    run = load_run(run_directory)
    latency, *_ = found = headlines(Evidence(run))
    assert all(v.ratio is None and v.reached is None for v in found)
    assert latency.verdict == "too few launches: 3 of at least 6"
    for text in (render_html(run), render_markdown(run)):
        assert "too few launches: 3 of at least 6" in text
        assert "lower latency" not in text
    assert (
        Evidence(run).ratios(
            Quantity.TIME, Which("auto", "openmpi5", "patterns", "pingpong"), "stock"
        )
        == {}
    )


def test_a_headline_of_other_places_is_refused(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r", blocks=6)
    manifest = read_manifest(directory)
    moved = tuple(
        x.model_copy(update={"nodes": "n1:2"}) if x.arm == "stock" else x for x in manifest.launches
    )
    write_manifest(directory, manifest.model_copy(update={"launches": moved}))
    latency = headlines(Evidence(load_run(directory)))[0]
    assert (latency.ratio, latency.reached) == (None, None)
    assert latency.verdict == "refused: the placement: n1:2 against n1:1,n2:1"


def test_a_band_is_the_middle_half_and_bandwidth_turns_it_round(run_directory: Path) -> None:
    evidence = Evidence(load_run(run_directory))
    which = Which("auto", "openmpi5", "patterns", "uniband")
    time = evidence.point(Quantity.TIME, which, 1 << 20)
    speed = evidence.point(Quantity.BANDWIDTH, which, 1 << 20)
    assert time is not None
    assert speed is not None
    assert (time.low / time.value, time.high / time.value) == pytest.approx((0.95, 1.1), rel=1e-2)
    assert speed.low < speed.value < speed.high < speed.best


def test_a_run_without_baseline_claims_nothing(run_directory: Path) -> None:
    manifest = read_manifest(run_directory)
    launches = tuple(x for x in manifest.launches if x.arm != "stock")
    write_manifest(run_directory, manifest.model_copy(update={"launches": launches}))
    run = load_run(run_directory)
    assert all(v.ratio is None and v.reached is None for v in headlines(Evidence(run)))
    assert "not measured in this run" in render_html(run)
    assert "not measured" in render_markdown(run)


def test_a_run_without_any_launch_still_makes_a_page(run_directory: Path) -> None:
    manifest = read_manifest(run_directory)
    empty = {"launches": (), "locality": (), "finished": ""}
    write_manifest(run_directory, manifest.model_copy(update=empty))
    run = load_run(run_directory)
    Page(render_html(run))
    assert {c.title for c in run_checks(Evidence(run)) if c.state is State.BAD} >= {
        "the run was interrupted"
    }


def states(directory: Path) -> dict[str, State]:
    return {c.title: c.state for c in run_checks(Evidence(load_run(directory)))}


def test_a_sound_run_passes_every_check(run_directory: Path) -> None:
    assert set(states(run_directory).values()) == {State.GOOD}


@pytest.mark.parametrize(
    ("change", "title", "state"),
    [
        ({"exit_code": 1}, "missing launches: 1", State.BAD),
        ({"wire_bytes": 10**10}, "the network was idle under nearmetal", State.BAD),
        ({"load": 9.0}, "the machine was busy with other work", State.DOUBT),
        ({"ranks": 4}, "more ranks than cores", State.DOUBT),
    ],
)
def test_a_doubtful_launch_is_told(
    run_directory: Path, change: dict[str, object], title: str, state: State
) -> None:
    manifest = read_manifest(run_directory)
    first, second, *rest = manifest.launches
    launches = (first, second.model_copy(update=change), *rest)
    write_manifest(run_directory, manifest.model_copy(update={"launches": launches}))
    assert states(run_directory)[title] is state


def test_traffic_that_the_provider_did_not_carry_is_told(run_directory: Path) -> None:
    manifest = read_manifest(run_directory)
    first, second, *rest = manifest.launches
    proof = second.proof.model_copy(update={"verdict": "absent", "reason": "another carried it"})
    launches = (first, second.model_copy(update={"proof": proof}), *rest)
    write_manifest(run_directory, manifest.model_copy(update={"launches": launches}))
    assert states(run_directory)["nearmetal: not proven"] is State.BAD


def test_cores_that_share_no_cache_and_impossible_figures_are_told(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r", blocks=1)
    manifest = read_manifest(directory)
    beside = {"mpi": "", "arm": "", "program": "limits"}
    far = make_launch(directory, 60, limits_log("far"), block=1, **beside)
    fast = make_launch(directory, 61, patterns_log(0.001, 10**6), block=1)
    launches = (*manifest.launches, far, fast)
    write_manifest(directory, manifest.model_copy(update={"launches": launches}))
    found = states(directory)
    assert found["the cores moved between cache domains"] is State.DOUBT
    assert found["figures beyond the limits of the cores"] is State.BAD


def test_csv_has_one_value_per_line_with_its_source(run_directory: Path) -> None:
    run = load_run(run_directory)
    rows = list(csv.DictReader(io.StringIO(render_csv(run))))
    assert len(rows) == len(run.facts)
    first = rows[0]
    line = run.texts[first["file"]].splitlines()[int(first["line"]) - 1]
    assert float(first["value"]) in [float(w) for w in line.split()]


def test_markdown_has_the_verdict_and_escapes_bars(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r", blocks=6, reason="a | b")
    text = render_markdown(load_run(directory))
    assert "lower latency" in text
    assert "a \\| b" in text


def test_the_picture_of_the_matrix_names_every_pair(run_directory: Path) -> None:
    manifest = read_manifest(run_directory)
    far = (
        pair("n1", "n3", "net", "no socket"),
        pair("n3", "n1", "oddity", "x"),
        pair("n3", "n2", "none", "x"),
    )
    picture = locality_picture(manifest.model_copy(update={"locality": (*manifest.locality, *far)}))
    root = ET.fromstring(picture)  # noqa: S314 - our own output
    titles = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "n1 to n2: met in the same bytes" in titles
    assert picture.count('class="none"') == 1
    assert picture.count('class="other"') == 1, "a new channel is no failure"


def test_the_help_does_not_load_the_templates() -> None:
    code = (
        "import sys\n"
        "from nearmetal.cli.main import main\n"
        "try:\n"
        "    main(['report', '--help'])\n"
        "finally:\n"
        "    print('jinja2' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("usage: nearmetal report")
    assert done.stderr == "False\n"


def test_a_full_disk_is_an_error_in_words(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run_directory), "--output", "/dev/full"]) == 1
    words = capsys.readouterr().err
    assert "No space left on device" in words
    assert "a full disk or a missing permission?" in words
