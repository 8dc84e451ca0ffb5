# SPDX-License-Identifier: Apache-2.0
"""The linter of claims: each rule on sentences made for it, and on the texts it was made for."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.cli.main import main
from nearmetal.evidence import Unit
from nearmetal.study.claims import lint
from nearmetal.study.claims.text import read
from nearmetal.study.judge import compare
from nearmetal.study.model import Arm, Cell, Observation, Point
from tests.python.study_shared import PAPERS, SEEDS

TABLE = "cores\tA\tB\n" + "".join(f"{n}\t{n % 3 / 10:.1f}%\t-0.{n % 4}%\n" for n in range(1, 9))

WRONG = [
    ("It is faster by 3.5X to 3.5X.", "range", "'3.5X to 3.5X' has one end only"),
    (
        "Since 40 ranks on metal use 10% more cores than 36 ranks, we accept it.",
        "share",
        "40 is 11.1 % more than 36, not 10 %",
    ),
    (
        "Metal (40 PPN) against a VM (36 PPN), representing an 11.1% decrease.",
        "share",
        "from 40 to 36 is 10.0 %, not 11.1 %",
    ),
    (
        "The latency is 1.5 microseconds. The cable has 50 ns and accounts for most of it.",
        "part",
        "0.05 µs are 3.3% of 1.5 µs",
    ),
    (
        "A has 30% and 10% higher latency than the B and C, respectively.",
        "implied",
        "30 % and 10 % mean that C is 18% above B",
    ),
    (
        "A node has two Intel Xeon Gold 6240 CPUs, with a total of 40 cores.",
        "cores",
        "two Gold 6240 have 36 cores, not 40",
    ),
    (
        "A node offers a total of 32 cores. We use 640 cores (16 nodes).",
        "cores",
        "640 cores (16 nodes) are 40 a node, line 1 says 32",
    ),
    (
        "We see 4.1% on CODE, 9.0% on OTHER. Except for OTHER, all the other workloads stay within 4%.",
        "bound",
        "CODE has 4.1 %, which is not within 4 %",
    ),
    (
        (
            "We see 2% on CODE, 9.0% on OTHER. Except for OTHER, with an additional 4% overhead, all others "
            "are within 4%."
        ),
        "bound",
        "9 % is 5.0 % above 4 %, not 4 %",
    ),
    (
        (
            "If the performance delta falls within 5%, we consider this acceptable.\n\n"
            "The delta between VM.36 and BM.40 is 5.5%. We consider this delta to be acceptable."
        ),
        "gauge",
        "5.5 % is called acceptable, line 1 accepts up to 5 %",
    ),
    (
        "When using RoCE it is slow. Except for CODE in VM-IB, it is fast.",
        "copied",
        "VM-IB in a paragraph about RoCE",
    ),
    (
        "It has less than 5% increase in latency.\n\nFor tiny messages the extra latency is about 20%.",
        "bound",
        "less than 5 % more latency, but line 3 has 20 %",
    ),
    (
        "WRF shows an increase of 20%.\n\nIt will be 10% (as WRF) to 30% (as LAMMPS).",
        "conclusion",
        "10 % for WRF, measured were 20 %",
    ),
    (
        "It used test_suite_2021 in the text.\n\ndatabase: test_suite_2018",
        "version",
        "test_suite_2018, but 2021 in line 1",
    ),
    (
        "- `cores_per_vm`: how many\n\ncore_per_vm: 4",
        "name",
        "'core_per_vm', but 'cores_per_vm' in line 1",
    ),
    (
        TABLE + "9\t0.1%\t-9.0%\n\nThe gap is negligible, typically around 1%.",
        "outlier",
        "-9 % (B, 9) is an outlier of its own table",
    ),
]

RIGHT = [
    "It is faster by 3.5X to 4X. Between 10% and 20% is gained.",
    "Since 40 ranks on metal use 11.1% more cores than 36 ranks, we accept it.",
    "Metal (40 PPN) against a VM (36 PPN), representing a 10% decrease.",
    "The latency is 1.5 microseconds. The wire has 900 ns and accounts for most of it.",
    "A has 12% and 10% higher latency than the B and C, respectively.",
    "A node has two Intel Xeon Gold 6240 CPUs, with a total of 36 cores. We use 576 cores (16 nodes).",
    "We see 3.9% on CODE, 9.0% on OTHER. Except for OTHER, all the other workloads stay within 4%.",
    "We see an improvement of 9% on CODE. All the other workloads are within 4%.",
    (
        "If the performance delta falls within 5%, we consider this acceptable.\n\n"
        "The delta is 4.5%. We consider this delta to be acceptable."
    ),
    "When using RoCE it is slow. Except for CODE in VM-RoCE, it is fast.",
    (
        "It has less than 5% increase in latency for messages larger than 1 KiB.\n\n"
        "For tiny messages the extra latency is about 20%."
    ),
    "WRF shows an increase of 9%.\n\nIt will be 10% (as WRF) to 30% (as LAMMPS).",
    "It used test_suite_2021 in the text.\n\ndatabase: test_suite_2021",
    "- `cores_per_vm`: how many\n\ncores_per_vm: 4",
    TABLE + "\nThe gap is negligible, typically around 1%.",
]


@pytest.mark.parametrize(("text", "rule", "what"), WRONG)
def test_a_contradiction_is_found(text: str, rule: str, what: str) -> None:
    (found,) = lint(text)
    assert found.rule == rule
    assert what in found.what


@pytest.mark.parametrize("text", RIGHT)
def test_what_agrees_is_left_alone(text: str) -> None:
    assert lint(text) == []


EXPECTED = {
    "000": {(804, "part"), (816, "version"), (868, "implied"), (881, "share"), (937, "gauge")},
    "001": {
        (122, "cores"),
        (132, "range"),
        (142, "cores"),
        (162, "bound"),
        (170, "bound"),
        (170, "copied"),
        (203, "outlier"),
    },
    "002": set(),
    "003": {(13, "bound"), (203, "conclusion")},
    "004": {(1274, "name")},
}
"""What contradicts itself in the texts, read and checked by people."""


OF_A_MADE_TEXT = {
    (8, "cores"),
    (12, "share"),
    (16, "range"),
    (18, "part"),
    (20, "implied"),
    (22, "bound"),
}

TEXTS = {PAPERS / "contradictions.md": OF_A_MADE_TEXT} | {
    path: EXPECTED[path.name.partition("_")[0]] for path in sorted(SEEDS.glob("0*_*"))
}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_contradictions_of_whole_texts(path: Path) -> None:
    found = {(finding.line, finding.rule) for finding in lint(path.read_text())}
    assert found >= TEXTS[path]
    assert len(found - TEXTS[path]) <= 1, "false alarms"


def measured() -> list[tuple[Arm, list[Cell]]]:
    point = Point("osu", "osu_latency", "", 8, 2, 2, "latency", Unit.MICROSECONDS)
    sides = []
    for name, factor in (("metal", 1.0), ("vm", 1.3)):
        seen = (Observation("r", i, None, factor * (1 + i / 1000), "s", 4) for i in range(10))
        sides.append((Arm(name, "p", "f", "l", 48), [Cell(name, point, tuple(seen))]))
    return sides


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        ("The vm has 30% higher latency than metal.", False),
        ("The vm has less than 35% higher latency than metal.", False),
        ("The vm has less than 10% higher latency than metal.", True),
        ("The vm has 50% higher latency than metal.", True),
        ("The vm has 30% lower latency than metal.", True),
        ("Something else has 90% higher latency.", False),
    ],
)
def test_claims_must_agree_with_the_data(sentence: str, wrong: bool) -> None:
    found = lint(sentence, compare(*measured()))
    assert [f.rule for f in found] == ["data"] * wrong


def test_lines_of_sentences_and_tables() -> None:
    document = read("One. Two\nis longer. Three.\n\nsize\ta\tb\n1\t2%\t-3.5%\n")
    assert [(s.line, s.text) for s in document.sentences] == [
        (1, "One."),
        (1, "Two is longer."),
        (2, "Three."),
    ]
    (table,) = document.tables
    assert [(c.line, c.row, c.column, c.value) for c in table.cells] == [
        (5, "1", "a", 2),
        (5, "1", "b", -3.5),
    ]
    (markdown,) = read("| n | a |\n|---|---|\n| 4 | 1.5 % |\n").tables
    assert markdown.cells[0].value == 1.5


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "paper.md"
    text.write_text("Fine.\n\nIt is faster by 3X to 3X.\n")
    assert main(["study", "lint", str(text)]) == 4
    assert f"{text}:3: '3X to 3X' has one end only [range]" in capsys.readouterr().out
    assert main(["study", "lint", str(text), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["findings"][0]["line"] == 3
    text.write_text("Fine.\n")
    assert main(["study", "lint", str(text)]) == 0
    assert main(["study", "lint", str(tmp_path / "none.md")]) == 1


WORDS = [
    "0",
    "1",
    "2",
    "3.5",
    "100",
    "from",
    "to",
    "of",
    "by",
    "and",
    "or",
    "within",
    "below",
    "worst",
    "mean",
    "is",
    "so",
    "leaving",
    "each",
    "per",
    "nodes",
    "cores",
    "0 s",
    "2 s",
    "3 %",
    "5 %",
    "8 GB",
    "1 MiB",
    "0 Gb/s",
    "100 Gb/s",
    "link",
    "over",
    "took",
    "twice",
    "half",
    "x",
    "=",
    "+",
    ",",
    "(",
    ")",
    ";",
    "the",
    "more",
    "than",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_any_sentence_of_numbers_is_read(words: list[str]) -> None:
    for finding in lint(" ".join(words)):
        assert finding.line == 1


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="0123456789.% aAIBRoCE-()toX\t|\n,mort", max_size=300))
def test_any_text_is_read(text: str) -> None:
    for finding in lint(text):
        assert 1 <= finding.line <= text.count("\n") + 1
