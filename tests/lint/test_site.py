# SPDX-License-Identifier: Apache-2.0
"""Every page is in the navigation of the site, every link leads somewhere, all parts are ours."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.lint import site
from tests.lint.prose import is_prose
from tests.lint.tree import ROOT, tracked

PAGES = [path for path in tracked() if is_prose(path) and path.parts[0] != ".github"]
PICTURES = [path for path in tracked() if path.parts[0] == "docs" and path.suffix == ".svg"]
SVG = "{http://www.w3.org/2000/svg}"


def test_every_entry_of_the_navigation_is_a_page() -> None:
    assert site.dead_entries(ROOT) == []


def test_every_page_is_in_the_navigation() -> None:
    assert site.lost_pages(ROOT, PAGES) == []


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert site.dead_links(ROOT, PAGES) == []


def test_pages_and_pictures_load_nothing_from_other_hosts() -> None:
    assert site.foreign_parts(ROOT, [*PAGES, *PICTURES]) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "docs/design").mkdir(parents=True)
    text = "# A\n\n```{toctree}\n:glob:\n\na\ndesign/*\n../TOP\n```\n"
    (tmp_path / site.INDEX).write_text(text)
    for page in ("docs/a.md", "docs/design/b.md", "TOP.md"):
        (tmp_path / page).write_text("# One: two-three\n\nText.\n")
    return tmp_path


def test_a_sound_tree_passes(tree: Path) -> None:
    assert site.dead_entries(tree) == []
    assert site.lost_pages(tree, map(Path, ("docs/a.md", "docs/design/b.md", "TOP.md"))) == []


def test_an_entry_without_page_and_a_page_without_entry_are_found(tree: Path) -> None:
    (tree / "docs/a.md").rename(tree / "docs/c.md")
    assert site.dead_entries(tree) == ["docs/index.md:6: no page 'a'"]
    assert site.lost_pages(tree, [Path("docs/c.md")]) == ["docs/c.md:1: not in docs/index.md"]


@pytest.mark.parametrize(
    ("link", "what"),
    [
        ("b.md", "no file 'b.md'"),
        ("design/b.md#two", "no heading 'two' in b.md"),
        ("#two", "no heading 'two' in a.md"),
    ],
)
def test_a_dead_link_is_found(tree: Path, link: str, what: str) -> None:
    page = tree / "docs/a.md"
    page.write_text(f"# One\n\nSee [two]({link}).\n")
    assert site.dead_links(tree, [Path("docs/a.md")]) == [f"docs/a.md:3: {what}"]
    page.write_text(
        f"# One\n\n    [two]({link})\n\n[three](design/b.md#one-two-three)\n[o](#one)\n"
    )
    assert site.dead_links(tree, [Path("docs/a.md")]) == []


@pytest.mark.parametrize(
    "part", ["![a](https://a.test/b.png)", "<img src='http://a.test/b.png'>", "url(https://a.test)"]
)
def test_a_part_of_another_host_is_found(tmp_path: Path, part: str) -> None:
    (tmp_path / "a.md").write_text(f"See [a](https://a.test).\n{part}\n")
    (found,) = site.foreign_parts(tmp_path, [Path("a.md")])
    assert found.startswith("a.md:2: ")


def recording() -> tuple[ET.Element, list[str]]:
    """Return the picture of the demo, and the lines that its last screen shows."""
    picture = ET.parse(ROOT / "docs/images/demo.svg").getroot()  # noqa: S314 - our own file
    texts = {
        line.attrib["id"]: "".join(part.text or "" for part in line.iter(f"{SVG}text"))
        for line in picture.iter(f"{SVG}g")
        if "id" in line.attrib
    }
    tall = float(next(s for s in picture if s.tag == f"{SVG}svg").attrib["height"])
    uses = [(float(use.attrib["y"]), use.attrib["href"][1:]) for use in picture.iter(f"{SVG}use")]
    last = max(y // tall for y, _ in uses)
    return picture, [texts[name] for y, name in uses if y // tall == last]


def test_the_recording_ends_with_its_transcript_and_respects_reduced_motion() -> None:
    picture, shown = recording()
    text = (ROOT / "docs/images/demo.txt").read_text()
    caption, _, transcript = text.partition("\n\n")
    assert re.match(r"Recorded on 20\d\d-\d\d-\d\d: .+ cores", caption)
    assert caption == picture.findtext(f"{SVG}desc")
    lines = ["".join(line.split()) for line in transcript.splitlines() if line.strip()]
    assert ["".join(line.split()) for line in shown] == lines[-len(shown) :]
    style = picture.findtext(f"{SVG}style") or ""
    assert "@media(prefers-reduced-motion:reduce){.film{animation:none}}" in style
    assert not list(picture.iter(f"{SVG}script"))
