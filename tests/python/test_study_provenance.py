# SPDX-License-Identifier: Apache-2.0
"""A number comes from a place, the line of a file. Other files may have the same bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from nearmetal.core.errors import LogError
from nearmetal.evidence import read_manifest, write_manifest
from nearmetal.report.study_page import render_study_html
from nearmetal.report.study_rules import rules
from nearmetal.report.study_view import raw_lines, study_view
from nearmetal.study.gate import RecordedFacts
from nearmetal.study.importer import derive_again, import_study
from nearmetal.study.store import FACTS, Study
from tests.python.evidence_runs import make_run
from tests.python.test_hostile_folders import Silent
from tests.python.test_hostile_tables import change

if TYPE_CHECKING:
    from pathlib import Path

ARMS = ("metal", "vm", "vm-2")
LABELS = """\
format: 1
run: lab
arms:
  metal: {platform: bare metal, fabric: IB, placement: near, cores_per_node: 48}
  vm: {platform: VM, fabric: IB, placement: near, cores_per_node: 44}
  vm-2: {platform: VM, fabric: IB, placement: near, cores_per_node: 44}
sources:
  - path: "*/*.txt"
    ignore: notes
  - path: "{arm}/run-{launch}.out"
    nodes: 2
    repeated: true
"""
LOG = """\
# OSU MPI Latency Test v7.2
# Size          Latency (us)
1                       1.21
2                       1.22
4                       1.23
8                       1.24
"""
LAUNCHES = 6


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three arms whose logs all have the same bytes."""
    for arm in ARMS:
        folder = tmp_path / "logs" / arm
        folder.mkdir(parents=True)
        for launch in range(1, LAUNCHES + 1):
            (folder / f"run-{launch}.out").write_text(LOG)
        (folder / "notes.txt").write_text("the same words in each arm")
    (tmp_path / "logs" / "study-labels.yaml").write_text(LABELS)
    return tmp_path / "logs"


@pytest.fixture
def study(logs: Path) -> Study:
    import_study([logs], None, logs.parent / "s", Silent())
    return Study(logs.parent / "s")


def test_each_launch_shows_the_file_of_its_own_arm(study: Study) -> None:
    view = study_view(study, "metal", ["vm", "vm-2"], percent=None, only=None)
    raw, left_out = raw_lines(view)
    assert (len(raw), left_out) == (3 * 4, 0)
    for cell in raw:
        line = 3 + (1, 2, 4, 8).index(cell.cell.point.size or 0)
        places = [f"{cell.cell.arm}/run-{n}.out:{line}" for n in range(1, LAUNCHES + 1)]
        assert [where for _, where, _ in cell.rows] == places
    text = render_study_html(view)
    assert all(f"{arm}/run-{n}.out" in text for arm in ARMS for n in range(1, LAUNCHES + 1))


def test_files_of_no_numbers_are_counted_one_by_one(study: Study) -> None:
    view = study_view(study, "metal", ["vm"], percent=None, only=None)
    found = {rule.number: rule for rule in rules(view)}
    assert found[2].why.startswith("3 files were left out")
    assert render_study_html(view).count("ignored: notes") == 3


def test_a_copy_does_not_take_the_place_of_its_original(logs: Path) -> None:
    labels = (logs / "study-labels.yaml").read_text().replace("    repeated: true\n", "")
    (logs / "study-labels.yaml").write_text(labels)
    for n in range(1, LAUNCHES + 1):
        for arm, extra in (("metal", 0), ("vm", 50)):
            (logs / arm / f"run-{n}.out").write_text(LOG.replace("1.2", f"{n + extra}.2"))
    summary = import_study([logs], None, logs.parent / "s", Silent())
    assert summary.duplicates == LAUNCHES, "vm-2 has copies of metal/run-1.out"
    view = study_view(Study(logs.parent / "s"), "metal", ["vm"], percent=None, only=None)
    places = [where for raw in raw_lines(view)[0] for _, where, _ in raw.rows]
    assert {place.partition("/")[0] for place in places} == {"metal", "vm"}


def test_the_tables_keep_places_when_they_are_derived_again(study: Study) -> None:
    before = [cell.observations for cell in study.cells()]
    change(study, FACTS, "UPDATE t SET path = 'elsewhere'")
    derive_again(study.directory)
    assert [cell.observations for cell in study.cells()] == before


def test_equal_output_does_not_mix_the_records_of_launches(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "first")
    manifest = json.loads((run / "manifest.json").read_text())
    good = [launch for launch in manifest["launches"] if launch["program"] == "patterns"][:2]
    for launch, binding in zip(good, ("core", "none"), strict=True):
        launch["facts"] = {"binding": binding}
    content = (run / good[0]["stdout"]).read_bytes()
    (run / good[1]["stdout"]).write_bytes(content)
    good[1]["stdout_sha256"] = good[0]["stdout_sha256"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    import_study([run.parent], None, tmp_path / "s", Silent())
    study = Study(tmp_path / "s")
    recorded = RecordedFacts(study.files())
    seen = {
        one.source: recorded._sources[one.source].header
        for cell in study.cells()
        for one in cell.observations
    }
    for launch, binding in zip(good, ("core", "none"), strict=True):
        (header,) = (h for path, h in seen.items() if path.endswith(launch["stdout"]))
        assert header["launch: binding"] == binding


def test_two_folders_with_one_path_are_not_mixed(logs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "vm").mkdir(parents=True)
    (other / "vm" / "run-2.out").write_text(LOG.replace("1.2", "9.2"))
    summary = import_study([logs, other], None, tmp_path / "s", Silent())
    assert list(summary.refused) == ["vm/run-2.out"]
    assert "another file has this path" in summary.refused["vm/run-2.out"]
    (cell,) = Study(tmp_path / "s").cells(arm="vm", size=1)
    assert cell.values == (1.21,) * LAUNCHES


def test_a_place_that_no_file_has_is_refused(study: Study) -> None:
    change(study, FACTS, "UPDATE t SET path = 'elsewhere'")
    with pytest.raises(LogError, match=r"no file 'elsewhere' in sources\.parquet"):
        study_view(study, "metal", ["vm"], percent=None, only=None)


def test_two_launches_of_a_run_have_files_of_their_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    manifest = read_manifest(run)
    first, second, *others = manifest.launches
    update = {"stdout": first.stdout, "stdout_sha256": first.stdout_sha256}
    launches = (first, second.model_copy(update=update), *others)
    write_manifest(run, manifest.model_copy(update={"launches": launches}))
    with pytest.raises(LogError, match=r"launches 1 and \d+ name the same raw file"):
        read_manifest(run)
