# SPDX-License-Identifier: Apache-2.0
"""What reviewers of distributions ask of the rules of packages, and the guards of a release."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools/package"
SPEC = (TOOLS / "rpm/nearmetal.spec").read_text()


def test_the_list_of_contents_has_the_licence_of_what_declares_one() -> None:
    done = subprocess.run(
        [sys.executable, TOOLS / "sbom.py", "1.2", "0"], capture_output=True, check=True, timeout=60
    )
    listed = {one["name"]: one for one in json.loads(done.stdout)["packages"]}
    assert {n for n, one in listed.items() if one["licenseDeclared"] == "NOASSERTION"} == {
        "clustershell",  # LGPLv2+, with the text of 2.1
        "jinja2",  # "BSD License" is one of several
    }
    told = (TOOLS / "debian/copyright").read_text()
    for name, one in listed.items():
        found = one["licenseDeclared"].partition(" ")[0]
        short = re.sub(r"(-only|-or-later)$", "", found).replace("BSD-2-Clause", "BSD")
        assert found == "NOASSERTION" or short.replace("BSD-3-Clause", "BSD") in told, name
    tag = re.search(r"^License: (Apache-2.0 AND .*)$", SPEC, re.MULTILINE)
    assert tag is not None
    expressions = {one["licenseDeclared"] for one in listed.values()} - {"NOASSERTION"}
    assert {e for e in expressions if " OR Apache-2.0" not in e} <= set(tag[1].split(" AND "))
    assert metadata.metadata("clustershell")["License"] == "LGPLv2+"
    assert "LGPL-2.1-or-later" in tag[1]


@pytest.mark.skipif(shutil.which("rpmspec") is None, reason="no rpmspec")
def test_the_rpms_provide_what_they_hold_of_others(tmp_path: Path) -> None:
    for name in ("jinja2-3.1.6-py3", "pydantic_core-2.5-cp311", "pydantic_core-2.5-cp313"):
        (tmp_path / f"{name}-x.whl").touch()
    (tmp_path / "duckdb-2.0.0-cp311-x.whl").touch()
    (tmp_path / "requirements.txt").touch()
    given = {"version": "1.2", "source": "1.2", "wheels": tmp_path, "mpich": "/m", "python": "p"}
    words = [w for n, value in given.items() for w in ("--define", f"nearmetal_{n} {value}")]
    form = ["--qf", "%{name}: [%{providename} ]\\n"]
    done = subprocess.run(
        ["rpmspec", "-q", *form, *words, TOOLS / "rpm/nearmetal.spec"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    held = {
        line.partition(":")[0]: re.findall(r"bundled\(python3dist\(([^)]*)\)\)", line)
        for line in done.stdout.splitlines()
    }
    assert held == {
        "nearmetal": ["jinja2", "pydantic-core"],
        "libnearmetal-fi": [],
        "nearmetal-study": ["duckdb"],
        "nearmetal-computed": [],
        "nearmetal-guest": [],
    }


def test_the_guest_rpm_leaves_neither_its_directory_nor_its_service() -> None:
    own = SPEC.partition("%files guest\n")[2]
    assert "%dir /usr/lib/nearmetal\n" in own
    before = SPEC.partition("%preun guest\n")[2].partition("\n%postun")[0]
    assert "systemctl --no-reload disable --now nearmetal-guest.service" in before


def test_an_upgrade_of_computed_does_not_end_its_service() -> None:
    env = os.environ | {"PACKAGE_WHEELS": "/w", "PACKAGE_MPICH": "/m"}
    argv = ["make", "-n", "-f", str(TOOLS / "debian/rules"), "override_dh_installsystemd"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60)
    (line,) = [one for one in done.stdout.splitlines() if "nearmetal-computed" in one]
    # --no-start also leaves out the start after an upgrade, and the stop before a removal.
    assert line.split()[1:] == ["--package=nearmetal-computed", "--no-enable"]
    after = SPEC.partition("%postun computed\n")[2].partition("\n%preun")[0]
    assert "systemctl try-restart nearmetal-computed.service" in after


@pytest.mark.parametrize("missing", ["PACKAGE_WHEELS", "PACKAGE_MPICH"])
def test_a_debian_build_without_a_variable_names_it(missing: str) -> None:
    env = os.environ | {"PACKAGE_WHEELS": "/w", "PACKAGE_MPICH": "/m"}
    argv: list[str | Path] = [
        "make",
        "-n",
        "-f",
        TOOLS / "debian/rules",
        "override_dh_auto_configure",
    ]
    done = subprocess.run(
        argv, env=env | {missing: ""}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert f"{missing} is not set: see the head of debian/rules" in done.stderr


def test_the_recipes_refuse_processors_that_the_code_does_not_know() -> None:
    for name in ("nearmetal", "libnearmetal-fi"):
        text = (TOOLS / f"spack/packages/{name}/package.py").read_text()
        assert '    requires("target=x86_64:", ' in text


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A clone that is ready for a release, whose packages are one file."""
    root = tmp_path / "clone"
    (root / "tools/package").mkdir(parents=True)
    (root / "nearmetal").mkdir()
    shutil.copy(TOOLS / "release.sh", root / "tools/package")
    packages = root / "tools/package/packages.sh"
    packages.write_text('#!/bin/sh\nmkdir -p "$1"; cat "$0.sums" >"$1/SHA256SUMS"\n')
    packages.chmod(0o755)
    packages.with_name("packages.sh.sums").write_text("same\n")
    (root / "nearmetal/__init__.py").write_text('__version__ = "1.2.0"\n')
    (root / "CHANGELOG.md").write_text("## 1.2.0 - 2026-01-01\n")
    (root / "CITATION.cff").write_text("version: 1.2.0\n")
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "tag.gpgSign=false")
    subprocess.run(["git", "-C", root, *who, *words], check=True, timeout=60)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "-c", "commit.gpgSign=false", "commit", "--quiet", "--message=x")
    git(root, "tag", "--force", "v1.2.0")


def released(root: Path) -> subprocess.CompletedProcess[str]:
    script = root / "tools/package/release.sh"
    return subprocess.run(
        [script, root.parent / "out"], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_release_of_a_clean_tagged_tree_is_built(release: Path) -> None:
    done = released(release)
    assert done.stdout == f"release 1.2.0: sign {release.parent}/out/SHA256SUMS\n"
    assert (done.returncode, done.stderr) == (0, "")
    assert "exists: give a new folder" in released(release).stderr


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (
            "nearmetal/__init__.py",
            '__version__ = "1.2.0.dev1"\n',
            "is not the version of a release",
        ),
        ("CHANGELOG.md", "## 1.2.01\n## 1x2.0\n### 1.2.0\n", "has no section '## 1.2.0'"),
        ("CITATION.cff", "version: 1.2.00\n", "has another version than 1.2.0"),
        ("tools/package/packages.sh.sums", None, "two builds differ"),
    ],
)
def test_a_release_that_does_not_fit_is_refused(
    release: Path, file: str, text: str | None, words: str
) -> None:
    if text is None:
        packages = release / "tools/package/packages.sh"
        packages.write_text('#!/bin/sh\nmkdir -p "$1"; echo "$1" >"$1/SHA256SUMS"\n')
    else:
        (release / file).write_text(text)
    commit(release)
    done = released(release)
    assert done.returncode == 1
    assert words in done.stderr


def test_a_release_needs_its_tag_and_a_clean_tree(release: Path) -> None:
    (release / "new").touch()
    assert "the tree has changes" in released(release).stderr
    (release / "new").unlink()
    git(release, "tag", "--delete", "v1.2.0")
    assert "HEAD has no tag v1.2.0" in released(release).stderr
    assert not (release.parent / "out").exists()
