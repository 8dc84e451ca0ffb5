# SPDX-License-Identifier: Apache-2.0
"""CITATION.cff has what version 1.2.0 of its format requires, and what the package says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

import nearmetal

ROOT = Path(__file__).parents[2]
REQUIRED = {"authors", "cff-version", "message", "title"}
"""The required keys of the Citation File Format 1.2.0, see its schema-guide.md."""

ENTITY_REQUIRED = {"name"}
"""The same for an author that is no person."""


def test_the_citation_is_that_of_this_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited.keys() >= REQUIRED
    assert cited["cff-version"] == "1.2.0"
    assert cited["type"] in {"software", "dataset"}
    assert cited["authors"]
    assert all(author.keys() >= ENTITY_REQUIRED for author in cited["authors"])
    assert cited["version"] == nearmetal.__version__
    assert cited["license"] == project["license"]
    assert len(set(cited["keywords"])) == len(cited["keywords"])


def test_templates_of_issues_have_a_name_and_ask_for_what_exists() -> None:
    for page in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        head = yaml.safe_load(page.read_text().split("---\n")[1])
        assert {"name", "about", "labels"} == head.keys()
    assert (ROOT / "SECURITY.md").exists()
