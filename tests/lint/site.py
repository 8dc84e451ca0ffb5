# SPDX-License-Identifier: Apache-2.0
"""The documentation site by its sources: what the strict build refuses, found without a build."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.lint.prose import blanked
from tests.lint.tree import finding

INDEX = Path("docs/index.md")
INCLUDED = Path("README.md")
"""The page whose text the first page includes."""

_TREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_LOADED = re.compile(
    r"""(?:\b(?:src|data|poster)=["']?|!\[[^\]]*\]\(|url\(["']?)https?://[^"')\s]+"""
)


def navigation(root: Path) -> Iterator[tuple[int, str, list[Path]]]:
    """Yield each entry of the navigation: its line, its text, and the pages that it names."""
    text = (root / INDEX).read_text()
    for tree in _TREE.finditer(text):
        for number, entry in enumerate(
            tree[1].splitlines(), text.count("\n", 0, tree.start(1)) + 1
        ):
            if entry and not entry.startswith(":"):
                found = (root / INDEX.parent).glob(f"{entry}.md")
                yield number, entry, [path.resolve().relative_to(root) for path in found]


def dead_entries(root: Path) -> list[str]:
    """Find entries of the navigation that name no page."""
    return [
        finding(INDEX, number, f"no page '{entry}'")
        for number, entry, found in navigation(root)
        if not found
    ]


def lost_pages(root: Path, pages: Iterable[Path]) -> list[str]:
    """Find pages to which the navigation does not lead."""
    reached = {page for _, _, found in navigation(root) for page in found} | {INDEX, INCLUDED}
    return [finding(page, 1, f"not in {INDEX}") for page in pages if page not in reached]


def headings(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub and the site make them."""
    found = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def dead_links(root: Path, pages: Iterable[Path]) -> list[str]:
    """Find links to files or headings that do not exist."""
    found = []
    for page in pages:
        text = (root / page).read_text()
        code = [not line for line in blanked(text).split("\n")]
        for number, line in enumerate(text.splitlines(), start=1):
            for link in [] if code[number - 1] else _LINK.findall(line):
                path, _, anchor = link.partition("#")
                target = root / page.parent / path if path else root / page
                if "://" in link:
                    continue
                if not target.exists():
                    found.append(finding(page, number, f"no file '{path}'"))
                elif anchor and anchor not in headings(target.read_text()):
                    found.append(finding(page, number, f"no heading '{anchor}' in {target.name}"))
    return found


def foreign_parts(root: Path, files: Iterable[Path]) -> list[str]:
    """Find pictures, scripts and styles that a page would load from another host."""
    return [
        finding(path, number, f"'{match[0]}': the site needs no network")
        for path in files
        for number, line in enumerate((root / path).read_text().splitlines(), start=1)
        for match in _LOADED.finditer(line)
    ]
