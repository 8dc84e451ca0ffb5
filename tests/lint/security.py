# SPDX-License-Identifier: Apache-2.0
"""Claims of SECURITY.md and the attacks of faults.md: each one names tests that exist.

A guarantee names its tests, and a command of its section runs them.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

BOUNDARIES = ("Rank", "Node", "Machine", "Job", "User", "Tenant", "Host")
PAGE = Path("SECURITY.md")
ATTACKS = Path("docs/design/faults.md")

_PYTEST = re.compile(r"pytest (.+)")
_MESON = re.compile(r"meson test -C build/c (.+)")
_MAKE = re.compile(r"make ([\w-]+)")
_CITED = re.compile(r" \(((?:`\w+`(?:, )?)+)\)\.$")
_CASE = re.compile(r"^NM_TEST(?:_WITHIN)?\((\w+)", re.MULTILINE)
_FUNCTION = re.compile(r"^def (test_\w+)", re.MULTILINE)


@dataclass
class Section:
    """One boundary: its guarantees, what it does not guarantee, and its commands."""

    name: str
    guaranteed: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def sections(text: str) -> list[Section]:
    """Return the boundaries of the page, in its order."""
    found = []
    body = text.partition("\n## Boundaries\n")[2].partition("\n## ")[0]
    for part in body.split("\n### ")[1:]:
        name, _, rest = part.partition("\n")
        section = Section(name.strip())
        guaranteed, _, rest = rest.partition("\nLimits:\n")
        section.guaranteed = _bullets(guaranteed)
        refused, _, shown = rest.partition("\nShown by:\n")
        section.rest = _bullets(refused)
        section.commands = [line.strip() for line in shown.splitlines() if line.strip()]
        found.append(section)
    return found


def _bullets(text: str) -> list[str]:
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith("- "):
            found.append(line[2:])
        elif line.startswith("  ") and found:
            found[-1] += " " + line.strip()
    return found


def _offered(root: Path, command: str) -> dict[str, set[str]]:
    """Return the tests of each file or target of a command; nothing for what does not exist."""
    if found := _PYTEST.fullmatch(command):
        paths = {word: root / word for word in found[1].split()}
        return {word: _names(path, _FUNCTION) for word, path in paths.items()}
    if found := _MESON.fullmatch(command):
        listed = (root / "tests/unit/meson.build").read_text(encoding="utf-8")
        return {
            word: _names(root / f"tests/unit/test_{word}.c", _CASE)
            if f"'{word}' : [" in listed
            else set()
            for word in found[1].split()
        }
    if found := _MAKE.fullmatch(command):
        target = re.search(
            rf"^{found[1]}:.*\n((?:\t.*\n)+)", _text(root / "Makefile"), re.MULTILINE
        )
        suite = re.search(r"--suite ([\w-]+)", target[1]) if target else None
        places = {"fuzz": "fuzz", "all-faults": "faults"}
        if suite is None or suite[1] not in places:
            return {found[1]: set()}
        text = _text(root / "tests" / places[suite[1]] / "meson.build")
        names = set(re.findall(r"test\('(\w+)'", text))
        if suite[1] == "fuzz":
            listed = text.partition("nm_fuzzers = [")[2].partition("]")[0]
            names = {f"fuzz_{name}" for name in re.findall(r"'(\w+)'", listed)}
        return {found[1]: names}
    return {command: set()}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _names(path: Path, pattern: re.Pattern[str]) -> set[str]:
    return set(pattern.findall(_text(path)))


def faults(root: Path) -> list[str]:
    """Return what is wrong with the page."""
    found = sections(_text(root / PAGE))
    names = tuple(section.name for section in found)
    wrong = [] if names == BOUNDARIES else [f"the boundaries are {', '.join(names) or 'missing'}"]
    for section in found:
        wrong += [f"{section.name}: {fault}" for fault in _faults_of(root, section)]
    return wrong


def _faults_of(root: Path, section: Section) -> list[str]:
    wrong = []
    for part, content in (
        ("guarantee", section.guaranteed),
        ("limit", section.rest),
        ("command", section.commands),
    ):
        if not content:
            wrong.append(f"no {part}")
    offered: dict[str, set[str]] = {}
    for command in section.commands:
        offered |= _offered(root, command)
    cited: set[str] = set()
    for claim in section.guaranteed:
        tests = _CITED.search(claim)
        if tests is None:
            wrong.append(f"no test for: {claim}")
            continue
        names = set(re.findall(r"`(\w+)`", tests[1]))
        cited |= names
        known = set().union(*offered.values())
        wrong += [f"no command runs {name}" for name in sorted(names - known)]
    wrong += [f"no claim needs {place}" for place, tests in offered.items() if not tests & cited]
    return wrong


def untested_attacks(root: Path) -> list[str]:
    """Return the rows of the table "Attacks" without a test, and the tests there that do not exist."""
    known: set[str] = set()
    for pattern, kind in (("tests/*/test_*.py", _FUNCTION), ("tests/unit/test_*.c", _CASE)):
        for path in root.glob(pattern):
            known |= _names(path, kind)
    table = _text(root / ATTACKS).partition("\n## Attacks\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    wrong = [] if len(rows) > 1 else ["no attack"]
    for attack, tests in rows[1:]:
        names = set(re.findall(r"`(\w+)`", tests))
        wrong += [] if names else [f"no test for: {attack.strip()}"]
        wrong += [f"no test is named {name}" for name in sorted(names - known)]
    return wrong
