# SPDX-License-Identifier: Apache-2.0
"""The headline of a study is no better than the worst of what stands behind it."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nearmetal.cli.main import main
from nearmetal.report.study_page import headline, render_study_html, render_study_markdown
from nearmetal.report.study_rules import rules
from nearmetal.report.study_view import StudyView, study_view
from nearmetal.study.endpoints import headline_of
from nearmetal.study.judge import Verdict
from nearmetal.study.store import Study
from tests.python.made_logs import SIZES, Kind, bandwidth, latency, many_pairs, perftest, study

MIB = 1 << 20


class Judgement:
    """What `study judge` says, as text and as JSON."""

    def __init__(self, made: Path, capsys: pytest.CaptureFixture[str], *more: str) -> None:
        words = ["study", "judge", str(made), "a", "b", *more]
        capsys.readouterr()
        self.code = main(words)
        self.text = capsys.readouterr().out
        assert main([*words, "--json"]) == self.code
        self.data: dict[str, Any] = json.loads(capsys.readouterr().out)

    def line(self, begin: str) -> str:
        (found,) = [line for line in self.text.splitlines() if line.startswith(begin)]
        return found


def page(made: Path) -> StudyView:
    return study_view(Study(made), "a", ["b"], percent=None, only=None)


def card(view: StudyView) -> str:
    """Return the card of the only arm."""
    (found,) = re.findall(r'<article class="card.*?</article>', render_study_html(view), re.DOTALL)
    return str(found)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({Verdict.ACCEPT: 4}, "ACCEPT"),
        ({Verdict.ACCEPT: 2, Verdict.REFUSED: 2}, "INCONCLUSIVE"),
        ({Verdict.ACCEPT: 3, Verdict.NO_MARGIN: 1}, "INCONCLUSIVE"),
        ({Verdict.ACCEPT: 3, Verdict.MISSING: 1}, "INCONCLUSIVE"),
        ({Verdict.ACCEPT: 3, Verdict.INVALID: 1}, "INVALID"),
        ({Verdict.INCONCLUSIVE: 3, Verdict.INVALID: 1}, "INVALID"),
        ({Verdict.REJECT: 1, Verdict.INVALID: 1}, "REJECT"),
        ({Verdict.REJECT: 1, Verdict.ACCEPT: 9}, "REJECT"),
        ({Verdict.REFUSED: 3}, "REFUSED"),
        ({Verdict.REFUSED: 3, Verdict.MISSING: 1}, "REFUSED"),
        ({Verdict.NO_MARGIN: 3}, "NO MARGIN"),
        ({Verdict.REFUSED: 1, Verdict.NO_MARGIN: 1}, "INCONCLUSIVE"),
        ({Verdict.MISSING: 2}, "INCONCLUSIVE"),
    ],
)
def test_a_headline_is_accept_only_if_every_endpoint_is(
    said: dict[Verdict, int], verdict: str
) -> None:
    assert headline_of(said).value == verdict


def test_refused_endpoints_are_counted_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(
        tmp_path,
        {
            "a": {"lat": latency(), "mbw": many_pairs(64)},
            "b": {"lat": latency(), "mbw": many_pairs(1)},
        },
    )
    found = Judgement(made, capsys)
    assert found.code == 0
    why = "the window size: 64 against 1"
    assert found.line("INCONCLUSIVE: ") == (
        f"INCONCLUSIVE: 2 of 4 primary endpoints decided; 2 REFUSED ({why})"
    )
    assert found.line("REFUSED: ") == f"REFUSED: {why} (23 points)"
    assert found.data["verdict"] == "INCONCLUSIVE"
    assert found.data["endpoints"] == {"ACCEPT": 2, "REFUSED": 2}
    view = page(made)
    assert headline(view).startswith(
        f"Against a, b is not settled at 2 of 4 primary endpoints, 2 REFUSED ({why})"
    )
    assert 'class="card doubt"' in card(view)
    assert ">INCONCLUSIVE<" in card(view)
    assert f"2 REFUSED ({why})" in card(view)


def test_a_study_that_is_all_refused_does_not_exit_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, {"a": {"mbw": many_pairs(64)}, "b": {"mbw": many_pairs(1)}})
    found = Judgement(made, capsys)
    assert (found.code, found.data["verdict"]) == (4, "REFUSED")
    assert "the window size: 64 against 1 (23 points)" in found.text


def test_an_endpoint_against_physics_makes_the_headline_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(
        tmp_path,
        {"a": {"lat": latency(), "bw": bandwidth()}, "b": {"lat": latency(), "bw": bandwidth(8)}},
    )
    found = Judgement(made, capsys)
    assert (found.code, found.data["verdict"]) == (4, "INVALID")
    assert re.match(
        r"INVALID: 3 of 4 primary endpoints decided; 1 INVALID \(7\d\d\.\d Gbit/s over a line of "
        r"100 Gbit/s\)",
        found.line("INVALID: "),
    )
    view = page(made)
    assert "b is invalid, against physics, at 1 of 4 primary endpoints" in headline(view)
    assert 'class="card bad"' in card(view)


def test_a_test_that_one_arm_lacks_is_an_undecided_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, {"a": {"lat": latency(), "bw": bandwidth()}, "b": {"lat": latency()}})
    found = Judgement(made, capsys)
    assert found.line("INCONCLUSIVE: ") == (
        "INCONCLUSIVE: 2 of 4 primary endpoints decided; 2 MISSING (b has no osu_bw)"
    )
    assert found.line("only a: ") == (
        "only a: osu_bw, bandwidth, 1 B to 4 MiB (23 sizes) (endpoint: 8 B, 1 MiB): b has no osu_bw"
    )
    (gap,) = found.data["not_compared"]
    assert (gap["test"], gap["only"], gap["endpoint_sizes"]) == ("osu_bw", "a", [8, MIB])
    assert Judgement(made, capsys, "--only", "osu_latency").data["verdict"] == "ACCEPT"
    view = page(made)
    html, markdown = render_study_html(view), render_study_markdown(view)
    for text in (html, markdown, card(view)):
        assert "b has no osu_bw" in text
    assert ">MISSING<" in card(view)
    (rule,) = (rule for rule in rules(view) if rule.number == 2)
    assert "23 points of one arm only are not compared" in rule.why
    assert main(["study", "report", str(made), "a", "b", "--output", str(tmp_path / "p.html")]) == 0
    with (tmp_path / "p.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["test"] == "osu_bw"]
    assert {row["verdict"] for row in rows} == {"MISSING"}
    assert [row["size_bytes"] for row in rows if row["endpoint"] == "yes"] == ["8", str(MIB)]
    assert (rows[0]["base_n"], rows[0]["arm_n"], rows[0]["arm_median"]) == ("8", "0", "")


def test_sizes_that_one_arm_lacks_are_listed_and_open_the_headline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, {"a": {"bw": bandwidth()}, "b": {"bw": bandwidth(last=1 << 14)}})
    found = Judgement(made, capsys)
    assert found.line("INCONCLUSIVE: ") == (
        "INCONCLUSIVE: 1 of 2 primary endpoints decided; 1 MISSING (b lacks this size)"
    )
    assert "32 KiB to 4 MiB (8 sizes) (endpoint: 1 MiB)" in found.line("only a: ")
    assert "4 MiB" in render_study_markdown(page(made))


def test_an_arm_without_any_endpoint_is_not_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    middle = bandwidth(first=256, last=1 << 14)
    made = study(tmp_path, {"a": {"bw": bandwidth()}, "b": {"bw": middle}})
    found = Judgement(made, capsys)
    assert found.line("INCONCLUSIVE: ") == (
        "INCONCLUSIVE: 0 of 2 primary endpoints decided; 2 MISSING (b lacks this size)"
    )
    assert "2 MISSING (b lacks this size)" in card(page(made))


def test_every_arm_of_a_page_has_its_own_gaps(tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Kind]] = {
        "a": {"lat": latency(), "bw": bandwidth()},
        "b": {"lat": latency(), "bw": bandwidth()},
        "c": {"lat": latency()},
    }
    made = _of_three(tmp_path, kinds)
    view = study_view(Study(made), "a", ["b", "c"], percent=None, only=None)
    assert headline(view) == "Against a, 1 of 2 arms is within the margin, 1 is not settled"
    assert [len(judged.missing) for judged in view.judged] == [0, 2]
    html = render_study_html(view)
    assert "c has no osu_bw" in html
    assert "b has no osu_bw" not in html


def _of_three(folder: Path, kinds: dict[str, dict[str, Kind]]) -> Path:
    made = study(folder, {name: kinds[name] for name in "ab"})
    labels = folder / "logs" / "study-labels.yaml"
    described = next(line for line in labels.read_text().splitlines() if line.startswith("  b:"))
    rest = labels.read_text().split(described)[1].split("\nsources")[0]
    labels.write_text(
        labels.read_text().replace(
            "\nsources", f"\n{described.replace('b', 'c', 1)}{rest}\nsources"
        )
    )
    (folder / "logs" / "c").mkdir()
    dice = random.Random(3)
    for launch in range(1, 9):
        for name, kind in kinds["c"].items():
            (folder / "logs" / "c" / f"{name}-{launch}.out").write_text(kind("c", launch, dice))
    assert main(["study", "import", str(folder / "logs"), "--output", str(folder / "s")]) == 0
    return made


def only_some(kind: Kind, good: int, otherwise: Kind) -> Kind:
    """Return logs of which those after the first `good` launches are of another kind."""
    return lambda arm, launch, dice: (kind if launch <= good else otherwise)(arm, launch, dice)


def crash(arm: str, launch: int, dice: random.Random) -> str:
    whole = latency()(arm, launch, dice).splitlines()[:12]
    return "\n".join([*whole, f"[n{launch}:99] *** Process received signal ***"]) + "\n"


class LostLaunches(NamedTuple):
    """Logs of a program, those of its lost launches, and what the import says."""

    name: str
    good: Kind
    bad: Kind
    code: int
    how: str


@pytest.mark.parametrize(
    "loss",
    [
        LostLaunches("bw", bandwidth(), bandwidth(last=512), 0, "6 ended early"),
        LostLaunches("lat", latency(), crash, 1, "6 gave no numbers"),
        LostLaunches("pt", perftest(), perftest(last=1 << 15), 0, "6 ended early"),
    ],
)
def test_survivors_are_no_accept(
    loss: LostLaunches, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, good, bad, code, how = loss
    arms = {"a": {name: good}, "b": {name: only_some(good, 6, bad)}}
    made = study(tmp_path, arms, 12, code)
    assert f"b: of 12 launches {how}" in capsys.readouterr().out
    found = Judgement(made, capsys)
    mark = "survivors only: b lost 6 of 12 launches, a 0 of 12"
    assert found.data["verdict"] == "INCONCLUSIVE"
    assert "INCONCLUSIVE (too many launches were lost)" in found.line("INCONCLUSIVE: ")
    assert found.line("INCONCLUSIVE: ").endswith(f"; {mark}")
    assert found.data["survivors"] == mark
    assert found.line("b: of 12") == f"b: of 12 launches {how}"
    endpoint = next(c for c in found.data["comparisons"] if c["endpoint"] and c["size"] == MIB)
    assert (endpoint["base"]["n"], endpoint["arm"]["n"]) == (12, 6)
    assert endpoint["launches_lost"] == {"base": 0, "arm": 6}
    assert "launches were lost (0 of 12 of a, 6 of 12 of b)" in endpoint["reason"]
    view = page(made)
    assert mark in headline(view)
    assert mark in card(view)
    assert 'class="card doubt"' in card(view)
    assert "Lost launches" in render_study_markdown(view)


def test_one_lost_launch_of_many_is_marked_and_does_not_hide_an_accept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = only_some(latency(), 11, crash)
    made = study(tmp_path, {"a": {"lat": latency()}, "b": {"lat": lost}}, 12, 1)
    found = Judgement(made, capsys)
    assert found.data["verdict"] == "ACCEPT"
    assert found.line("ACCEPT: ").endswith("survivors only: b lost 1 of 12 launches, a 0 of 12")
    assert 'class="card doubt"' in card(page(made))


def test_equal_losses_have_no_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = only_some(latency(), 10, crash)
    made = study(tmp_path, {"a": {"lat": lost}, "b": {"lat": lost}}, 12, 1)
    found = Judgement(made, capsys)
    assert (found.data["verdict"], found.data["survivors"]) == ("ACCEPT", "")
    assert found.line("a: of 12") == "a: of 12 launches 2 gave no numbers"


def test_perftest_without_its_closing_line_is_cut_off_in_every_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, {"a": {"pt": perftest()}, "b": {"pt": perftest(last=1 << 15)}})
    assert "b: of 8 launches 8 ended early" in capsys.readouterr().out
    found = Judgement(made, capsys)
    assert found.data["verdict"] == "INCONCLUSIVE"
    assert "1 MISSING (b lacks this size)" in found.text
    assert "survivors only: b lost 8 of 8 launches, a 0 of 8" in found.text
    assert "b/pt-1.out: rdma_write_bw: the closing line is missing" in render_study_markdown(
        page(made)
    )


def test_logs_that_begin_at_other_sizes_are_not_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A starter of perftest runs each size alone: a file of a small size does not end early."""

    def one_size(arm: str, launch: int, dice: random.Random) -> str:
        lines = perftest()(arm, launch, dice).splitlines(keepends=True)
        rows = [line for line in lines if line.startswith(" ") and line.split()[0].isdigit()]
        return "".join(line for line in lines if line not in rows or line == rows[12 + launch % 3])

    made = study(tmp_path, {"a": {"pt": one_size}, "b": {"pt": one_size}}, 9)
    assert "ended early" not in capsys.readouterr().out
    found = Judgement(made, capsys)
    assert found.data["launches"]["b"] == {"launches": 9, "failed": 0, "early": 0}


def pairs_of(*pairs: str) -> Kind:
    """Return logs with one table per pair of nodes."""

    def text(arm: str, launch: int, dice: random.Random) -> str:
        return "".join(f"pair: {pair}\n{latency()(arm, launch, dice)}" for pair in pairs)

    return text


def test_pairs_of_one_arm_are_listed_and_the_other_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"a": {"l": pairs_of("n1 n2", "n3 n4")}, "b": {"l": pairs_of("n5 n6", "n3 n4")}}
    found = Judgement(study(tmp_path, arms), capsys)
    assert found.data["verdict"] == "INCONCLUSIVE"
    assert "2 of 6 primary endpoints decided; 4 MISSING" in found.line("INCONCLUSIVE: ")
    assert "the pairs: n1 and n2 in a, n3 and n4, n5 and n6 in b" in found.line("only a: ")
    assert "the pairs: n5 and n6 in b, n1 and n2, n3 and n4 in a" in found.line("only b: ")
    row = next(line for line in found.text.splitlines() if "osu_latency" in line)
    assert "n3 and n4" in row


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (
            pairs_of("bm1 bm2", "bm3 bm4"),
            pairs_of("vm1 vm2", "vm3 vm4"),
            "the pairs: bm1 and bm2 in a, vm1 and vm2, vm3 and vm4 in b",
        ),
        (
            latency(
                head="Process 0 of 2 is on n1\nProcess 1 of 2 is on n1\n# OSU MPI Latency Test v5.8"
            ),
            latency(),
            "the nodes: 1 in a, 2 in b",
        ),
        (
            latency(
                head="# OSU MPI-CUDA Latency Test v5.8\n"
                "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)"
            ),
            latency(),
            "the mode: cuda in a, none in b",
        ),
    ],
)
def test_arms_without_a_common_point_say_what_differs(
    ours: Kind, theirs: Kind, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, {"a": {"l": ours}, "b": {"l": theirs}})
    capsys.readouterr()
    assert main(["study", "judge", str(made), "a", "b"]) == 1
    said = capsys.readouterr().err
    assert "a and b have no point in common" in said
    assert f"{why} ({len(SIZES)} points)" in said
    assert "its pairs and its nodes decide" in said


def test_a_datatype_that_one_log_shows_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for datatype, marks in (
        ("MPI_INT", ["the datatype: not known against MPI_INT"]),
        ("MPI_CHAR", []),
    ):
        head = f"# OSU MPI Latency Test v5.8\n# Datatype: {datatype}."
        arms = {"a": {"l": latency()}, "b": {"l": latency(head=head)}}
        found = Judgement(study(tmp_path / datatype, arms), capsys)
        assert found.data["comparisons"][0]["watermarks"] == marks


def test_a_rate_that_is_not_the_bandwidth_is_invalid_in_all_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, {"a": {"pt": perftest()}, "b": {"pt": perftest(rate=2.0)}})
    found = Judgement(made, capsys)
    assert (found.code, found.data["verdict"]) == (4, "INVALID")
    assert {v["arm"] for v in found.data["violations"]} == {"b"}
    assert "million messages/s of" in found.data["violations"][0]["what"]


def test_perftest_on_one_port_is_in_one_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {"a": {"pt": perftest(ports=("0xd06", "0xd06"))}, "b": {"pt": perftest()}}
    made = study(tmp_path, kinds)
    for arm, nodes, placement in (("a", 1, "in one node"), ("b", 2, "")):
        cells = list(Study(made).cells(arm=arm))
        assert {(c.point.nodes, c.point.setup.placement) for c in cells} == {(nodes, placement)}
    capsys.readouterr()
    assert main(["study", "judge", str(made), "a", "b"]) == 1
    assert "the nodes: 1 in a, 2 in b" in capsys.readouterr().err


@pytest.mark.parametrize("ports", [("0000", "0000"), ("0x0000", "0x0000"), ("0x01", "0x02")])
def test_ports_without_an_equal_address_are_in_two_nodes(
    ports: tuple[str, str], tmp_path: Path
) -> None:
    kinds = {arm: {"pt": perftest(ports=ports)} for arm in "ab"}
    cells = list(Study(study(tmp_path, kinds, 1)).cells(arm="a"))
    assert {(c.point.nodes, c.point.setup.placement) for c in cells} == {(2, "")}


def test_a_failed_import_leaves_no_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs" / "a").mkdir(parents=True)
    (tmp_path / "logs" / "a" / "lat-1.out").write_text("# OSU MPI Latency Test v5.8\n")
    target = tmp_path / "s"
    words = ["study", "import", str(tmp_path / "logs"), "--output", str(target)]
    assert main(words) == 1
    assert not target.exists()
    target.mkdir()
    assert main(words) == 1
    assert list(target.iterdir()) == []
    made = study(tmp_path / "good", {arm: {"lat": latency()} for arm in "ab"})
    before = sorted(made.rglob("*"))
    assert main([*words[:-1], str(made)]) == 1
    assert sorted(made.rglob("*")) == before, "an older study stays as it is"
    capsys.readouterr()


def test_a_number_of_launches_has_its_plural(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for launches, words in ((5, "(+1 launch)"), (4, "(+2 launches)")):
        made = study(tmp_path / str(launches), {arm: {"l": latency()} for arm in "ab"}, launches)
        assert words in Judgement(made, capsys).text
        noun = words.strip("(+)")
        assert f"an interval needs {noun.replace(' ', ' more ')}" in render_study_html(page(made))
