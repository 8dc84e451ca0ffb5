# SPDX-License-Identifier: Apache-2.0
"""Names, settings and tables of an adversary: one file spoils no import, and no study is trusted."""

from __future__ import annotations

import json
import os
from contextlib import closing
from typing import TYPE_CHECKING

import duckdb
import pytest

from nearmetal.core.errors import LogError, NearmetalError, SpecError
from nearmetal.study.importer import derive_again, import_study
from nearmetal.study.labels import parse_labels
from nearmetal.study.store import FACTS, SOURCES, Study
from tests.python.evidence_runs import make_run
from tests.python.test_hostile_folders import LABELS, LOG, Silent

if TYPE_CHECKING:
    from pathlib import Path

FROM_PATH = LABELS.replace("x-{launch}.out", "{arm}-{launch}.out").replace("    arm: a\n", "")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a-1.out").write_text(LOG)
    (folder / "study-labels.yaml").write_text(FROM_PATH)
    return folder


@pytest.fixture
def study(logs: Path, tmp_path: Path) -> Study:
    import_study([logs], None, tmp_path / "s", Silent())
    return Study(tmp_path / "s")


@pytest.mark.parametrize("name", [b"\xff", b"b\rc", b"b\nc", b"\x1b[2J", b'"', b"'", b","])
def test_an_arm_of_a_path_is_described_or_named(logs: Path, tmp_path: Path, name: bytes) -> None:
    with open(os.fsencode(logs) + b"/" + name + b"-2.out", "w") as file:  # noqa: PTH123 - bytes
        file.write(LOG)
    with pytest.raises(NearmetalError, match="is not described") as refused:
        import_study([logs], None, tmp_path / "s", Silent())
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("character", [r"\0", r"\r", r"\n", r"\e", r"\u202e", r"\u2028"])
@pytest.mark.parametrize("place", ["lab", "a", "bare metal", "IB", "near"])
def test_a_label_can_be_shown(place: str, character: str) -> None:
    spoiled = LABELS.replace(f" {place}", f' "{place}{character}"', 1)
    if place == "a":
        spoiled = LABELS.replace("  a:", f'  "a{character}":')
    assert spoiled != LABELS
    with pytest.raises(SpecError, match="cannot be shown"):
        parse_labels(spoiled, "f")


def spoil(tmp_path: Path, **values: object) -> Path:
    """Return a folder with a run directory whose first launch has these values."""
    run = make_run(tmp_path / "runs" / "first")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["launches"][0] |= values
    (run / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False))
    return run.parent


@pytest.mark.parametrize(
    "values",
    [
        {"arm": "a\rb\x1b[2J\0"},
        {"facts": {f"{i}{'😀' * 990}": "\x01" * 1000 for i in range(1500)}},
        {"facts": {f"{i}{chr(34) * 990}": "\\" * 4000 for i in range(1500)}},
    ],
    ids=["arm", "many settings", "quotes"],
)
def test_a_launch_cannot_spoil_the_tables_of_the_others(
    tmp_path: Path, values: dict[str, object]
) -> None:
    import_study([spoil(tmp_path, **values)], None, tmp_path / "s", Silent())
    study = Study(tmp_path / "s")
    assert any(source.status == "facts" for source in study.sources())
    assert all(source.arm.isprintable() for source in study.sources())
    before = len(list(study.cells()))
    derive_again(study.directory)
    assert len(list(study.cells())) == before > 0


def change(study: Study, table: str, query: str) -> None:
    """Rewrite a table of a study as another person could."""
    path = study.directory / table
    with closing(duckdb.connect()) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT * FROM read_parquet('{path}')")  # noqa: S608
        connection.execute(query)
        connection.execute(f"COPY t TO '{path}.new' (FORMAT parquet)")
    path.with_name(f"{table}.new").replace(path)


@pytest.mark.parametrize(
    "query",
    [
        "UPDATE t SET header = '{'",
        "UPDATE t SET header = '[]'",
        "UPDATE t SET header = '{\"a\": 1}'",
        "UPDATE t SET header = repeat('[', 100000)",
        "UPDATE t SET header = NULL",
        "UPDATE t SET remarks = '[1]'",
        "UPDATE t SET remarks = '[[' || repeat('9', 5000) || ', \"x\"]]'",
        "ALTER TABLE t DROP remarks",
    ],
)
def test_sources_of_an_adversary_are_refused(study: Study, query: str) -> None:
    change(study, SOURCES, query)
    with pytest.raises(LogError, match=r"sources|remarks"):
        study.sources()


@pytest.mark.parametrize(
    "query",
    [
        "UPDATE t SET unit = 'parsec'",
        "UPDATE t SET value = 'nan'",
        "UPDATE t SET value = '-inf'",
        "UPDATE t SET value = NULL",
        "UPDATE t SET launch = NULL",
        "UPDATE t SET line = NULL",
        "UPDATE t SET path = NULL",
        "ALTER TABLE t ALTER value TYPE VARCHAR USING 'x'",
        "ALTER TABLE t ALTER launch TYPE BIGINT USING -1",
        "ALTER TABLE t DROP metric",
    ],
)
def test_facts_of_an_adversary_are_refused(study: Study, query: str) -> None:
    change(study, FACTS, query)
    with pytest.raises(LogError) as refused:
        list(study.cells())
    assert "import again" in refused.value.hint
