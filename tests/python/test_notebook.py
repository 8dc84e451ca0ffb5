# SPDX-License-Identifier: Apache-2.0
"""The Python API of studies: the example of its page, on real logs, and the same as the command."""

from __future__ import annotations

import csv
import doctest
import io
import json
import re
import shutil
import xml.etree.ElementTree as ET
from importlib import resources
from pathlib import Path

import pytest

from nearmetal import notebook
from nearmetal.cli.main import main
from nearmetal.core.errors import LogError, NearmetalError
from nearmetal.study.judge import Verdict
from tests.python.made_logs import bandwidth, latency
from tests.python.made_logs import study as made_study
from tests.python.study_shared import LOGS

PAGE = Path(__file__).parents[2] / "docs/howto-notebook.md"
LABELS = """\
format: 1
run: kubernetes
arms:
  bare-metal: {platform: bare metal, fabric: EFA, placement: one rank per node}
  usernetes: {platform: rootless Kubernetes, fabric: EFA, placement: one rank per node}
sources:
  - path: "{arm}/{_}-{nodes}-{ranks}-{launch}.out"
  - path: "{arm}/{_}-{launch}.out"
    nodes: 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the page supposes it: `logs` and `study-labels.yaml`."""
    made = tmp_path_factory.mktemp("notebook")
    shutil.copytree(LOGS / "osu_repeats", made / "logs")
    (made / "study-labels.yaml").write_text(LABELS)
    return made


@pytest.fixture(scope="module")
def study(folder: Path) -> notebook.OpenStudy:
    return notebook.import_logs(
        folder / "logs", labels=folder / "study-labels.yaml", output=folder / "s"
    )


def test_the_example_of_the_page_prints_what_the_page_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    blocks = re.findall(r"^```pycon\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 3
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    said = io.StringIO()
    found = doctest.DocTestRunner(verbose=False).run(example, out=said.write)
    assert found.failed == 0, said.getvalue()
    assert found.attempted > 10
    assert ET.parse("latency.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - our own file


def test_the_verdicts_are_those_of_the_command(
    study: notebook.OpenStudy, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = study.judge("bare-metal", "usernetes", margin=10)
    argv = ["study", "judge", str(folder / "s"), "bare-metal", "usernetes", "--margin", "10"]
    assert main([*argv, "--json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == judged.verdict.value
    assert [one["verdict"] for one in told["comparisons"]] == [
        one.verdict.value for one in judged.points
    ]
    assert [one["endpoint"] for one in told["comparisons"]] == [
        one.primary for one in judged.points
    ]
    assert len(judged.primary) == sum(one.primary for one in judged.points) > 3
    assert len(list(csv.DictReader(io.StringIO(judged.csv())))) == len(judged.points)


def test_the_headline_knows_what_one_arm_lacks(tmp_path: Path) -> None:
    made = made_study(
        tmp_path, {"a": {"lat": latency(), "bw": bandwidth()}, "b": {"lat": latency()}}
    )
    judged = notebook.open_study(made).judge("a", "b", margin=10)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "INCONCLUSIVE" in judged._repr_html_()


def test_what_a_notebook_shows_is_escaped_and_needs_no_network(study: notebook.OpenStudy) -> None:
    judged = study.judge("bare-metal", "usernetes", margin=10, test="osu_bw")
    shown = judged._repr_html_()
    assert f"<b>{judged.verdict.value}</b>: {judged.why}." in shown
    assert shown.count("<tr id=") == len(judged.points)
    # Its rules would change the notebook around it.
    assert "<style" not in shown
    for picture in judged.plots():
        assert picture._repr_svg_() == picture.svg
        outside = re.sub(r'xmlns="[^"]+"', "", picture.svg)
        assert "://" not in outside
        assert ET.fromstring(picture.svg).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - our own file


def test_a_study_without_margins_has_no_verdict_but_ratios(study: notebook.OpenStudy) -> None:
    judged = study.judge("bare-metal", "usernetes", test="osu_latency")
    assert judged.verdict is Verdict.NO_MARGIN
    assert all(one.ratio is not None for one in judged.points)


@pytest.mark.parametrize(
    ("arm", "margin", "words"),
    [
        ("other", None, "no arm 'other'"),
        ("bare-metal", None, "named twice"),
        ("usernetes", 100.0, "a margin of 100.0 %"),
    ],
)
def test_wrong_requests_are_explained(
    study: notebook.OpenStudy, arm: str, margin: float | None, words: str
) -> None:
    with pytest.raises(NearmetalError, match=words):
        study.judge("bare-metal", arm, margin=margin)


def test_a_refused_log_is_named_and_the_others_are_read(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "logs", tmp_path / "logs")
    damaged = tmp_path / "logs/usernetes/osu_latency-1.out"
    damaged.write_text(damaged.read_text().replace("\n1048576", "\nbroken"))
    again = notebook.import_logs(
        tmp_path / "logs", labels=folder / "study-labels.yaml", output=tmp_path / "s"
    )
    (where,) = again.refused
    assert where == "usernetes/osu_latency-1.out"
    assert f"{where}:" in again.refused[where]
    assert len(again.cells(arm="usernetes", test="osu_latency")[0].values) == 19


def test_missing_labels_and_directories_are_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NearmetalError, match=r"osu_bw-1\.out: .* not known"):
        notebook.import_logs(folder / "logs", output=tmp_path / "s")
    with pytest.raises(LogError, match="is not a study"):
        notebook.open_study(tmp_path)


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("nearmetal").joinpath("py.typed").is_file()
