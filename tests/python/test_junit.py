# SPDX-License-Identifier: Apache-2.0
"""JUnit reports: a schema that is narrower than that of Jenkins, and the verdicts of studies."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from nearmetal.check import outputs
from nearmetal.check.model import Gravity
from nearmetal.cli.main import main
from nearmetal.core.junit import JunitCase, JunitRemark, JunitTag, junit_report
from tests.python import check_nodes
from tests.python.made_logs import LABELS, Kind, bandwidth, latency, logs, many_pairs, study

SCHEMA = Path(__file__).with_name("junit.xsd")


def checked(text: str, folder: Path) -> ET.Element:
    """Return the root of a report that fits the schema, and whose counts are true."""
    path = folder / "checked.xml"
    path.write_text(text, encoding="utf-8")
    done = xmllint(path)
    assert done.returncode == 0, done.stderr
    root = ET.fromstring(text)  # noqa: S314 - our own text
    for suite in root:
        assert suite.get("tests") == str(len(suite))
        for counts, tag in (("errors", "error"), ("failures", "failure"), ("skipped", "skipped")):
            assert suite.get(counts) == str(sum(case.find(tag) is not None for case in suite))
    return root


def xmllint(path: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("xmllint")
    assert program is not None, "set-up installs libxml2-utils"
    argv = [program, "--nonet", "--noout", "--schema", str(SCHEMA), str(path)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def outcomes(suite: ET.Element) -> dict[str, list[str]]:
    """Return the kinds of the cases of each test; a case that passed has its verdict in a note."""
    found: dict[str, list[str]] = {}
    for case in suite:
        remark = case[0]
        kind = remark.get("type") or (remark.text or "").partition(":")[0]
        found.setdefault(case.get("classname", ""), []).append(f"{remark.tag} {kind}")
    return found


def judged(made: Path, folder: Path, *more: str) -> tuple[int, ET.Element]:
    report = folder / "verdicts.xml"
    code = main(["study", "judge", str(made), "a", "b", "--junit", str(report), *more])
    (suite,) = checked(report.read_text(encoding="utf-8"), folder)
    return code, suite


def red(suite: ET.Element) -> bool:
    return suite.get("failures") != "0" or suite.get("errors") != "0"


def test_one_case_for_the_headline_and_each_point(tmp_path: Path) -> None:
    made = study(
        tmp_path,
        {
            "a": {"lat": latency(), "bw": bandwidth(), "mbw": many_pairs(64)},
            "b": {"lat": latency(3.0), "bw": bandwidth(), "mbw": many_pairs(1)},
        },
    )
    code, suite = judged(made, tmp_path, "--margin", "5")
    assert (code, suite.get("name")) == (4, "b against a")
    found = outcomes(suite)
    assert found["b"] == ["failure REJECT"]
    assert set(found["b.osu_latency"]) == {"failure REJECT"}
    assert set(found["b.osu_bw"]) == {"system-out ACCEPT"}
    assert set(found["b.osu_mbw_mr"]) == {"skipped REFUSED"}
    failure = suite.find("testcase[@classname='b.osu_latency']/failure")
    assert failure is not None
    assert (failure.text or "").startswith(f"{failure.get('message')}\na: median ")
    loss = r"\nloss \+\d{3} %, ratio (2\.9|3\.0)\d+, 95 % interval 2\.\d{3} to 3\.\d{3}$"
    assert re.search(loss, failure.text or "", re.MULTILINE)


def test_what_only_one_arm_has_is_skipped(tmp_path: Path) -> None:
    made = study(tmp_path, {"a": {"lat": latency(), "bw": bandwidth()}, "b": {"lat": latency()}})
    code, suite = judged(made, tmp_path, "--margin", "5")
    assert (code, red(suite)) == (0, False)
    assert set(outcomes(suite)["b.osu_bw"]) == {"skipped MISSING"}
    assert outcomes(suite)["b"] == ["skipped INCONCLUSIVE"]


@pytest.mark.parametrize(
    ("arm", "headline"),
    [
        ({"lat": latency(), "bw": bandwidth()}, "system-out ACCEPT"),
        ({"lat": latency(3.0), "bw": bandwidth()}, "failure REJECT"),
        ({"lat": latency(), "bw": bandwidth(8)}, "error INVALID"),
    ],
)
def test_a_report_is_red_if_and_only_if_judge_exits_with_4(
    tmp_path: Path, arm: dict[str, Kind], headline: str
) -> None:
    made = study(tmp_path, {"a": {"lat": latency(), "bw": bandwidth()}, "b": arm})
    code, suite = judged(made, tmp_path, "--margin", "5")
    assert outcomes(suite)["b"] == [headline]
    assert red(suite) == (code == 4) == (not headline.endswith("ACCEPT"))


def test_a_study_that_is_all_refused_is_red(tmp_path: Path) -> None:
    made = study(tmp_path, {"a": {"mbw": many_pairs(64)}, "b": {"mbw": many_pairs(1)}})
    code, suite = judged(made, tmp_path)
    assert (code, outcomes(suite)["b"]) == (4, ["error REFUSED"])


def test_an_impossible_value_of_one_arm_alone_is_an_error(tmp_path: Path) -> None:
    made = study(tmp_path, {"a": {"lat": latency()}, "b": {"lat": latency(), "bw": bandwidth(8)}})
    code, suite = judged(made, tmp_path, "--margin", "5")
    kinds = outcomes(suite)["b.osu_bw"]
    assert (code, set(kinds)) == (4, {"skipped MISSING", "error INVALID"})


def test_the_report_of_a_page_has_a_suite_for_each_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"a": 1.0, "b": 1.01, "c": 3.0}
    folder = logs(tmp_path, {arm: {"lat": latency(factor)} for arm, factor in arms.items()}, 8)
    third = "  c: {platform: VM, fabric: IB, placement: one rank per node}\nsources:"
    (folder / "study-labels.yaml").write_text(LABELS.replace("sources:", third))
    made, report = tmp_path / "s", tmp_path / "page.xml"
    assert main(["study", "import", str(folder), "--output", str(made)]) == 0
    words = ["study", "report", str(made), "a", "b", "c", "--margin", "5", "--json"]
    capsys.readouterr()
    assert main([*words, "--junit", str(report)]) == 0
    assert f'"{report}"' in capsys.readouterr().out
    first, second = checked(report.read_text(encoding="utf-8"), tmp_path)
    assert (first.get("name"), second.get("name")) == ("b against a", "c against a")
    assert (red(first), red(second)) == (False, True)
    # The same study gives the same bytes.
    before = report.read_bytes()
    assert main([*words, "--junit", str(report)]) == 0
    assert report.read_bytes() == before


def test_equal_names_get_numbers_that_no_other_case_has(tmp_path: Path) -> None:
    names = ["a", "a", "a (2)", "a", "x\x1b", "x\\x1b"]
    text = junit_report("r", {"s": [JunitCase("g", name) for name in names]})
    found = [case.get("name") for case in checked(text, tmp_path)[0]]
    assert found == ["a", "a (2)", "a (2) (2)", "a (3)", "x\\x1b", "x\\x1b (2)"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "", "-"])
def test_a_report_goes_to_a_file_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    made = study(tmp_path, {"a": {"lat": latency()}, "b": {"lat": latency()}})
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    path = kind if kind in {"", "-"} else str(tmp_path / kind)
    assert main(["study", "judge", str(made), "a", "b", "--junit", path]) == 2
    assert "argument --junit" in capsys.readouterr().err
    assert stat.S_ISFIFO((tmp_path / "fifo").lstat().st_mode)
    assert not list(tmp_path.rglob("*.new"))


def test_a_report_in_no_directory_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, {"a": {"lat": latency()}, "b": {"lat": latency()}})
    path = tmp_path / "absent/report.xml"
    assert main(["study", "judge", str(made), "a", "b", "--junit", str(path)]) == 1
    assert f"there is no such directory: '{path.parent}'" in capsys.readouterr().err


def test_a_report_goes_through_a_link_and_not_over_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = study(tmp_path, {"a": {"lat": latency()}, "b": {"lat": latency()}})
    link, target, page = tmp_path / "link.xml", tmp_path / "target.xml", tmp_path / "page.html"
    target.write_text("old")
    link.symlink_to(target)
    words = ["study", "report", str(made), "a", "b", "--margin", "5", "--output", str(page)]
    assert main([*words, "--junit", str(link)]) == 0
    assert link.is_symlink()
    checked(target.read_text(encoding="utf-8"), tmp_path)
    before = page.read_bytes()
    capsys.readouterr()
    assert main([*words, "--junit", str(page)]) == 2
    assert "is a file of the report" in capsys.readouterr().err
    assert page.read_bytes() == before


def test_the_report_of_a_check_fits_the_schema(tmp_path: Path) -> None:
    full = {"options": "rw", "bytes": 100, "free": 0, "inodes": 100, "inodes_free": 0}
    found = check_nodes.judged([check_nodes.node(1, ("storage>/x", full))])
    for least in Gravity:
        root = checked(outputs.junit(found, least), tmp_path)
        case = next(c for c in root.iter("testcase") if c.get("name") == "storage.full")
        # Two findings of one check: a service shows only the first failure of a case.
        assert len(case) == 1
        assert (case[0].text or "").count("remedy: ") == 2


def test_the_gravest_remark_names_the_element_and_none_is_lost(tmp_path: Path) -> None:
    remarks = [JunitRemark(tag, tag.name, f"of {tag}") for tag in reversed(JunitTag)]
    case = JunitCase("g", "n", tuple(remarks))
    ((found, *_),) = checked(junit_report("r", {"s": [case]}), tmp_path)
    assert [element.tag for element in found] == ["error", "system-out"]
    assert found[0].get("message") == "of error (and 2 more)"
    assert found[0].text == "of error\nof failure\nof skipped"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    name = 'a\x1b[2J\x00\ud800\uffff]]><failure/>&"\n'
    case = JunitCase(name, name, (JunitRemark(JunitTag.ERROR, name, name, name),))
    suite = checked(junit_report(name, {name: [case, case]}), tmp_path)[0]
    assert suite.get("errors") == "2"
    assert [c.get("name", "")[-4:] for c in suite] == ['&"\\n', " (2)"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('errors="0"', ""),
        ('tests="1"', 'tests="x"'),
        ("testcase", "case"),
        ('classname="g"', ""),
        ("</testsuite>", '<testcase classname="g" name="n"/></testsuite>'),
    ],
)
def test_the_schema_refuses_what_jenkins_refuses(tmp_path: Path, old: str, new: str) -> None:
    good = junit_report("r", {"s": [JunitCase("g", "n")]})
    checked(good, tmp_path)
    assert old in good
    (tmp_path / "bad.xml").write_text(good.replace(old, new))
    assert xmllint(tmp_path / "bad.xml").returncode == 3
