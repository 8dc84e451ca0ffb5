# SPDX-License-Identifier: Apache-2.0
"""Checks of single lines: licences, names that must not appear, lengths.

Each takes the root of a tree and paths in it, and returns its findings. The words that are looked
for are spelled in pieces here, so that this file passes its own checks.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.lint.tree import finding, is_source, lines, read

SPDX = "SPDX-License-Identifier: Apache-2.0"
MAX_LINES = 600

# Files that may be longer than MAX_LINES, each with its reason.
LONG_FILES: dict[str, str] = {
    "nearmetal/share/check/agent.py": "it travels to nodes as one file, on the input of Python",
}

# Folders whose tests set variables that do not exist, and the page that names former variables.
MISSPELLED_ON_PURPOSE = ("tests/unit/", "tests/fuzz/", "tests/system/", "CHANGELOG.md")

REGISTRIES = re.compile(
    "(?:"
    + "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("deb", "debian", "org"),
            ("security", "debian", "org"),
            ("snapshot", "debian", "org"),
            ("ftp", "debian", "org"),
            ("registry", "npmjs", "org"),
            ("proxy", "golang", "org"),
            ("crates", "io"),
            ("docker", "io"),
            ("quay", "io"),
        )
    )
    # A package of Debian has the name of a registry: a version follows it.
    + r")(?!=[0-9])"
)
MACHINE_PATHS = re.compile(r"(?<![\w.$}~-])/(work|root|home|Users)/[\w.]")
LEFTOVERS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
UNFORMATTED = re.compile(r"#\s*fmt:\s*(skip|off)\b")
PATCHING = re.compile(r"\bmock" + r"\.patch\b|\bmonkeypatch" + r"\.setattr\b")
VARIABLE = re.compile(r"\bNEARMETAL_[A-Z0-9_]*[A-Z0-9]\b")


def missing_licence(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find source files without the SPDX line in their first two lines."""
    return [
        finding(path, 1, f"no line '{SPDX}'")
        for path in paths
        if is_source(path) and SPDX not in "".join((read(root / path) or "").splitlines()[:2])
    ]


def matching(root: Path, paths: Iterable[Path], pattern: re.Pattern[str], why: str) -> list[str]:
    """Find every match of a pattern."""
    return [
        finding(path, number, f"'{match[0]}': {why}")
        for path, number, line in lines(root, paths)
        for match in pattern.finditer(line)
    ]


def registry_names(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find host names of package registries: a machine's own settings say where packages are."""
    return matching(root, paths, REGISTRIES, "take the registry from the machine's settings")


def machine_paths(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find paths that exist only on somebody's machine."""
    return matching(root, paths, MACHINE_PATHS, "this path exists on one machine only")


def leftovers(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find marks of unfinished work."""
    return matching(root, paths, LEFTOVERS, "finish it, or describe the limit in the manual")


def unformatted(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find code that the formatter is not allowed to lay out."""
    return matching(root, paths, UNFORMATTED, "the formatter decides the layout")


def patching(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find tests that replace parts of the code under test from outside."""
    return matching(root, paths, PATCHING, "pass a small fake in instead")


def yaml_tabs(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find tabs in YAML files. Examples of bad files belong into test code."""
    yaml = [path for path in paths if path.suffix in {".yaml", ".yml"}]
    return [finding(p, n, "tab in YAML") for p, n, line in lines(root, yaml) if "\t" in line]


def long_files(root: Path, paths: Iterable[Path], allowed: Mapping[str, str]) -> list[str]:
    """Find sources longer than MAX_LINES, and permissions that nothing needs any more."""
    lengths = {
        str(path): len((read(root / path) or "").splitlines()) for path in paths if is_source(path)
    }
    too_long = {path for path, length in lengths.items() if length > MAX_LINES}
    return [
        *(
            f"{path}:{lengths[path]}: more than {MAX_LINES} lines and no reason in LONG_FILES"
            for path in sorted(too_long - allowed.keys())
        ),
        *(
            f"{path}: in LONG_FILES, but it is not longer than {MAX_LINES} lines"
            for path in sorted(allowed.keys() - too_long)
        ),
    ]


def known_variables(root: Path) -> set[str]:
    """Return the knobs of the C code and the names it leaves to others, from its tables."""
    tables = (root / "src/base" / name for name in ("params.h", "params.c"))
    return {name for table in tables for name in VARIABLE.findall(table.read_text())}


def unknown_variables(root: Path, paths: Iterable[Path], known: Iterable[str]) -> list[str]:
    """Find variables of the environment that are not in the table (a spelling, a renamed knob)."""
    names = set(known)
    paths = [path for path in paths if not str(path).startswith(MISSPELLED_ON_PURPOSE)]
    return [
        finding(path, number, f"'{name}' is declared neither in src/base/params.h nor in params.c")
        for path, number, line in lines(root, paths)
        for name in VARIABLE.findall(line)
        if name not in names
    ]
