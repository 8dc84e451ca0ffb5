# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearmetal.core.errors import LogError
from nearmetal.evidence import load_run, read_manifest, write_manifest
from tests.python.evidence_runs import make_launch, make_run, patterns_log

NETPIPE = (Path(__file__).parent / "golden" / "logs" / "netpipe.txt").read_text()


def test_every_fact_is_in_the_raw_line_it_names(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "r"))
    assert len(run.facts) > 300
    for fact in run.facts:
        words = run.texts[fact.file].splitlines()[fact.line - 1].split()
        assert words[0] == str(fact.size)
        assert fact.value in [float(w) for w in words]


def test_facts_can_be_selected(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "r"))
    found = run.select(arm="stock", test="pingpong", size=8, metric="time_p50")
    assert [f.block for f in found] == [0, 1, 2]


def test_a_manifest_survives_writing_and_reading(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r")
    manifest = read_manifest(directory)
    write_manifest(directory, manifest)
    assert read_manifest(directory) == manifest
    assert sorted(p.name for p in directory.iterdir()) == ["manifest.json", "raw"]


def test_a_failed_launch_has_text_but_no_facts(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r", blocks=1)
    manifest = read_manifest(directory)
    bad = make_launch(directory, 99, "cut off", exit_code=139)
    write_manifest(directory, manifest.model_copy(update={"launches": (*manifest.launches, bad)}))
    run = load_run(directory)
    assert run.texts[bad.stdout] == "cut off"
    assert not run.select(launch=99)


def test_a_good_launch_with_damaged_output_is_an_error(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r", blocks=1)
    manifest = read_manifest(directory)
    bad = make_launch(directory, 99, patterns_log(1, 1)[:200])
    write_manifest(directory, manifest.model_copy(update={"launches": (*manifest.launches, bad)}))
    with pytest.raises(LogError, match=r"raw/0099.out:\d+: "):
        load_run(directory)


def test_netpipe_that_stopped_early_is_an_error(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r", blocks=1)
    manifest = read_manifest(directory)
    bad = make_launch(directory, 99, NETPIPE, log_format="netpipe", last_size=4 << 20)
    write_manifest(directory, manifest.model_copy(update={"launches": (*manifest.launches, bad)}))
    with pytest.raises(LogError, match="4194304 was requested"):
        load_run(directory)


def test_raw_output_that_was_edited_is_refused(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r")
    path = directory / "raw" / "0002.out"
    path.write_text(path.read_text().replace("0.3000", "0.1000"))
    with pytest.raises(LogError, match="not what was recorded"):
        load_run(directory)


def test_missing_raw_output_and_links_are_refused(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "r")
    path = directory / "raw" / "0002.out"
    content = path.read_text()
    path.unlink()
    with pytest.raises(LogError, match="No such file"):
        load_run(directory)
    outside = tmp_path / "outside"
    outside.write_text(content)
    path.symlink_to(outside)
    with pytest.raises(LogError, match="a link"):
        load_run(directory)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"format": 2}, "format"),
        ({"launches": [{"number": 1}]}, "launches"),
        ({"unknown": 1}, "unknown"),
        ({"blocks": "three"}, "blocks"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(
    tmp_path: Path, change: dict[str, object], expected: str
) -> None:
    directory = make_run(tmp_path / "r", blocks=1)
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LogError, match=expected):
        read_manifest(directory)


@pytest.mark.parametrize("name", ["../x.out", "raw/../../x", "/etc/passwd", "raw/.x", "raw/a/b"])
def test_a_raw_file_outside_the_run_directory_is_refused(tmp_path: Path, name: str) -> None:
    directory = make_run(tmp_path / "r", blocks=1)
    path = directory / "manifest.json"
    data = json.loads(path.read_text())
    data["launches"][0]["stdout"] = name
    path.write_text(json.dumps(data))
    with pytest.raises(LogError, match="stdout"):
        load_run(directory)


@pytest.mark.parametrize("text", ["", "{", "[" * 100000, "\x00", "null"])
def test_what_is_no_json_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(LogError, match=r"manifest\.json: "):
        read_manifest(tmp_path)


def test_a_directory_without_manifest_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="not a run directory") as caught:
        read_manifest(tmp_path)
    assert "bench" in caught.value.hint
