# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.core.errors import LogError
from nearmetal.evidence import Unit, parse_log
from tests.python.evidence_runs import COLUMNS, own_log

LOGS = Path(__file__).parent / "golden" / "logs"
GOOD = own_log("patterns", {"pingpong": [(0, 0.5), (8, 0.25)], "barrier": [(0, 1.0)]})
IMB = (LOGS / "imb-mpi1.txt").read_text()
RMA = (LOGS / "imb-rma.txt").read_text()
NETPIPE = (LOGS / "netpipe.txt").read_text()


def own_error(text: str) -> str:
    with pytest.raises(LogError) as caught:
        parse_log(text, "a.out", "nearmetal-bench")
    return caught.value.message


def test_own_rows_are_found_by_header_and_know_their_line() -> None:
    log = parse_log(GOOD, "a.out", "nearmetal-bench")
    table = log.table("pingpong")
    assert table is not None
    assert [r.values["time_p50"] for r in table.rows] == [0.5, 0.25]
    assert table.rows[1].values["rate_p50"] == 4.0
    assert GOOD.splitlines()[table.rows[1].line - 1].startswith("8 50 64")
    assert log.header["ranks"] == "2"


def test_own_columns_may_come_in_any_order() -> None:
    text = GOOD.replace(COLUMNS, "samples size_B " + COLUMNS.split(" ", 2)[2])
    table = parse_log(text, "a.out", "nearmetal-bench").table("pingpong")
    assert table is not None
    assert table.rows[1].values["samples"] == 8
    assert table.rows[1].values["size"] == 50


def test_own_preamble_of_a_launcher_is_kept_as_remarks() -> None:
    text = "[launcher] a warning\n" + GOOD
    log = parse_log(text, "a.out", "nearmetal-bench")
    assert log.remarks[0] == (1, "[launcher] a warning")
    table = log.table("pingpong")
    assert table is not None
    assert text.splitlines()[table.rows[0].line - 1].startswith("0 50 64")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (" batch ", " bunch ", "a.out:4: unknown column 'bunch'"),
        ("0.2500", "0,2500", "a.out:6: '0,2500' is not a number"),
        ("0.2500", "nan", "a.out:6: 'nan' is not a measured value"),
        ("0.2500", "-1", "a.out:6: '-1' is not a measured value"),
        (" 1 4.000000 32.00", "", "a.out:6: 8 values for 11 columns"),
        ("# end pingpong\n", "", "a.out:7: table barrier within pingpong"),
        ("# end pingpong", "# end bcast", "a.out:7: the end of 'bcast'"),
        ("# done patterns\n", "", "a.out:11: the output stops before its end"),
        ("bench 1 patterns", "bench 2 patterns", "a.out:1: format version '2'"),
        ("# table barrier", "# table pingpong", "a.out:11: the end of 'barrier'"),
        ("size_B samples", "samples samples", "a.out:4: column 'samples' stands twice"),
        ("# done patterns", "# done patterns\nx", "a.out:13: 'x' after the end"),
        ("# table pingpong", "# table", "a.out:3: a table without a name"),
    ],
)
def test_own_damage_is_told_with_file_and_line(old: str, new: str, expected: str) -> None:
    assert old in GOOD
    assert own_error(GOOD.replace(old, new, 1)).startswith(expected)


def test_own_table_cut_off_after_its_name() -> None:
    assert "has no columns" in own_error("# nearmetal-bench 1 p\n# table a\n# end a\n# done p\n")


def test_imb_tables_modes_and_time_outs() -> None:
    log = parse_log(IMB, "i", "imb")
    pingpong = log.table("PingPong")
    assert pingpong is not None
    assert pingpong.processes == 2
    assert pingpong.rows[4].values == {
        "size": 8,
        "repetitions": 20,
        "time": 7.11,
        "bandwidth": 1.13,
    }
    assert pingpong.columns[3].unit is Unit.MEGABYTES_PER_SECOND
    barrier = log.table("Barrier")
    assert barrier is not None
    assert "size" not in barrier.rows[0].values
    uniband = log.table("Uniband")
    assert uniband is not None
    assert uniband.rows[0].values["rate"] == 29203
    assert any("time-out" in text for _, text in log.remarks)
    rma = parse_log(RMA, "i", "imb")
    assert {t.variant for t in rma.tables if t.test == "Bidir_put"} == {
        "aggregate",
        "non-aggregate",
    }
    assert {c.metric for t in rma.tables for c in t.columns} >= {"time_pure", "time_overlapped"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("t[usec]", "t[sec]", "unknown column 't[sec]'"),
        ("# All processes entering MPI_Finalize", "", "the output stops before its end"),
        ("         3.95         0.25", "         3.95", "3 values for 4 columns"),
        ("3.95", "3,95", "'3,95' is not a number"),
        ("# Benchmarking PingPong", "", "a header without a test"),
        ("Intel(R) MPI Benchmarks", "Something else", "not the output of the Intel MPI"),
    ],
)
def test_imb_damage_is_told(old: str, new: str, expected: str) -> None:
    assert old in IMB
    with pytest.raises(LogError, match=r"i:\d+: ") as caught:
        parse_log(IMB.replace(old, new, 1), "i", "imb")
    assert expected in caught.value.message


def test_netpipe_rows_in_its_own_units() -> None:
    log = parse_log(NETPIPE, "n", "netpipe")
    table = log.table("PingPong")
    assert table is not None
    eight = next(r for r in table.rows if r.values["size"] == 8)
    assert eight.values["time"] == 0.45
    # 8 bytes in 0.475 us are 2^20 * 134.74 bits a second: the printed time is rounded.
    assert eight.values["bandwidth"] == 134.74
    assert table.columns[2].unit is Unit.MEBIBITS_PER_SECOND


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Now starting the main loop", "", "not the output of NetPIPE"),
        ("45.71 Mbps in       0.50 usec", "45.71 Mb", "is not a row of NetPIPE"),
        ("  2:       3 bytes", "  7:       3 bytes", "row 7 where 2 was due"),
        ("0.50 usec", "0.50 msec", "units"),
    ],
)
def test_netpipe_damage_is_told(old: str, new: str, expected: str) -> None:
    assert old in NETPIPE
    with pytest.raises(LogError, match=r"n:\d+: ") as caught:
        parse_log(NETPIPE.replace(old, new, 1), "n", "netpipe")
    assert expected in caught.value.message


def test_netpipe_without_rows_and_unknown_formats() -> None:
    with pytest.raises(LogError, match="no row"):
        parse_log("Now starting the main loop\n", "n", "netpipe")
    with pytest.raises(LogError, match="unknown log format"):
        parse_log("", "n", "mpptest")


@pytest.mark.parametrize(
    ("log_format", "text"), [("nearmetal-bench", GOOD), ("imb", IMB), ("netpipe", NETPIPE)]
)
@settings(deadline=None)
@given(data=st.data())
def test_damaged_logs_are_read_or_refused_but_never_crash(
    log_format: str, text: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    junk = data.draw(st.text(max_size=12))
    with contextlib.suppress(LogError):
        log = parse_log(text[:start] + junk + text[end:], "x", log_format)
        assert all(len(r.values) == len(t.columns) for t in log.tables for r in t.rows)


# NetPIPE marks no end: load_run looks for the largest size instead.
@pytest.mark.parametrize(("log_format", "text"), [("nearmetal-bench", GOOD), ("imb", IMB)])
@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9])
def test_output_that_was_cut_off_is_refused(log_format: str, text: str, cut: float) -> None:
    with pytest.raises(LogError):
        parse_log(text[: int(len(text) * cut)], "x", log_format)
