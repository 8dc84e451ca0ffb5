# SPDX-License-Identifier: Apache-2.0
"""A name of a class stands for one thing: no two classes of `nearmetal/` share one."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.lint.tree import ROOT, finding, tracked


def shared_names(root: Path, paths: list[Path]) -> list[str]:
    """Return a finding for each class whose name another class has, too."""
    places: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path in paths:
        if path.suffix == ".py" and path.parts[0] == "nearmetal" and "share" not in path.parts:
            for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append((path, node.lineno))
    return [
        finding(path, line, f"class {name} also stands in {others[0][0]}")
        for name, found in sorted(places.items())
        for path, line in found
        if (others := [place for place in found if place != (path, line)])
    ]


def test_no_two_classes_share_a_name() -> None:
    assert shared_names(ROOT, tracked()) == []


def test_a_shared_name_is_found(tmp_path: Path) -> None:
    paths = [Path("nearmetal/a.py"), Path("nearmetal/b.py"), Path("nearmetal/share/c.py")]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(
            f"class Twice:\n    pass\n\n\nclass {path.stem.upper()}:\n    pass\n"
        )
    assert shared_names(tmp_path, paths) == [
        "nearmetal/a.py:1: class Twice also stands in nearmetal/b.py",
        "nearmetal/b.py:1: class Twice also stands in nearmetal/a.py",
    ]
