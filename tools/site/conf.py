# SPDX-License-Identifier: Apache-2.0
"""Sphinx: the pages of the repository as a site. `make site` builds it, and any warning is an error.

The source is the whole checkout, so that links between pages lead to the same files as in the
repository. `docs/index.md` is the first page and has the navigation.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nearmetal import __version__  # noqa: E402 - found by the line above

project = "nearmetal"
author = copyright = "The nearmetal authors"  # noqa: A001 - names that Sphinx reads
version = release = __version__

root_doc = "docs/index"
include_patterns = [
    # README.md is no page: pages include its parts.
    "docs/**.md",
    "nearmetal/share/man/*.md",
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    "benchmarks/**.md",
]
# Folders that Sphinx would walk for nothing.
exclude_patterns = [".git", "build", "examples", "results", "src", "tests"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
# A page begins with its title; some of the manual's have levels that a reader does not miss.
suppress_warnings = ["myst.header"]
default_role = "code"
nitpicky = True
# Parts of signatures that have no page.
nitpick_ignore_regex = [
    ("py:.*", r"(collections\.abc|os|pathlib|nearmetal\.(evidence|report|study))\..*")
]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

html_theme = "furo"
html_title = f"nearmetal {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = [str(ROOT / "docs/images")]

MANUAL = "nearmetal/share/man"
_PAGE = re.compile(r"\b([a-z]+(?:[-_][a-z]+)?)\([1-8]\)")


class LinkManual(SphinxTransform):
    """Makes each name of a manual page, for example nearmetal-run(1), a link to that page."""

    default_priority = 500

    def apply(self, **_options: Any) -> None:
        """Replace texts, except in code, titles and links."""
        for text in list(self.document.findall(nodes.Text)):
            parents: list[nodes.Node] = []
            above: nodes.Node | None = text.parent
            while above is not None:
                parents.append(above)
                above = above.parent
            fixed = nodes.literal | nodes.FixedTextElement | nodes.title | nodes.reference
            if not any(isinstance(each, fixed | pending_xref) for each in parents):
                text.parent.replace(text, list(self._parts(text.astext())))

    def _parts(self, text: str) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        end = 0
        for match in _PAGE.finditer(text):
            page = f"{MANUAL}/{match[1]}"
            if page in self.env.found_docs and page != self.env.docname:
                link = pending_xref(
                    "",
                    nodes.inline("", match[0]),
                    refdomain="std",
                    reftype="doc",
                    reftarget=f"/{page}",
                    refexplicit=True,
                    refdoc=self.env.docname,
                )
                found += [nodes.Text(text[end : match.start()]), link]
                end = match.end()
        return [*found, nodes.Text(text[end:])]


def lead_in(app: Sphinx, error: Exception | None) -> None:
    """Let the folder itself lead to the first page."""
    if error is None:
        page = '<!doctype html><meta charset="utf-8"><title>nearmetal</title>'
        page += f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register both."""
    app.add_transform(LinkManual)
    app.connect("build-finished", lead_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
