# SPDX-License-Identifier: Apache-2.0
"""The work for foreign text is in proportion to its length, for every recognizer and parser.

A time on a clock says nothing on a busy machine. So a text costs little processor time, or four
times its length costs at most ten times as much, in the best of several tries. What these texts
found cost a thousand times as much.
"""

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.cluster.backends.vsphere.vhpc import Target, import_vhpc
from nearmetal.config.document import MAX_BYTES
from nearmetal.config.explain import parse_yaml
from nearmetal.core.errors import LogError, NearmetalError, SpecError
from nearmetal.evidence import parse_log
from nearmetal.evidence.parse import PARSERS
from nearmetal.evidence.parse.reader import MAX_LINE, MAX_LINES, MAX_ROWS, Reader
from nearmetal.evidence.recognize import decode, recognize, refuse_crash
from nearmetal.evidence.signatures import NOT_READ, SIGNATURES
from nearmetal.study.claims import lint
from nearmetal.study.labels import MAX_RULES, Labels
from nearmetal.study.pattern import MAX_MARKS, Pattern
from tests.python.study_logs import (
    OSU_DERIVED,
    OSU_VARIED,
    PERFTEST_TIME,
    REFRAME_3,
)
from tests.python.test_evidence_parse import GOOD as OWN
from tests.python.test_evidence_parse import IMB, NETPIPE, RMA
from tests.python.test_study_formats import (
    GOOD,
    OSU,
    OSU_FULL,
    OSU_ONE_SIDED,
    OSU_STATISTICS,
    PERFTEST_JSON,
    PERFTEST_LAT,
)

LITTLE_S = 0.05
"""Processor time that is little for 60000 characters; the texts below took seconds to hours."""

LONG = 60_000
RATIO = 10
PIECES = [
    "\n",
    " ",
    "\t",
    "\r",
    "9",
    "a",
    "#",
    "[",
    "](",
    "=",
    ": ",
    ".",
    ",",
    "_",
    "-",
    " \n",
    "x\n",
]

TAGS = ("0: ", "[1,0]<stdout>: ", "2026-01-01T00:00:00Z [0] ")

SAMPLES = [
    *GOOD.values(),
    OSU_FULL,
    OSU_ONE_SIDED,
    OSU_STATISTICS,
    OSU_VARIED,
    OSU_DERIVED,
    PERFTEST_LAT,
    PERFTEST_JSON,
    PERFTEST_TIME,
    REFRAME_3,
    *("".join(f"{tag}{line}\n" for line in OSU.splitlines()) for tag in TAGS),
    OWN,
    IMB,
    RMA,
    NETPIPE,
]


def seconds(work: Callable[[str], object], text: str) -> float:
    begin = time.process_time()
    with contextlib.suppress(NearmetalError):
        work(text)
    return time.process_time() - begin


def assert_linear(work: Callable[[str], object], make: Callable[[int], str], long: int) -> None:
    """Assert that four times a text costs little, or about four times as much."""
    if seconds(work, make(long)) < LITTLE_S:
        return
    found = []
    for _ in range(3):
        small = min(seconds(work, make(long // 4)) for _ in range(3))
        large = seconds(work, make(long))
        found.append((small, large))
        if large < max(LITTLE_S, RATIO * small):
            return
    raise AssertionError(f"{make(40)[:200]!r}... costs {found}")


def grown(before: str, piece: str, after: str) -> Callable[[int], str]:
    """Return what makes a text of such a length, in which a piece stands again and again."""
    return lambda n: before + piece * (n // len(piece)) + after


def read(text: str) -> None:
    """Do what an import does."""
    known = recognize(decode(text.encode("utf-8", "replace"), "f"), "f")
    refuse_crash(text, "f")
    parse_log(text, "f", known)


def words_of(patterns: Iterator[str]) -> set[str]:
    """Return the literal texts in patterns."""
    found = set()
    for pattern in patterns:
        plain = re.sub(r"\[[^\]]*\][*+?]?|\\[A-Za-z][*+?]?|\(\?[:!=<]*|\{[^}]*\}", "\n", pattern)
        found |= {re.sub(r"\\(.)", r"\1", word) for word in re.split(r"[\n()|^$*+?]", plain)}
    return {word for word in found if len(word.strip()) > 2}


PATTERNS = [p for _, p in (*SIGNATURES.values(), *NOT_READ.values())]
HEADS = sorted(words_of(iter(PATTERNS)))


@pytest.mark.parametrize("piece", [*PIECES, *HEADS])
def test_recognizers_are_linear(piece: str) -> None:
    """Every recognizer, in texts of its own words and of what all of them skip."""
    everything = [re.compile(pattern, re.MULTILINE) for pattern in PATTERNS]

    def search(text: str) -> None:
        for pattern in everything:
            pattern.search(text)

    for end in ("", "x", "\nx"):
        assert_linear(search, grown("", piece, end), LONG)
    for filler in ("\n", " ", "x"):
        assert_linear(search, grown(piece, filler, "x"), LONG)


def hostile_lines(line: str) -> Iterator[tuple[str, str, str]]:
    """Yield ways to make a line of a benchmark long, as the arguments of `grown`."""
    yield line, " ", "x"
    yield line, " ", ""
    yield "", " ", line
    yield "", line or "x", ""
    for place in re.finditer(r" +|\t+", line):
        for piece in (" ", "x ", " 9"):
            yield line[: place.end()], piece, line[place.end() :]
            yield line[: place.end()], piece, "!"
    for place in re.finditer(r"\d+|[A-Za-z]+", line):
        yield line[: place.end()], place[0][-1], line[place.end() :]
        yield line[: place.start()], place[0] + " ", ""
    for mark in "[]()=:":
        if mark in line:
            at = line.index(mark) + 1
            yield line[:at], mark + " ", "!"
            yield line[:at], line[at:] or "x", ""


def rules_of(reader: type[Reader]) -> list[Callable[[str], object]]:
    """Return what reads a line on its own: the rules, and the patterns of the reader."""
    return [rule.pattern.match for rule in reader.rules]


@pytest.mark.parametrize("name", PARSERS)
def test_rules_of_parsers_are_linear(name: str) -> None:
    """Every line of a good log, made long in every way, for every rule of its parser."""
    reader = PARSERS[name]
    rules = rules_of(reader)
    lines = {line for text in SAMPLES if _format(text) == name for line in text.split("\n")}
    assert lines
    draw = random.Random(name)

    def match(text: str) -> None:
        for rule in rules:
            rule(text)

    for line in draw.sample(sorted(lines), min(len(lines), 12)):
        for way in hostile_lines(line):
            assert_linear(match, grown(*way), LONG // 2)


def _format(text: str) -> str:
    return recognize(decode(text.encode(), "f"), "f")


@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_parsers_are_linear_in_long_lines(number: int) -> None:
    """A long line after each of some lines of a good log, so that every state meets it."""
    text = SAMPLES[number]
    lines = text.split("\n")
    draw = random.Random(number)
    for at in draw.sample(range(len(lines)), min(len(lines), 8)):
        before, after = "\n".join(lines[: at + 1]), "\n".join(lines[at + 1 :])
        ways = list(hostile_lines(lines[at]))
        for begin, piece, end in draw.sample(ways, min(len(ways), 4)):
            make = grown(f"{before}\n{begin}", piece, f"{end}\n{after}")
            assert_linear(read, make, LONG)


@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_parsers_are_linear_in_many_lines(number: int) -> None:
    """Each of some lines of a good log again and again, also with another number each time."""
    lines = SAMPLES[number].split("\n")
    draw = random.Random(number)
    for at in draw.sample(range(len(lines)), min(len(lines), 6)):
        before, after = "\n".join(lines[: at + 1]), "\n".join(lines[at + 1 :])
        again = lines[max(0, at - draw.randrange(3)) : at + 1]

        def make(n: int, again: list[str] = again, before: str = before, after: str = after) -> str:
            block, numbers = "\n".join(again) + "\n", count(100_000)
            many = (re.sub(r"\d+", str(next(numbers)), block) for _ in range(n // len(block) // 2))
            return f"{before}\n{block * (n // len(block) // 2)}{''.join(many)}{after}"

        assert_linear(read, make, LONG)


def test_tables_by_the_thousand() -> None:
    """What is looked up once per table is not looked up in a list."""

    def own(n: int) -> str:
        tables = "".join(f"# table t{i}\nsize_B\n1\n# end t{i}\n" for i in range(n))
        return f"# nearmetal-bench 1 p\n{tables}# done p\n"

    def osu(n: int) -> str:
        more = "".join(f"# Synchronization: s{i}\n# Datatype: t{i}.\n" for i in range(n))
        return f"# OSU MPI_Put Latency Test v5.9\n{more}"

    assert_linear(lambda text: parse_log(text, "f", "nearmetal-bench"), own, 16_000)
    assert_linear(lambda text: parse_log(text, "f", "osu"), osu, 16_000)
    assert_linear(
        lambda text: parse_log(text, "f", "osu"),
        lambda n: "# OSU MPI Latency Test v5.9\n# Size " + "MB/s " * n,
        MAX_LINE // 5 - 100,
    )


@given(
    st.sampled_from(sorted(PARSERS)),
    st.lists(
        st.tuples(
            st.sampled_from(sorted({line for text in SAMPLES for line in text.split("\n")})),
            st.text("\n \t\r90aA#[]()=:.,_-x!", max_size=6),
            st.integers(1, 3000),
        ),
        max_size=6,
    ),
)
@settings(max_examples=150, deadline=None)
def test_any_mixture_is_read_or_refused_in_little_time(
    name: str, parts: list[tuple[str, str, int]]
) -> None:
    text = "\n".join(line + filler * times for line, filler, times in parts)

    def both(given: str) -> None:
        with contextlib.suppress(LogError):
            recognize(given, "f")
        parse_log(given, "f", name)

    assert_linear(both, lambda n: text * max(1, n // 15_000), LONG)


def test_a_text_has_bounded_lines_and_rows() -> None:
    with pytest.raises(LogError, match=f"f:2: more than {MAX_LINE} characters"):
        decode(b"x\n" + b"y" * (MAX_LINE + 1) + b"\n", "f")
    with pytest.raises(LogError, match=f"more than {MAX_LINES} lines"):
        decode(b"x" + b"\n" * (MAX_LINES + 1), "f")
    assert decode(b"y" * MAX_LINE + b"\n", "f") == "y" * MAX_LINE + "\n"
    reader = Reader("", "f")
    reader._figures = MAX_ROWS - 1
    reader.count()
    with pytest.raises(LogError, match=f"more than {MAX_ROWS} rows"):
        reader.count()


# Labels


def test_patterns_of_paths_are_linear() -> None:
    """As deep as the walk goes, with as many marks as a pattern may have."""
    for text in (
        "**/" * 20 + "x",
        "**/" * 20 + "x?",
        "*a" * (MAX_MARKS - 2) + "*b?",
        "{_}" * MAX_MARKS + "b",
        "?*" * (MAX_MARKS // 2 - 1) + "/b?",
        "{arm}{fabric}{placement}" + "{_}a" * 30 + "?",
        "{launch}{block}{nodes}{ranks}*x?",
    ):
        for piece in ("a/", "a", "1", "a1/", "/"):
            pattern = Pattern(text)
            assert_linear(pattern.match, grown("", piece, "!c"), 4096)


def test_patterns_have_a_bound() -> None:
    with pytest.raises(ValueError, match=f"more than {MAX_MARKS} marks"):
        Pattern("*" * (MAX_MARKS + 1))
    rules = '  - path: "x"\n' * (MAX_RULES + 1)
    text = f"format: 1\nrun: r\narms: {{}}\nsources:\n{rules}"
    with pytest.raises(SpecError, match=f"sources.*at most {MAX_RULES}"):
        parse_yaml(text, "f", Labels, "labels")


# Files of users


@pytest.mark.parametrize(
    "unit",
    ["key{}: 1\n", "? {}\n", "- {}\n", "a: {{b{}: 1\n", '"{}', "&a{} ", "key: |\n {}\n", "\t{}\n"],
)
def test_yaml_is_linear(unit: str) -> None:
    def make(n: int) -> str:
        return "format: 1\n" + "".join(unit.format(i) for i in range(n))

    assert_linear(lambda text: parse_yaml(text, "f", Labels, "labels"), make, 4000)


@pytest.mark.parametrize(
    "unit",
    [
        "key{}: 1\n",
        " more{}\n",
        "{{" * 8,
        "[s{}]\n",
        "[_VMS_]\nvm{}: x y z\n",
        "x{}\n",
        " " * 40,
        "_VMS_ ",
    ],
)
def test_files_of_vhpc_are_linear(unit: str) -> None:
    def make(n: int) -> str:
        head = "[BASE]\na: b\n[_VMS_]\nvm: BASE\n"
        return (head + "".join(unit.format(i) for i in range(n)))[:MAX_BYTES]

    target = Target("c", "v", "u")
    assert_linear(lambda text: import_vhpc(text, "f", target), make, 6000)


def test_sections_of_vhpc_do_not_multiply() -> None:
    keys = "".join(f"k{i}: 1\n" for i in range(2000))
    text = f"[A]\n{keys}[_VMS_]\n" + "".join(f"vm{i}: {'A ' * 30}\n" for i in range(9))
    with pytest.raises(SpecError, match="more than 100000 settings"):
        import_vhpc(text, "f", Target("c", "v", "u"))


@pytest.mark.parametrize(
    "piece", [*PIECES, "a_", "9 %", "1.5 GB/s ", "from 9 % to ", "VM-", "up to 9.", "on (", "A B "]
)
def test_claims_are_linear(piece: str) -> None:
    assert_linear(lambda text: lint(text, []), grown("", piece, "!"), LONG // 3)
