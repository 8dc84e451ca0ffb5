# SPDX-License-Identifier: Apache-2.0
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.lint import wording
from tests.lint.tree import ROOT, tracked

Check = Callable[[Path, Iterable[Path]], list[str]]

# Spelled in pieces, so that this file passes the checks itself.
REGISTRY = "https://" + "pypi" + ".org/simple"
MACHINE_PATH = "cd /" + "work/main"
LEFTOVER = "/* TO" + "DO: later */"
PATCH = "mock" + '.patch("os.open")'

UNFORMATTED = "x = [1,2]  # fmt" + ": skip"

CASES: list[tuple[Check, str, str, str]] = [
    (wording.missing_licence, "a.py", "print(1)\n", f"# {wording.SPDX}\nprint(1)\n"),
    (wording.missing_licence, "run", "#!/bin/sh\n", f"#!/bin/sh\n# {wording.SPDX}\n"),
    (wording.registry_names, "a.txt", f"x\n{REGISTRY}\n", "pypi and nothing more\n"),
    (
        wording.machine_paths,
        "a.md",
        f"{MACHINE_PATH}\n",
        f"cd $HOME/root/x build{MACHINE_PATH[3:]}\n",
    ),
    (wording.leftovers, "a.c", f"{LEFTOVER}\n", 'mkdtemp("/tmp/XXXXXX");\n'),
    (wording.unformatted, "a.py", f"{UNFORMATTED}\n", "x = [1, 2]  # format\n"),
    (wording.patching, "test_a.py", f"with {PATCH}:\n", "mock = patch\n"),
    (wording.yaml_tabs, "a.yaml", "nodes:\n\t- a\n", "nodes:\n  - a\n"),
]


@pytest.mark.parametrize("check", dict.fromkeys(case[0] for case in CASES))
def test_tree_is_clean(check: Check) -> None:
    assert check(ROOT, tracked()) == []


@pytest.mark.parametrize(("check", "name", "bad", "good"), CASES)
def test_check_tells_bad_from_good(
    tmp_path: Path, check: Check, name: str, bad: str, good: str
) -> None:
    path = tmp_path / name
    path.write_text(bad)
    assert len(check(tmp_path, [Path(name)])) == 1
    path.write_text(good)
    assert check(tmp_path, [Path(name)]) == []


def test_no_file_is_too_long() -> None:
    assert wording.long_files(ROOT, tracked(), wording.LONG_FILES) == []


def test_long_file_needs_a_reason_and_a_reason_needs_a_long_file(tmp_path: Path) -> None:
    (tmp_path / "long.c").write_text("\n" * (wording.MAX_LINES + 1))
    (tmp_path / "short.c").write_text("\n" * wording.MAX_LINES)
    paths = [Path("long.c"), Path("short.c")]
    assert wording.long_files(tmp_path, paths, {"long.c": "a table"}) == []
    (missing,) = wording.long_files(tmp_path, paths, {})
    assert missing.startswith("long.c:601: ")
    (stale,) = wording.long_files(tmp_path, paths, {"long.c": "x", "short.c": "x"})
    assert stale.startswith("short.c: in LONG_FILES")


def test_every_variable_is_declared() -> None:
    assert wording.unknown_variables(ROOT, tracked(), wording.known_variables(ROOT)) == []


def test_undeclared_variable_is_found(tmp_path: Path) -> None:
    header = tmp_path / "src/base/params.h"
    header.parent.mkdir(parents=True)
    header.write_text('X(net, TEXT, "' + "NEARMETAL_" + 'NET")\n')
    header.with_suffix(".c").write_text('"NEARMETAL_' + 'JOB"\n')
    (tmp_path / "a.md").write_text(
        "set NEARMETAL_" + "NET of NEARMETAL_" + "JOB, not NEARMETAL_" + "NETS\n"
    )
    known = wording.known_variables(tmp_path)
    (found,) = wording.unknown_variables(tmp_path, [Path("a.md")], known)
    assert re.match(r"a\.md:1: 'NEARMETAL_" + "NETS'", found)
