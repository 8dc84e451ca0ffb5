# SPDX-License-Identifier: Apache-2.0
"""Logs as folders hold them: accelerators, congestion, performance logs, and lines with a tag."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.cli.main import main
from nearmetal.core.errors import LogError
from nearmetal.evidence import Unit
from nearmetal.evidence.model import Setup
from nearmetal.evidence.prefixes import EVERY_RANK, PIECES
from nearmetal.study.importer import import_study
from nearmetal.study.model import Cell, Observation, Point
from nearmetal.study.physics import rate_disagrees
from nearmetal.study.store import Study
from tests.python.study_logs import (
    GPCNET,
    NCCL,
    OSU_DERIVED,
    OSU_VARIED,
    PERFTEST_TIME,
    REFRAME,
    REFRAME_3,
)
from tests.python.test_study_cells import RATE, WRITE, Unwatched, cells, read, why_refused
from tests.python.test_study_formats import (
    GOOD,
    OSU,
    PERFTEST_JSON,
    PERFTEST_LAT,
)

IMB = (Path(__file__).parent / "golden" / "logs" / "imb-mpi1.txt").read_text()
TIMED = WRITE.replace(" 65536      5000             11000.00", " 65536      5132777          0.00")

OPTIONS = [
    *(
        pytest.param(NCCL, ours, theirs, id=f"nccl {ours} {theirs}")
        for ours, theirs in (
            ("nThread 1", "nThread 2"),
            ("nGpus 1", "nGpus 2"),
            ("warmup iters: 5", "warmup iters: 1"),
            (" iters: 20", " iters: 100"),
            ("agg iters: 1", "agg iters: 4"),
            ("validation: 1", "validation: 0"),
            ("graph: 0", "graph: 1"),
            ("graph: 0\n", "graph: 0\n# Blocking Enabled: wait and barrier (-m)\n"),
            (" float", "double"),
            ("  sum ", " prod "),
            ("      -1 ", "       1 "),
            ("PROTO set by environment to simple", "PROTO set by environment to LL"),
            ("-np 2 ./all", "-np 2 -x NCCL_ALGO=Ring ./all"),
            ("all_reduce_perf", "reduce_scatter_perf"),
            ("version 2.17.6", "version 2.18.0"),
            ("library=22501", "library=22907"),
            ("#  Rank  1 Group  0", "#  Rank  1 Group  1"),
            ("on n2 device", "on n1 device"),
        )
    ),
    *(
        pytest.param(GPCNET, ours, theirs, id=f"gpcnet {theirs}")
        for ours, theirs in (
            ("2 nodes running Network", "3 nodes running Network"),
            ("2 nodes running Congestion", "1 nodes running Congestion"),
            ("8 MPI ranks", "16 MPI ranks"),
            ("(4 nodes)", "(8 nodes)"),
            ("Tests v1.3", "Tests v1.2"),
        )
    ),
    *(
        pytest.param(REFRAME, ours, theirs, id=f"reframe {theirs}")
        for ours, theirs in (
            ("|gnu|", "|clang|"),
            ("|null|4|", "|2|4|"),
            ("|null|4|", "|null|8|"),
            ("|{}|", '|{"OMP_NUM_THREADS": "2"}|'),
            ("%size=9", "%size=10"),
            ("|stream ", "|stream2 "),
            ("|MB/s|", "|GB/s|"),
        )
    ),
    *(
        pytest.param(REFRAME_3, ours, theirs, id=f"reframe 3 {theirs}")
        for ours, theirs in (
            ("using gcc", "using icc"),
            ("num_tasks=32", "num_tasks=64"),
            ("gmx_1400k", "gmx_3000k"),
            ("|ref=", "|large,num_nodes=1|ref="),
        )
    ),
    pytest.param(OSU_VARIED, "pairs: 2", "pairs: 4", id="osu -V -p"),
    pytest.param(OSU_DERIVED, "     2\n", "     4\n", id="osu -D of another kind"),
    pytest.param(OSU_DERIVED, "MPI_CHAR", "MPI_INT", id="osu -D -T"),
    pytest.param(PERFTEST_TIME, "4096[B]", "1024[B]", id="perftest -D mtu"),
    pytest.param(PERFTEST_TIME, "Send Latency", "RDMA_Read Latency", id="perftest -D test"),
    pytest.param(TIMED, "depth        : 128", "depth        : 1", id="perftest -D depth"),
]


@pytest.mark.parametrize(("text", "ours", "theirs"), OPTIONS)
def test_another_option_is_another_cell_or_a_refusal(text: str, ours: str, theirs: str) -> None:
    changed = text.replace(ours, theirs)
    assert changed != text
    before = cells(text)
    try:
        after = cells(changed)
    except LogError:
        return
    assert not before & after, sorted(map(str, before & after))[:3]


def test_the_two_ways_to_run_are_two_cells() -> None:
    plain = OSU_DERIVED.replace("     Transmit Size", "")
    plain = "\n".join(line[:-18] if line[:1].isdigit() else line for line in plain.split("\n"))
    counted = PERFTEST_LAT.replace("RDMA_Write", "Send")
    for one, other in (
        (OSU_VARIED, RATE.replace("v7.4", "v5.8")),
        (OSU_DERIVED, plain),
        (PERFTEST_TIME, counted),
        (TIMED, WRITE),
        (TIMED, WRITE.replace(" 11000.00", "     0.00")),
    ):
        assert not cells(one) & cells(other)
    windows = [table.setup.window for table in read(OSU_VARIED).tables]
    assert windows == ["1", "64", "1", "64"]


def test_a_peak_that_was_not_measured_is_no_figure() -> None:
    (table,) = read(TIMED).tables
    assert "bandwidth_peak" not in table.rows[0].values
    assert table.rows[0].values["bandwidth"] == pytest.approx(10900.0)
    assert table.setup_of(table.rows[0]).iterations == "for a fixed time"


def test_a_file_of_a_fixed_time_says_so() -> None:
    timed = PERFTEST_JSON.replace('"n_iterations": 5000', '"n_iterations": 5132777').replace(
        '"BW_peak": 94.90', '"BW_peak": 0.00'
    )
    (table,) = read(timed).tables
    assert table.setup.iterations == "for a fixed time"
    assert "bandwidth_peak" not in table.rows[0].values
    latency = """{
"test_info": {"test": "Send_Lat_Test"},
"results": {"MsgSize": 2, "n_iterations": 1577611, "t_avg": 1.90, "tps_average": 262864.28}
}
"""
    (table,) = read(latency).tables
    assert table.rows[0].values["transactions"] == pytest.approx(262864.28)
    assert table.setup.iterations == "for a fixed time"


def test_ports_of_a_run_of_a_fixed_time_are_columns() -> None:
    head = "BW average[MiB/sec]   MsgRate[Mpps]"
    both = "BW Port1[MiB/sec]   MsgRate Port1[Mpps]   BW Port2[MiB/sec]   MsgRate Port2[Mpps]"
    (table,) = read(
        TIMED.replace(head, f"{head}   {both}").replace("0.174400", "0.174400 5450 0.1 5450 0.0744")
    ).tables
    assert table.rows[0].values["bandwidth_port2"] == pytest.approx(5450.0)


def test_the_rate_of_messages_with_gaps_breaks_no_physics() -> None:
    def cell(metric: str, unit: Unit, value: float, datatype: str) -> Cell:
        setup = Setup(datatype=datatype)
        point = Point("osu", "osu_mbw_mr", "", 8, 2, 2, metric, unit, setup)
        return Cell("a", point, (Observation("r", 1, None, value, "", 1),))

    for datatype, wrong in (("MPI_CHAR", 1), ("MPI_CHAR, derived, 0.5 of it sent", 0)):
        both = [
            cell("bandwidth", Unit.MEGABYTES_PER_SECOND, 4.0, datatype),
            cell("rate", Unit.MESSAGES_PER_SECOND, 1e6, datatype),
        ]
        assert len(rate_disagrees(both)) == wrong


UNNAMED = NCCL.replace("$ mpirun -np 2 ./all_reduce_perf -b 8 -e 16\n", "\n").replace(
    "# Collective test starting: all_reduce_perf\n", "\n"
)
WHOLE, SPLIT = ("           2", "           4"), ("           1", "           2")


@pytest.mark.parametrize(
    ("redop", "root", "counts", "factor", "test"),
    [
        ("  sum", "-1", WHOLE, True, "all_reduce"),
        ("  sum", "-1", WHOLE, False, "all_reduce_or_sendrecv"),
        ("  sum", "-1", SPLIT, True, "reduce_scatter"),
        ("  sum", " 0", WHOLE, False, "reduce"),
        (" none", " 0", WHOLE, False, "broadcast"),
        (" none", " 0", SPLIT, True, "gather_or_scatter"),
        (" none", "-1", SPLIT, True, "all_gather_or_alltoall"),
        ("     ", "-1", SPLIT, True, "all_gather_or_alltoall"),
        (" none", "-1", SPLIT, False, "hypercube"),
        (" none", "-1", WHOLE, False, "sendrecv"),
    ],
)
def test_a_test_without_a_name_has_the_name_that_its_columns_show(
    redop: str, root: str, counts: tuple[str, str], factor: bool, test: str
) -> None:
    text = UNNAMED.replace("  sum      -1", f"{redop}      {root}")
    for before, after in zip(WHOLE, counts, strict=True):
        text = text.replace(f"{before}     float", f"{after}     float")
    if not factor:
        text = text.replace("    0.50 ", "    0.25 ").replace("    1.50 ", "    0.75 ")
        text = text.replace("    0.51 ", "    0.26 ").replace("    1.51 ", "    0.76 ")
    log = read(text)
    assert {table.test for table in log.tables} == {f"nccl_{test}"}
    assert any("does not name its test" in words for _, words in log.remarks)


def test_runs_of_nccl_in_one_file_keep_their_own_settings() -> None:
    tuned = NCCL.replace("all_reduce", "all_gather").replace("to simple", "to LL")
    first, _, second, _ = read(NCCL + tuned).tables
    assert (first.test, second.test) == ("nccl_all_reduce", "nccl_all_gather")
    assert "NCCL_PROTO simple" in first.setup.flags
    assert "NCCL_PROTO LL" in second.setup.flags
    assert "simple" not in second.setup.flags
    assert [t.setup.pair for t in read(NCCL + NCCL).tables][:1] == ["n1 and n2, table 1 of 2"]


def test_each_run_of_nccl_has_its_own_version() -> None:
    found = read(NCCL + NCCL.replace("version 2.17.6", "version 2.18.0")).tables
    versions = [table.setup.version for table in found]
    assert versions == ["2.17.6, NCCL 22501"] * 2 + ["2.18.0, NCCL 22501"] * 2


def test_a_plugin_may_choose_the_protocol() -> None:
    chosen = NCCL.replace(
        "NCCL INFO NCCL_PROTO set by environment to simple",
        'NCCL INFO NET/OFI Setting NCCL_PROTO to "LL"',
    )
    assert "NCCL_PROTO LL" in read(chosen).tables[0].setup.flags


def test_a_job_that_failed_is_left_out_and_one_that_was_slow_is_not() -> None:
    slow = REFRAME.replace("21116.5", "11116.5").replace("pass|2026-02-21", "fail|2026-02-21")
    log = read(slow)
    assert [row.values["copy"] for t in log.tables for row in t.rows] == [11116.5, 21216.5]
    assert any("job 65 missed its reference" in words for _, words in log.remarks)
    broken = read(REFRAME.replace("pass|2026-02-21", "fail|2026-02-21"))
    assert [row.values["copy"] for t in broken.tables for row in t.rows] == [21216.5]
    assert (2, "job 65 failed: left out") in broken.remarks
    assert "no figure of a job" in why_refused(REFRAME.replace("pass|", "fail|"))


def test_a_figure_without_value_or_with_a_foreign_unit_is_left_out() -> None:
    for ours, theirs, words in (
        ("|21116.5|MB/s|", "|null|MB/s|", "copy: no value, left out"),
        ("|21116.5|MB/s|", "|21116.5|parsec/s|", "copy: the unit 'parsec/s' is not known"),
    ):
        log = read(REFRAME.replace(ours, theirs))
        assert len(log.tables) == 1
        assert any(text.startswith(words) for _, text in log.remarks)


BOTH = """format: 1
run: both
arms:
  metal: {platform: bare metal, fabric: IB, placement: far}
  vm: {platform: VM, fabric: IB, placement: far}
sources:
  - {path: "{arm}-{launch}.log", nodes: 2, repeated: true}
"""


def test_a_verdict_names_the_variant_where_two_rows_have_one_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    for arm in ("metal", "vm"):
        for launch in range(1, 7):
            (tmp_path / "logs" / f"{arm}-{launch}.log").write_text(NCCL)
    labels = tmp_path / "labels.yaml"
    labels.write_text(BOTH)
    import_study([tmp_path / "logs"], labels, tmp_path / "study", Unwatched())
    assert main(["study", "judge", str(tmp_path / "study"), "metal", "vm", "--margin", "5"]) == 0
    lines = capsys.readouterr().out.split("\n")
    found = [line for line in lines if "nccl_all_reduce" in line and " 16 " in line]
    assert len(found) == 2
    assert ["sum, in place, float" in line for line in found].count(True) == 1


JOBS = """format: 1
run: nightly
arms:
  ib: {platform: bare metal, fabric: IB, placement: far}
sources:
  - {path: "{arm}/stream.log", nodes: 1, launch: 1}
  - {path: "{arm}/more.log", nodes: 1, launch: 3}
"""


def _jobs(tmp_path: Path, more: str) -> Study:
    folder = tmp_path / "logs" / "ib"
    folder.mkdir(parents=True)
    (folder / "stream.log").write_text(REFRAME)
    (folder / "more.log").write_text(more)
    labels = tmp_path / "labels.yaml"
    labels.write_text(JOBS)
    summary = import_study([tmp_path / "logs"], labels, tmp_path / "study", Unwatched())
    assert not summary.refused, summary.refused
    return Study(tmp_path / "study")


def test_jobs_of_performance_logs_are_launches_of_one_cell(tmp_path: Path) -> None:
    later = REFRAME.replace("|65|", "|75|").replace("|66|", "|76|").replace("21116.5", "21316.5")
    study = _jobs(tmp_path, later.replace("2026-02", "2026-03"))
    (cell,) = (c for c in study.cells(test="stream") if c.point.metric == "copy")
    assert [(seen.launch, seen.value) for seen in cell.observations] == [
        (1, 21116.5),
        (2, 21216.5),
        (3, 21316.5),
        (4, 21216.5),
    ]
    assert [seen.line for seen in cell.observations] == [2, 3, 2, 3]


def test_two_logs_with_the_same_launches_are_refused(tmp_path: Path) -> None:
    row = "pass|2026-02-2{0}T22:51:16||{{}}|gnu|{0}|null|4|compute|1.5|MB/s|1|None|None|stream %size=9|lab\n"
    three = REFRAME + row.format(3)
    folder = tmp_path / "logs" / "ib"
    folder.mkdir(parents=True)
    (folder / "more.log").write_text(REFRAME.replace("|65|", "|75|"))
    (folder / "stream.log").write_text(three)
    labels = tmp_path / "labels.yaml"
    labels.write_text(JOBS)
    summary = import_study([tmp_path / "logs"], labels, tmp_path / "study", Unwatched())
    (words,) = summary.refused.values()
    assert "stream of launch 3 of ib is already in ib/more.log" in words


TAGS = {
    "srun --label": "{rank}: ",
    "srun --label, padded": "  {rank}: ",
    "Open MPI 4": "[1,{rank}]<stdout>:",
    "Open MPI 5": "[1,{rank}]<stdout>: ",
    "Open MPI 5, tag-detailed": "[1,{rank}][node-1:17445]<stdout>: ",
    "Open MPI 5, rank": "[{rank}]<stdout>: ",
    "Open MPI 5, tag and timestamp": "[Thu Nov 26 18:04:35 2026][1,{rank}]<stdout>: ",
    "Open MPI 4, tag and timestamp": "Thu Nov 26 18:04:35 2026[1,{rank}]<stdout>:",
    "Hydra -l": "[{rank}] ",
    "Ray and Open MPI 4": "(head, rank=0, pid=3808) [1,{rank}]<stdout>:",
    "a container and srun": "2026-01-31T12:34:56.789012345Z stdout F {rank}: ",
}
STAMPS = {
    "kubectl logs --timestamps": "2026-01-31T12:34:56.789012345Z ",
    "a logger": "2026-01-31 12:34:56,789 ",
    "with an offset, in brackets": "[2026-01-31T12:34:56+01:00] ",
    "Open MPI 5, timestamp": "[Thu Nov 26 18:04:35 2026]<stdout>: ",
    "Open MPI 4, timestamp": "Thu Nov 26 18:04:35 2026<stdout>:",
    "ts": "Nov 26 18:04:35 ",
    "Ray": "(worker1, rank=1, pid=2769, ip=10.100.10.12) ",
    "a clock": "[18:04:35] ",
    "seconds": "[   12.345678] ",
}


def tagged(text: str, tag: str, rank: int = 0) -> str:
    return "".join(
        tag.format(rank=rank) + line + "\n" for line in text.removesuffix("\n").split("\n")
    )


@pytest.mark.parametrize("tag", [*TAGS.values(), *STAMPS.values()], ids=[*TAGS, *STAMPS])
@pytest.mark.parametrize("name", GOOD)
def test_a_tag_before_every_line_changes_no_number_and_no_line(name: str, tag: str) -> None:
    assert read(tagged(GOOD[name], tag)).tables == read(GOOD[name]).tables


@pytest.mark.parametrize("tag", TAGS.values(), ids=TAGS)
def test_ranks_that_ran_alone_are_no_run_of_two(tag: str) -> None:
    pairs = zip(tagged(OSU, tag).split("\n"), tagged(OSU, tag, 1).split("\n"), strict=True)
    both = "\n".join(line for pair in pairs for line in pair)
    assert "f:2: rank 1 prints a title, as rank 0 does" in why_refused(both)


@pytest.mark.parametrize("tag", TAGS.values(), ids=TAGS)
def test_a_row_of_another_rank_is_never_a_row(tag: str) -> None:
    text = tagged(OSU, tag) + tagged("8                       18.25", tag, 1)
    assert "of rank 1, rank 0 prints the results" in why_refused(text)
    loose = tagged(OSU, tag) + "8                       18.25\n"
    assert "of no rank, rank 0 prints the results" in why_refused(loose)


@pytest.mark.parametrize("tag", [*TAGS.values(), *STAMPS.values()], ids=[*TAGS, *STAMPS])
def test_a_run_with_tags_is_not_lost_behind_one_without(tag: str) -> None:
    for text in (OSU + tagged(OSU, tag), tagged(OSU, tag) + OSU):
        assert "stands before a title, another title has none" in why_refused(text)


@pytest.mark.parametrize("tag", TAGS.values(), ids=TAGS)
def test_other_ranks_and_the_launcher_may_speak(tag: str) -> None:
    greeting = [tagged(f"Process {rank} of 2 is on n{rank}", tag, rank) for rank in (0, 1)]
    text = "a launcher speaks\n\n" + "".join(greeting) + tagged(OSU, tag) + tagged("\nbye", tag, 1)
    (table,) = read(text).tables
    assert (table.nodes, table.rows[0].line) == (2, 8)
    assert [row.values for row in table.rows] == [row.values for row in read(OSU).tables[0].rows]
    dead = text + tagged("Segmentation fault (core dumped)", tag, 1)
    assert "the run crashed" in why_refused(dead)


def test_an_empty_line_of_another_rank_ends_no_table() -> None:
    lines = tagged(IMB, "{rank}: ").split("\n")
    rows = [at for at, line in enumerate(lines) if line.startswith("0:             1 ")]
    assert rows
    lines.insert(rows[0], "1: ")
    found = [len(table.rows) for table in read("\n".join(lines)).tables]
    assert found == [len(table.rows) for table in read(IMB).tables]


@pytest.mark.parametrize("name", [name for name in GOOD if name not in EVERY_RANK])
def test_lines_of_another_rank_at_any_place_change_no_number(name: str) -> None:
    plain = read(GOOD[name])
    lines = tagged(GOOD[name], "{rank}: ").split("\n")[:-1]
    said = ["1: a warning", "1: # a comment", "1: Size of 3", "1: ", "1: | x | y |", "1: End"]
    mixed = [other for at, line in enumerate(lines) for other in (line, said[at % len(said)])]
    found = read("\n".join(mixed) + "\n")
    assert [(t.test, t.setup, [row.values for row in t.rows]) for t in found.tables] == [
        (t.test, t.setup, [row.values for row in t.rows]) for t in plain.tables
    ]


OPEN_MPI = [tag for tag in TAGS.values() if "<stdout>" in tag]


@pytest.mark.parametrize("tag", OPEN_MPI)
def test_a_line_that_the_launcher_cut_is_whole_again(tag: str) -> None:
    whole = "2                       4.50"
    again, other = (tag.format(rank=rank) for rank in (0, 1))
    for at in (1, 12, len(whole) - 1):
        cut = tagged(OSU, tag).replace(whole, whole[:at] + again + whole[at:])
        assert read(cut).tables == read(OSU).tables
        mixed = tagged(OSU, tag).replace(whole, whole[:at] + other + "x")
        assert why_refused(mixed).startswith("f:5: ")


def test_a_failure_that_another_rank_reports_counts() -> None:
    for text, line, words in (
        (IMB, "Error Bcast, size = 4, sample #0", "the data arrived wrong"),
        (OSU, "DATA VALIDATION ERROR: osu_bw", "the data arrived wrong"),
        (NCCL, "n2: Test NCCL failure all_reduce.cu:44", "the test failed"),
        (GOOD["hpl"], "||Ax-b|| ... FAILED", "the residual check failed"),
    ):
        other = f"1: {'1: ' if text is IMB else ''}{line}\n"
        assert words in why_refused(tagged(text, "{rank}: ") + other)


def test_both_sides_of_perftest_may_print() -> None:
    last = " 65536      5000             11000.00            10900.00             0.174400\n"
    text = tagged(WRITE, "{rank}: ") + tagged(last, "{rank}: ", 1)
    assert read(text).tables == read(WRITE).tables


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*TAGS.values(), *STAMPS.values(), "", " ", "[", "0:"]),
            st.integers(0, 3),
            st.sampled_from([*OSU.split("\n"), *NCCL.split("\n"), "1 2", "\t"]),
        ),
        max_size=25,
    )
)
def test_any_mixture_of_tags_gives_numbers_of_the_log_or_an_error(
    parts: list[tuple[str, int, str]],
) -> None:
    text = "".join(tag.format(rank=rank) + line + "\n" for tag, rank, line in parts)
    try:
        log = read(text or "x")
    except LogError:
        return
    lines = text.split("\n")
    for table in log.tables:
        for row in table.rows:
            words = lines[row.line - 1].split()
            assert all(any(_is(word, value) for word in words) for value in row.values.values())


def _is(word: str, value: float) -> bool:
    try:
        return float(word.rpartition(":")[2]) == value
    except ValueError:
        return False


def test_no_piece_matches_an_empty_text() -> None:
    assert PIECES
    for tag in (*TAGS.values(), *STAMPS.values()):
        assert why_refused(tagged("hello", tag)).startswith("f:1: the format is unknown")
