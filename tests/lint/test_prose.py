# SPDX-License-Identifier: Apache-2.0
"""Pages are in plain words: the list of CONTRIBUTING.md, openers, columns, README's length."""

import re
from pathlib import Path

import pytest

from tests.lint import prose
from tests.lint.tree import ROOT, tracked

WORDS = prose.terms((ROOT / "CONTRIBUTING.md").read_text())
RULES = prose.checks(WORDS)
PAGES = [path for path in tracked() if prose.is_prose(path)]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_page_is_in_plain_words(page: Path) -> None:
    assert prose.bad_prose(ROOT, [page], RULES) == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_lines_of_prose_fit(page: Path) -> None:
    assert prose.long_lines(ROOT, [page]) == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= prose.README_LINES


def found(text: str) -> list[str]:
    return [re.sub(r".*\[(.*)\]$", r"\1", what) for _, what in prose.bad_text(text, RULES)]


@pytest.mark.parametrize("word", WORDS)
def test_every_word_of_the_list_is_found(word: str) -> None:
    assert "words" in found(f"The rank {word} here.\n")
    assert found(f"The option `{word}` is code.\n") == []
    assert found(f"Code:\n\n    {word}\n") == []


def test_the_list_is_not_empty() -> None:
    assert len(WORDS) > 20


@pytest.mark.parametrize(
    ("bad", "rule", "good"),
    [
        ("Nothing is sent.", "opener", "The endpoint sends nothing."),
        ("It ends. Never wait.", "opener", "It ends. Do not wait."),
        ("A size, as `64M`.", "example", "A size, for example `64M`."),
        ("The peer spake.", "archaism", "The peer answered."),
        ("Ask the the peer.", "doubled", "Ask the peer."),
        ("A segment\ndirectory is there.", "words", "A rundir is there."),
    ],
)
def test_every_rule_tells_bad_from_good(bad: str, rule: str, good: str) -> None:
    assert any(name.startswith(rule) for name in found(bad))
    assert found(good) == []


def test_a_finding_names_its_line() -> None:
    assert [line for line, _ in prose.bad_text("One line.\n\nThe rank is told.\n", RULES)] == [3]


def test_long_lines_are_found_outside_tables_and_code(tmp_path: Path) -> None:
    long = "word " * 21
    (tmp_path / "a.md").write_text(f"{long}\n\n| {long} |\n\n    {long}\n\n```\n{long}\n```\n")
    assert prose.long_lines(tmp_path, [Path("a.md")]) == ["a.md:1: 105 columns of prose"]


def test_a_short_line_passes(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("word " * 20 + "\n")
    assert prose.long_lines(tmp_path, [Path("a.md")]) == []
