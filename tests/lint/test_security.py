# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md claims nothing without a test, and each test that it or faults.md names exists."""

from pathlib import Path

import pytest

from tests.lint.security import ATTACKS, BOUNDARIES, PAGE, faults, untested_attacks
from tests.lint.tree import ROOT

MESON = "nm_unit_tests = {\n  'session' : ['session'],\n}\n"
SECTION = """
### {name}
Guaranteed:
- A claim
  of two lines (`test_claim`, `a_case`).
- A parser (`fuzz_hello`).

Limits:
- Another.

Shown by:

    pytest tests/system/test_a.py
    meson test -C build/c session
    make test-fuzz
"""


def test_every_claim_has_a_test() -> None:
    assert faults(ROOT) == []


def test_every_attack_has_a_test() -> None:
    assert untested_attacks(ROOT) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    sections = "".join(SECTION.format(name=name) for name in BOUNDARIES)
    files = {
        str(PAGE): f"# Security\n\n## Boundaries\nWords.\n{sections}",
        str(ATTACKS): "\n## Attacks\n| attack | test |\n|---|---|\n| holes | `a_case` |\n",
        "Makefile": "test-fuzz: setup\n\tmeson test --suite fuzz\n",
        "tests/fuzz/meson.build": "nm_fuzzers = [\n  'hello',\n]\n",
        "tests/unit/meson.build": MESON,
        "tests/unit/test_session.c": "NM_TEST(a_case)\n{\n}\n",
        "tests/system/test_a.py": "def test_claim() -> None:\n    pass\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert faults(tmp_path) == untested_attacks(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new", "fault"),
    [
        (PAGE, "### Node\n", "### Nodes\n", "the boundaries are Rank, Nodes, Machine"),
        (PAGE, " (`fuzz_hello`)", "", "Rank: no test for: A parser"),
        (PAGE, "- Another.\n", "", "Rank: no limit"),
        (PAGE, "    make test-fuzz\n", "", "Rank: no command runs fuzz_hello"),
        (PAGE, "make test-fuzz", "make fuzzers", "Rank: no command runs fuzz_hello"),
        (PAGE, "test_a.py", "test_b.py", "Rank: no claim needs tests/system/test_b.py"),
        (PAGE, "- A parser (`fuzz_hello`).\n", "", "Rank: no claim needs test-fuzz"),
        ("tests/system/test_a.py", "test_claim", "test_other", "Rank: no command runs test_claim"),
        ("tests/unit/test_session.c", "a_case", "b_case", "Rank: no command runs a_case"),
        ("tests/unit/meson.build", "session", "letter", "Rank: no command runs a_case"),
        ("tests/fuzz/meson.build", "hello", "letter", "Rank: no command runs fuzz_hello"),
    ],
)
def test_a_claim_that_nothing_shows_is_found(
    tree: Path, name: Path | str, old: str, new: str, fault: str
) -> None:
    text = (tree / name).read_text()
    assert old in text
    (tree / name).write_text(text.replace(old, new, 1))
    assert any(line.startswith(fault) for line in faults(tree)), faults(tree)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("`a_case`", "none", "no test for: holes"),
        ("a_case", "b_case", "no test is named b_case"),
        ("## Attacks", "## Faults", "no attack"),
    ],
)
def test_an_attack_without_a_test_is_found(tree: Path, old: str, new: str, fault: str) -> None:
    text = (tree / ATTACKS).read_text()
    (tree / ATTACKS).write_text(text.replace(old, new))
    assert untested_attacks(tree) == [fault]
