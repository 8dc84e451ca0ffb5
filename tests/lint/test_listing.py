# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.lint.listing import missing_suites, unlisted_tests
from tests.lint.tree import ROOT, tracked

UNIT = "nm_unit_tests = {\n  # 'name' : ['suite'],\n  'ring' : ['ring', 'shm'],\n  'all' : ['pool'],\n}\n"
FUZZ = "nm_fuzzers = [\n  'hello',\n]\n"
FILES = ("tests/unit/test_ring.c", "tests/fuzz/fuzz_hello.c", "tests/fuzz/corpus/hello/a")


def test_every_test_is_listed() -> None:
    assert unlisted_tests(ROOT, tracked()) == []


def test_every_suite_has_a_test() -> None:
    assert missing_suites(ROOT) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder, text in (("tests/unit", UNIT), ("tests/fuzz", FUZZ)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "meson.build").write_text(text)
    return tmp_path


def test_listed_tests_pass(tree: Path) -> None:
    assert unlisted_tests(tree, map(Path, FILES)) == []
    assert missing_suites(tree) == []


@pytest.mark.parametrize(
    ("file", "finding"),
    [
        ("tests/unit/test_pool.c", "tests/unit/test_pool.c: not in nm_unit_tests"),
        ("tests/unit/test_name.c", "tests/unit/test_name.c: not in nm_unit_tests"),
    ],
)
def test_unlisted_test_is_found(tree: Path, file: str, finding: str) -> None:
    (found,) = unlisted_tests(tree, map(Path, (*FILES, file)))
    assert found.startswith(finding)


def test_unlisted_fuzzer_without_corpus_is_found(tree: Path) -> None:
    unlisted, no_corpus = unlisted_tests(tree, map(Path, (*FILES, "tests/fuzz/fuzz_rts.c")))
    assert unlisted.startswith("tests/fuzz/fuzz_rts.c: not in nm_fuzzers")
    assert no_corpus == "tests/fuzz/fuzz_rts.c: no inputs in tests/fuzz/corpus/rts"


def test_suite_without_a_test_is_found(tree: Path) -> None:
    (tree / "tests/unit/meson.build").write_text(UNIT.replace("'ring', 'shm'", "'shm'"))
    assert missing_suites(tree) == ["ring"]
