# SPDX-License-Identifier: Apache-2.0
"""Tests that exist but that no runner would run."""

import re
from collections.abc import Iterable
from pathlib import Path

TSAN_SUITES = ("ring", "pool")
MIN_CORPUS = 1


def _names(paths: Iterable[Path], folder: str, prefix: str) -> set[str]:
    return {
        path.stem.removeprefix(prefix)
        for path in paths
        if str(path.parent) == folder and path.name.startswith(prefix) and path.suffix == ".c"
    }


def _listed(text: str, table: str) -> set[str]:
    body = re.search(rf"^{table} = [\[{{]\n(.*?)^[\]}}]", text, re.MULTILINE | re.DOTALL)
    entries = (line.strip() for line in body[1].splitlines()) if body else ()
    return {match[1] for entry in entries if (match := re.match(r"'([\w-]+)'", entry))}


def unlisted_tests(root: Path, paths: Iterable[Path]) -> list[str]:
    """Find C tests and fuzzers that no meson.build lists, and fuzzers without a corpus."""
    paths = list(paths)
    found = []
    for folder, prefix, table in (
        ("tests/unit", "test_", "nm_unit_tests"),
        ("tests/fuzz", "fuzz_", "nm_fuzzers"),
    ):
        listed = _listed((root / folder / "meson.build").read_text(), table)
        found += [
            f"{folder}/{prefix}{name}.c: not in {table} of {folder}/meson.build"
            for name in sorted(_names(paths, folder, prefix) - listed)
        ]
    for name in sorted(_names(paths, "tests/fuzz", "fuzz_")):
        corpus = Path("tests/fuzz/corpus") / name
        if sum(corpus in path.parents for path in paths) < MIN_CORPUS:
            found.append(f"tests/fuzz/fuzz_{name}.c: no inputs in {corpus}")
    return found


def missing_suites(root: Path) -> list[str]:
    """Find suites that `make test` asks for by name and that have no test."""
    text = (root / "tests/unit/meson.build").read_text()
    return [suite for suite in TSAN_SUITES if not re.search(rf": \[.*'{suite}'", text)]
