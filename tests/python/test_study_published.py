# SPDX-License-Identifier: Apache-2.0
"""Published numbers: each stands where the data say, none of the texts' measurements is missing."""

import re
from pathlib import Path

import pytest

from nearmetal.evidence.published import STUDIES, adapters, find, numbers, plots
from nearmetal.study.effects import RULE, SignedTable, decompose, faster_percent, rounded
from tests.python.cited_places import lines_of
from tests.python.study_shared import PAPERS, SEEDS

MEASURED = re.compile(
    r"\d[\d.,]*\s?\\?%|(?<![A-Z])\d[\d.]*\s?(?:X\b|\\times|\N{MULTIPLICATION SIGN})|\b\d+(?:\.\d+)?x\b"
    r"|\d[\d.]*\s?(?:μ ?s|microsec|nanosec|mcsec|GB/s|MB/s|Gbps|GFLOP/s)"
    r"|\d[\d.]* times (?:that|higher)"
)
NO_MEASUREMENT = {
    ("vmw-ib", 599): "headers of percentiles",
    ("osu", 1489): "a progress bar",
    ("osu", 1494): "a progress bar",
}


REFERENCES = re.compile(r"(9\.|6) R(EFERENCES|eferences)|References$")
SOURCES = [PAPERS, *([SEEDS] if SEEDS.is_dir() else [])]

of_each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)


def text_of(study: str, source: Path) -> list[str]:
    """Return the lines of a text, or of the numbers in it, up to its references."""
    if source == SEEDS:
        return lines_of(study)
    rows = (PAPERS / f"{study}.tsv").read_text().splitlines()[1:]
    pieces = [row.split("\t") for row in rows]
    lines = [""] * int(pieces[-1][0])
    for number, piece in pieces:
        lines[int(number) - 1] += f"; {piece}"
    return lines


@pytest.mark.parametrize("study", STUDIES)
def test_values_are_what_was_printed(study: str) -> None:
    assert numbers(study)
    for number in numbers(study):
        text = number.printed.replace(",", ".").replace("\N{MINUS SIGN}", "-")
        assert number.bound in {"", "about", "at most", "at least"}
        assert number.origin in {"table", "prose"}
        assert number.unit
        assert number.metric
        shown = [abs(float(word)) for word in re.findall(r"\d+(?:\.\d+)?", text)]
        scale = {"nanoseconds": 1e-3, "KB": 1024}
        factor = next((f for unit, f in scale.items() if unit in text), 1)
        assert any(abs(number.value) == pytest.approx(s * factor) for s in shown) or "twice" in text


@of_each_source
@pytest.mark.parametrize("study", STUDIES)
def test_every_number_stands_in_its_line(study: str, source: Path) -> None:
    lines = text_of(study, source)
    for number in numbers(study):
        assert number.printed in lines[number.line - 1], number
    for plot in plots():
        if plot.study == study:
            words = plot.figure.replace("Figure ", "")
            assert words.rstrip("ab") in lines[plot.line - 1], plot


@of_each_source
@pytest.mark.parametrize("study", STUDIES)
def test_no_measurement_of_the_text_is_missing(study: str, source: Path) -> None:
    lines = text_of(study, source)
    end = next((n for n, line in enumerate(lines) if REFERENCES.match(line)), len(lines))
    known: dict[int, list[str]] = {}
    for number in numbers(study):
        known.setdefault(number.line, []).append(number.printed)
    missing = []
    for nr, line in enumerate(lines[:end], 1):
        if (study, nr) in NO_MEASUREMENT or "Figure" in line[:8]:
            continue
        for match in MEASURED.finditer(line):
            digits = re.match(r"[\d.,]*\d", match[0])
            assert digits
            if not any(digits[0] in printed for printed in known.get(nr, [])):
                missing.append((nr, match[0]))
    assert missing == []


def test_tables_4_and_5_are_signed_and_their_outliers_flagged() -> None:
    flagged = {}
    for arm in ("SR-IOV IB", "DirectPath IO IB"):
        found = find("vmw-adapter", arm=arm, metric="faster", origin="table")
        assert len(found) == 30
        table = SignedTable("IB", "RoCE", {(n.scale, n.test): n.value for n in found})
        flagged[arm] = table
    srio = flagged["SR-IOV IB"]
    assert "Grubbs" in RULE
    # 192 cores, GROMACS (2.6 %) lies within what 30 cells like the others may show.
    assert srio.flagged == {("576 cores", "OpenFOAM"): -5.5}
    assert flagged["DirectPath IO IB"].flagged == {}
    assert srio.shown(("576 cores", "OpenFOAM")) == "-5.5 %"
    assert srio.shown(("192 cores", "GROMACS")) == "+2.6 %"
    assert srio.shown(("48 cores", "LAMMPS")) == "0.0 %"
    assert flagged["DirectPath IO IB"].shown(("384 cores", "OpenFOAM")) == "-2.5 %"
    assert SignedTable("a", "b", {}).flagged == {}


def test_signs_follow_the_direction_of_the_metric() -> None:
    assert faster_percent(2.0, 1.0, lower_is_better=False) == pytest.approx(100)
    assert faster_percent(2.0, 1.0, lower_is_better=True) == pytest.approx(-50)


def test_the_published_tax_is_split() -> None:
    def loss(test: str, arm: str, scale: str) -> float:
        (number,) = find("vmw-ib", test=test, arm=arm, base="BM.48", scale=scale, metric="loss")
        assert number.digits == 1
        return number.value

    tax = decompose(
        rounded(loss("GROMACS", "VM.44", "16 nodes")), rounded(loss("GROMACS", "BM.44", "16 nodes"))
    )
    assert round(100 * tax.core_loss.value, 1) == 7.4
    assert [round(100 * v, 2) for v in tax.virtualization] == [1.08, 0.97, 1.19]
    tax = decompose(
        rounded(loss("LAMMPS", "VM.44", "1 node")), rounded(loss("LAMMPS", "BM.44", "1 node"))
    )
    assert round(100 * tax.virtualization.value, 2) == -0.78
    assert "no verdict" in tax.verdict


def test_tables_of_the_benchmarks_are_whole() -> None:
    bandwidth = find("vmw-ib", test="ib_send_bw", metric="bandwidth", origin="table")
    assert len(bandwidth) == 22  # that of 8 MiB is not in the text
    assert len(find("vmw-ib", test="ib_send_lat", origin="table")) == 23 * 7
    assert [n.value for n in find("osu", test="osu_latency", scale="1 B")] == [1.29]
    assert len(find("osu", test="osu_latency", metric="latency")) == 24
    assert len(find("osu", test="osu_bw", metric="bandwidth")) == 23
    (comma,) = find("vmw-ib", printed="5,214466")
    assert comma.value == 5.214466
    assert {(f.adapter, f.property): f.printed for f in adapters()}["PVRDMA", "rdma"] == "RoCE only"
    assert len(adapters()) == 30
    assert {p.study for p in plots()} == set(STUDIES)
