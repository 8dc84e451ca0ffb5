# SPDX-License-Identifier: Apache-2.0
"""The parts of packages that need no package: manual pages, extras, places, versions."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nearmetal import __version__
from nearmetal.core import extras, resources
from nearmetal.core.errors import LaunchError
from nearmetal.study import store

ROOT = Path(__file__).parents[2]
MAN = ROOT / "tools/package/man.py"


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, MAN, folder, "1.2"], check=True, timeout=60)
    return folder


def test_every_page_of_the_manual_becomes_one_of_man(manual: Path) -> None:
    titles = [
        page.read_text().splitlines()[0].removeprefix("# ")
        for page in (ROOT / "nearmetal/share/man").glob("*.md")
    ]
    expected = {f"man{t[-2]}/{t[:-3]}.{t[-2]}" for t in titles}
    assert {str(p.relative_to(manual)) for p in manual.rglob("*.[1-9]")} == expected


def test_a_page_has_the_parts_that_man_looks_for(manual: Path) -> None:
    page = (manual / "man1/nearmetal-run.1").read_text()
    assert page.startswith("'\\\" t\n.TH NEARMETAL-RUN 1 ")
    assert '.SH "NAME"\nnearmetal\\-run \\- run an MPI program' in page
    assert page.count(".TS") == page.count(".TE") > 0
    assert page.count(".EX") == page.count(".EE") > 0
    assert re.search(r"^\.TP\n\\fB\\-\\-timeout SECONDS\\fR\n", page, re.MULTILINE)


def test_no_line_of_a_page_becomes_a_request_by_chance(manual: Path) -> None:
    ours = r"\.(TH|SH|SS|PP|TP|IP|RS|RE|EX|EE|TS|TE|in|nh|ad)( |$)|\.\\\"|'\\\" t$"
    for page in manual.rglob("*.[1-9]"):
        requests = [line for line in page.read_text().splitlines() if line.startswith((".", "'"))]
        assert [line for line in requests if not re.match(ours, line)] == [], page


def test_an_extra_that_is_missing_is_named() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in declared["optional-dependencies"]:
        error = extras.ExtraError(extra, "this", ImportError("No module named 'x'"))
        assert f"pip install 'nearmetal[{extra}]'" in error.hint


@pytest.mark.parametrize(
    ("module", "argv"),
    [
        ("pyVmomi", ("plan", "nearmetal/share/examples/vsphere-sriov.yaml")),
        ("libvirt", ("plan", "nearmetal/share/examples/vms-two.yaml")),
    ],
)
def test_the_base_works_without_extras(module: str, argv: tuple[str, ...], tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from nearmetal.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "NEARMETAL_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert "needs a Python package that is missing" in done.stderr
    assert "pip install 'nearmetal[" in done.stderr


def test_a_study_without_its_extra_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    for name in (store.FACTS, store.SOURCES):
        (tmp_path / name).touch()
    with pytest.raises(extras.ExtraError, match="a study needs a Python package"):
        store.Study(tmp_path).sources()


def test_a_program_that_is_not_there_is_named_with_what_to_do() -> None:
    with pytest.raises(LaunchError, match=r"no-such-thing is not a program") as caught:
        resources.built_program("no-such-thing")
    assert caught.value.hint == resources.REMEDY


def test_installed_files_are_looked_for_in_the_wheel_and_in_the_system(tmp_path: Path) -> None:
    places = resources.built_places("limits", [tmp_path])
    assert places[:2] == [
        ROOT / "build/c/benchmarks/limits",
        ROOT / "nearmetal/share/built/limits",
    ]
    assert tmp_path / "nearmetal/limits" in places


def test_the_version_has_one_place() -> None:
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+(\.dev[0-9]+)?", __version__)
    others = [(ROOT / name).read_text() for name in ("pyproject.toml", "meson.build")]
    assert not any(f'"{__version__}"' in text or f"'{__version__}'" in text for text in others)


def test_the_removal_of_the_guest_package_knows_every_file_that_it_writes() -> None:
    removal = (ROOT / "tools/package/debian/nearmetal-guest.postrm").read_text()
    unit = ROOT / "nearmetal/share/guest/unit"
    text = "\n".join(path.read_text() for path in unit.iterdir() if path.suffix != ".py")
    own = {name.partition(".new")[0] for name in re.findall(r"\$etc/(\w+(?:\.\w+)?)", text)}
    assert {"environment", "seed.json", "node_key"} <= own
    assert own <= set(re.findall(r"[\w.]+", removal))
    elsewhere = re.findall(r"\bput (/etc/\S*nearmetal\S*)", text)
    assert len(elsewhere) == 3
    assert [path for path in elsewhere if path not in removal] == []
