# SPDX-License-Identifier: Apache-2.0
"""The output of LBNL Node Health Check as findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearmetal.check.analyse import analyse
from nearmetal.check.nhc import failures
from nearmetal.check.profile import parse_profile
from nearmetal.cli import main
from nearmetal.core.errors import LogError
from tests.python.check_nodes import TODAY, content_of, facts_of

OUTPUT = """\
n1: ERROR:  nhc:  Health check failed:  check_fs_mount:  /home not mounted
n2: ERROR:  nhc:  Health check failed:  check_fs_mount:  /home not mounted
n2: [4] - ERROR:  nhc:  Health check failed:  check_hw_cpuinfo:  Actual CPU core count (8) does not match expected (16).
n3: Health check failed:  site-script.sh: exit 1
n4: Health check failed:  out of luck
n5: Node Health Check starting.

n5: ERROR:  nhc:  2 health checks failed.
"""


def test_failures_have_their_nodes_their_checks_and_their_words() -> None:
    found = [(nodes, seen.about, seen.value) for _, nodes, seen in failures(OUTPUT, "f")]
    core = "Actual CPU core count (8) does not match expected (16)."
    assert found == [
        (("n1",), "check_fs_mount", "/home not mounted"),
        (("n2",), "check_fs_mount", "/home not mounted"),
        (("n2",), "check_hw_cpuinfo", core),
        (("n3",), "site-script.sh", "exit 1"),
        (("n4",), "", "out of luck"),
    ]


def test_a_failure_without_its_node_is_refused_with_its_line() -> None:
    with pytest.raises(LogError, match=r"^f:2: a failure without the name of its node") as caught:
        list(failures("\nERROR:  nhc:  Health check failed:  check_x:  y\n", "f"))
    assert "pdsh -a nhc" in caught.value.hint


def test_hostile_output_is_bounded_and_printable() -> None:
    text = "n1: Health check failed:  check_x: \x1b[31m" + "y" * 100_000
    ((_, _, seen),) = failures(text, "f")
    assert len(seen.value) <= 200
    assert seen.value.isprintable()
    with pytest.raises(LogError, match="more than 20000 failures"):
        list(failures("n1: Health check failed:  check_x: y\n" * 20_001, "f"))
    # Only the newline ends a line of pdsh: a node must not speak for another one.
    for end in "\r\v\f\x1c\x85\u2028":
        text = (
            f"n1: ERROR:  nhc:  Health check failed:  check_x:  a{end}n2: Health check failed:  b"
        )
        assert [nodes for _, nodes, _ in failures(text, "f")] == [("n1",)], end
    assert not list(failures("n$(x): Health check failed:  check_x: y", "f"))


def test_the_verb_folds_their_nodes_and_exits_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, snapshot = tmp_path / "nhc.out", tmp_path / "one.json"
    output.write_text(OUTPUT)
    snapshot.write_bytes(content_of(facts_of(1)))
    assert main.main(["check", "analyse", str(snapshot), "--nhc", str(output), "--json"]) == 4
    result = json.loads(capsys.readouterr().out)
    assert result["nodes"] == ["compute-01", "n1", "n2", "n3", "n4"]
    assert "nhc.failed" in result["checks"]
    folded = [(f["about"], f["folded"]) for f in result["findings"] if f["check"] == "nhc.failed"]
    assert ("check_fs_mount", "n[1-2]") in folded
    assert len(folded) == 4
    # Without snapshots.
    assert main.main(["check", "analyse", "--nhc", str(output)]) == 4
    output.write_text("n1: all well\n")
    assert main.main(["check", "analyse", "--nhc", str(output)]) == 0
    assert main.main(["check", "analyse"]) == 2
    assert main.main(["check", "analyse", "--nhc", str(tmp_path / "none")]) == 1


def test_a_failure_can_be_suppressed() -> None:
    profile = parse_profile(
        "name: s\nbase: health_base\nsuppress:\n"
        "  - {check: nhc.failed, about: check_fs_mount, until: '2030-01-01', reason: moved}\n",
        "s.yaml",
    )
    done = analyse([], profile, silent={}, today=TODAY, reported=failures(OUTPUT, "f"))
    assert [m.finding.folded for m in done.muted] == ["n[1-2]"]
    assert "check_fs_mount" not in {f.about for f in done.findings}
