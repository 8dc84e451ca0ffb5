# SPDX-License-Identifier: Apache-2.0
"""Checks of prose: words, openers and line lengths of Markdown pages, by proselint.

The words come from the table "Words" of CONTRIBUTING.md, so that the list which people read is the
list which the linter applies. Code, fenced, indented or between backticks, is not prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from proselint.checks import archaism
from proselint.registry.checks import Check, Padding, types
from proselint.registry.checks.engine import Fancy, RegexOptions

from tests.lint.tree import finding

MAX_COLUMNS = 100
README_LINES = 90

OPENERS = ("Nothing", "Nobody", "None", "Not", "Neither", "Nor", "Never", "Whoever", "Who")
SENTENCE = r"(?:(?<=[.!?] )|(?<=^)|(?<=^[-*] )|(?<=\| )|(?<=^: ))"

_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(?<=\]\()[^)\s]*(?=\))")


def blanked(text: str) -> str:
    """Return the text with its code and the targets of its links made blank, in the same places."""
    lines, fence, in_list = [], "", False
    for line in text.splitlines():
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence or mark:
            if mark and not fence:
                fence = mark[1]
            elif mark and mark[1].startswith(fence):
                fence = ""
            lines.append("")
            continue
        if line.strip() and not line.startswith(" "):
            in_list = bool(re.match(r"([-*:]|\d+\.) ", line))
        lines.append("" if line.startswith("    ") and not in_list else line)
    joined = "\n".join(lines)
    return _LINK.sub(lambda m: _masked(m, 0), _CODE.sub(lambda m: _masked(m, 2), joined))


def _masked(match: re.Match[str], group: int) -> str:
    """Return the match with the characters of a group masked, line breaks excepted."""
    start = match.start()
    text, (low, high) = match[0], (match.start(group) - start, match.end(group) - start)
    return text[:low] + re.sub(r"[^\n]", "_", text[low:high]) + text[high:]


def terms(contributing: str) -> dict[str, str]:
    """Return the words to avoid, each with its replacement, from the table "Words"."""
    section = contributing.partition("\n## Words\n")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 2 and cells[0].startswith("`"):
            found |= {word.strip().strip("`"): cells[1] for word in cells[0].split(",")}
    return found


def _engine(*, case: bool = False) -> Fancy:
    return Fancy(RegexOptions(case_insensitive=not case, multi_line=True))


def checks(words: dict[str, str]) -> tuple[Check, ...]:
    """Return the checks: our words and sentences, and those of proselint that we take."""
    patterns = {re.escape(word).replace(r"\ ", r"\s+"): but for word, but in words.items()}
    return (
        Check(
            types.PreferredForms(patterns, Padding.STRICT_WORDS_IN_TEXT),
            engine=_engine(),
            path="words",
            message="'{1}': write {0}",
        ),
        Check(
            types.ExistenceSimple(SENTENCE + "(?:" + "|".join(OPENERS) + r")\b"),
            engine=_engine(case=True),
            path="opener",
            message="a sentence begins with '{}': begin with the noun that acts",
        ),
        Check(
            types.ExistenceSimple(r",\s+as `"),
            engine=_engine(),
            path="example",
            message="'{}': write for example",
        ),
        Check(
            types.ExistenceSimple(r"\b(?!that\b|had\b)([a-z]+) \1\b"),
            engine=_engine(case=True),
            path="doubled",
            message="'{}': a word stands twice",
        ),
        archaism.check,
    )


def bad_prose(root: Path, pages: Iterable[Path], rules: Iterable[Check]) -> list[str]:
    """Find words and sentences that the rules refuse."""
    rules = list(rules)
    return [
        finding(page, number, what)
        for page in pages
        for number, what in bad_text((root / page).read_text(), rules)
    ]


def bad_text(text: str, rules: Iterable[Check]) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of a text, in the order of its lines."""
    shown = f"\n{blanked(text)}\n"
    found = [
        (
            shown.count("\n", 0, result.span[0] + 1),
            f"{' '.join(result.message.split())} [{result.check_path}]",
        )
        for rule in rules
        for result in rule.check_with_flags(shown)
    ]
    yield from sorted(found)


def long_lines(root: Path, pages: Iterable[Path]) -> list[str]:
    """Find lines of prose beyond MAX_COLUMNS; tables and code may be wider."""
    found = []
    for page in pages:
        text = (root / page).read_text()
        for number, (raw, line) in enumerate(
            zip(text.splitlines(), blanked(text).split("\n"), strict=False), start=1
        ):
            if line and len(raw) > MAX_COLUMNS and not raw.lstrip().startswith("|"):
                found.append(finding(page, number, f"{len(raw)} columns of prose"))
    return found


def is_prose(path: Path) -> bool:
    """Tell whether a tracked file is a page that people read."""
    return path.suffix == ".md" and not str(path).startswith("tests/")
