# SPDX-License-Identifier: Apache-2.0
"""The documentation site: it builds without a warning, refuses faults, and needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.system.browser import browser, find_browser
from tests.system.local import ROOT
from tests.system.need import lacking
from tests.system.page import WINDOWS

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SPHINX = Path(sys.executable).with_name("sphinx-build")
if not SPHINX.exists():
    lacking("Sphinx is not installed")

LOADED = {"link": "href", "script": "src", "img": "src", "object": "data", "iframe": "src"}
FIRST = "docs/index.html"


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build as `make site` does."""
    makefile = (ROOT / "Makefile").read_text()
    options = re.search(
        r"sphinx-build (.+) -d build/site-cache \. build/site$", makefile, re.MULTILINE
    )
    assert options is not None
    return subprocess.run(
        [SPHINX, *options[1].split(), "-d", target.with_name("cache"), source, target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "html"
    done = build(ROOT, target)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return target


class Addresses(HTMLParser):
    """Collects what a page loads, and where its links lead."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if (name := LOADED.get(tag)) and name in values:
            self.loaded.append(values[name])
        if tag == "a":
            self.links.append(values.get("href", ""))


def test_every_part_and_every_link_of_every_page_is_in_the_folder(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        found = Addresses(page)
        outside = [link for link in found.loaded if urlsplit(link).netloc]
        assert outside == [], page
        for link in (*found.loaded, *found.links):
            parts = urlsplit(link)
            if not parts.scheme and not parts.netloc and parts.path:
                assert (page.parent / unquote(parts.path)).exists(), f"{page}: {link}"


def test_styles_and_pictures_load_nothing_from_elsewhere(site: Path) -> None:
    files = [path for suffix in ("css", "svg") for path in site.rglob(f"*.{suffix}")]
    assert len(files) > 3
    for path in files:
        found = re.findall(r"(?:url\(|@import|href=)\s*[\"']?(?:https?:)?//\S+", path.read_text())
        assert found == [], path


def test_the_four_kinds_of_page_and_the_python_api_are_there(site: Path) -> None:
    first = (site / FIRST).read_text()
    captions = re.findall(r'class="caption"[^>]*><span class="caption-text">([^<]+)', first)
    assert captions == ["Tutorials", "How-to guides", "Reference", "Explanation"]
    manual = (site / "nearmetal/share/man/nearmetal.html").read_text()
    assert 'href="nearmetal-run.html"' in manual.partition("<article")[2]
    assert 'id="nearmetal.notebook.OpenStudy.judge"' in (site / "docs/python.html").read_text()
    assert f"url={FIRST}" in (site / "index.html").read_text()


def test_a_dead_link_and_a_lost_page_fail(tmp_path: Path) -> None:
    docs = tmp_path / "source/docs"
    docs.mkdir(parents=True)
    (docs / "index.md").write_text("# A\n\n[a heading](#a)\n")
    assert build(tmp_path / "source", tmp_path / "sound").returncode == 0
    (docs / "index.md").write_text("# A\n\n[no page](none.md)\n\n[no heading](#none)\n")
    (docs / "lost.md").write_text("# B\n")
    done = build(tmp_path / "source", tmp_path / "broken")
    assert done.returncode == 1
    for what in (
        "index.md:3: WARNING: 'myst' cross-reference target not found: 'none.md'",
        "index.md:5: WARNING: 'myst' cross-reference target not found: 'none'",
        "lost.md: WARNING: document isn't included in any toctree",
    ):
        assert what in done.stderr


def record(picture: Path, script: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "tools/site/record.py"), str(picture), "sh", "-c", script]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def test_a_recording_has_what_the_command_printed_and_escapes_it(tmp_path: Path) -> None:
    # The third line replaces the second, as a bar does.
    script = r"printf '\033[31m<one>\033[0m\ntwo\n'; sleep 1; printf '\033[A\033[Kthree\n'"
    done = record(tmp_path / "a.svg", script)
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "a.txt").read_text()
    assert text.startswith("Recorded on 20")
    assert text.endswith("\n<one>\nthree\n")
    picture = ET.parse(tmp_path / "a.svg")  # noqa: S314 - our own file
    parts = {
        part.text: part.get("fill") for part in picture.iter("{http://www.w3.org/2000/svg}text")
    }
    assert parts["<one>"] == "#ff7b72"
    assert "three" in parts


def test_a_command_that_fails_is_no_recording(tmp_path: Path) -> None:
    done = record(tmp_path / "a.svg", "echo one; exit 3")
    assert done.returncode == 1
    assert "ended with 3: nothing is written" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(find_browser() is None, reason="Chromium is not installed")
def test_a_browser_has_no_complaint_and_plays_the_recording(site: Path) -> None:
    with browser() as window:
        window.open(site / FIRST, *WINDOWS["phone"])
        assert window.complaints == []
        assert [r for r in window.requests if not r.startswith((site.as_uri(), "data:"))] == []
        assert window.value("document.documentElement.scrollWidth") <= WINDOWS["phone"][0]
        window.open(site / "_static/demo.svg", *WINDOWS["desktop"])
        played = "document.getAnimations().map(a => a.playState).join()"
        assert window.value(played) == "running"
        window.value("document.getAnimations()[0].finish()")
        end = "getComputedStyle(document.querySelector('.film')).transform.split(',')[5]"
        assert float(window.value(end).strip(" )")) < -1000
