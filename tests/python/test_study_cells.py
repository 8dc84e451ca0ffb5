# SPDX-License-Identifier: Apache-2.0
"""What differs in its configuration is never one cell: options, pairs, maps and failed runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.cli.main import main
from nearmetal.core.errors import LogError
from nearmetal.evidence import Log, Unit, parse_log
from nearmetal.evidence.model import Setup
from nearmetal.evidence.recognize import decode, recognize, refuse_crash
from nearmetal.study.importer import import_study
from nearmetal.study.model import Point
from nearmetal.study.store import Study
from tests.python.study_shared import LOGS
from tests.python.test_study_formats import (
    GRAPH500,
    HPCC,
    HPCG,
    HPL,
    OSU,
    OSU_ONE_SIDED,
    QE,
    STREAM,
)

IMB = (Path(__file__).parent / "golden" / "logs" / "imb-mpi1.txt").read_text()
NETPIPE = (Path(__file__).parent / "golden" / "logs" / "netpipe.txt").read_text()
RATE = """# OSU MPI Multiple Bandwidth / Message Rate Test v7.4
# Datatype: MPI_CHAR.
# [ pairs: 2 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
1                       2.00        2000000.00
2                       4.00        2000000.00
"""
GPU = """# OSU MPI-CUDA Bandwidth Test v5.8
# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)
# Size      Bandwidth (MB/s)
1                       2.00
2                       4.50
"""
PUT_GPU = """# OSU MPI_Put-CUDA Latency Test v7.4
# Window creation: MPI_Win_create
# Synchronization: MPI_Win_post/start/complete/wait
# Datatype: MPI_CHAR.
# Rank 0 Memory on HOST (H) and Rank 1 Memory on DEVICE (D)
# Size          Latency (us)
1                       1.50
"""
FULL = """# OSU MPI Allreduce Latency Test v5.8
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       5.00              4.00              6.00        1000
8                       5.10              4.10              6.10        1000
"""
WRITE = """
 Test with events. Using mlx5_comp0
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
 Number of qps   : 1            Transport type : IB
 Connection type : RC           Using SRQ      : OFF
 PCIe relax order: ON           Lock-free      : OFF
 ibv_wr* API     : ON
 TX depth        : 128
 CQ Moderation   : 100
 Mtu             : 4096[B]
 Link type       : IB
 Max inline data : 0[B]
 rdma_cm QPs     : OFF
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      5000             11000.00            10900.00             0.174400
---------------------------------------------------------------------------------------
"""
HPCC_OPTIONS = HPCC.replace(
    "HPL_Tflops=0.25\n",
    "HPL_Tflops=0.25\nHPL_N=1000\nHPL_NB=192\nHPL_nprow=2\nHPL_order=R\nSTREAM_VectorSize=500\n"
    "STREAM_Threads=1\nomp_get_max_threads=1\n",
)
HPCG_OPTIONS = HPCG.replace(
    "Benchmark Time",
    "Machine Summary::Threads per processes=2\nGlobal Problem Dimensions::Global nx=104\nBenchmark Time",
    1,
)


def read(text: str) -> Log:
    text = decode(text.encode(), "f")
    refuse_crash(text, "f")
    return parse_log(text, "f", recognize(text, "f"))


NOT_MEASURED = ("size", "iterations", "repetitions")
Cells = set[tuple[object, ...]]


def cells(text: str) -> Cells:
    """Return what the store makes a cell of, for each number of a log."""
    log = read(text)
    return {
        (log.format, t.test, t.setup_of(row), row.values.get("size"), t.processes, t.nodes, column)
        for t in log.tables
        for row in t.rows
        for column in t.columns
        if column.metric not in NOT_MEASURED
    }


def why_refused(text: str) -> str:
    with pytest.raises(LogError, match=r"^f:\d+: ") as caught:
        read(text)
    return caught.value.message


OPTIONS = [
    # OSU: -T, -w, -s, -W, pairs, -d, buffers, -c, and those that only the command shows
    pytest.param(OSU, "MPI_CHAR", "MPI_INT", id="osu -T"),
    pytest.param(OSU_ONE_SIDED, "MPI_Win_allocate", "MPI_Win_create", id="osu -w"),
    pytest.param(OSU_ONE_SIDED, "MPI_Win_flush", "MPI_Win_lock/unlock", id="osu -s"),
    pytest.param(RATE, "window size: 64", "window size: 1", id="osu -W"),
    pytest.param(RATE, "window size: 64", "window size: varied", id="osu -V"),
    pytest.param(RATE, "pairs: 2", "pairs: 4", id="osu -p"),
    pytest.param(GPU, "-CUDA", "-ROCM", id="osu -d"),
    pytest.param(GPU, "Send Buffer on DEVICE (D)", "Send Buffer on HOST (H)", id="osu H D"),
    pytest.param(GPU, "Buffer on DEVICE (D)", "Buffer on MANAGED (M)", id="osu M D"),
    pytest.param(PUT_GPU, "Rank 0 Memory on HOST (H)", "Rank 0 Memory on DEVICE (D)", id="osu put"),
    pytest.param(FULL, "1000", "5000", id="osu -i -f"),
    pytest.param(OSU, "v7.4", "v7.3", id="osu version"),
    *(
        pytest.param(f"+ srun ./osu_bw {ours}\n{OSU}", ours, theirs, id=f"osu {ours}")
        for ours, theirs in (
            ("-i 1000", "-i 9"),
            ("-x 200", "-x 1"),
            ("-b single", "-b multiple"),
            ("-W 64", "-W 1"),
            ("--validation", "--in-place"),
        )
    ),
    # perftest
    *(
        pytest.param(WRITE, ours, theirs, id=f"perftest {ours}")
        for ours, theirs in (
            ("RDMA_Write BW", "RDMA_Read BW"),
            ("RDMA_Write BW", "RDMA_Write Bidirectional BW"),
            ("RDMA_Write BW", "RDMA_Write Post List BW"),
            ("qps   : 1 ", "qps   : 4 "),
            ("type : RC", "type : UC"),
            ("SRQ      : OFF", "SRQ      : ON"),
            ("order: ON", "order: OFF"),
            ("Lock-free      : OFF", "Lock-free      : ON"),
            ("API     : ON", "API     : OFF"),
            ("depth        : 128", "depth        : 1"),
            ("Moderation   : 100", "Moderation   : 1"),
            ("4096[B]", "1024[B]"),
            ("data : 0[B]", "data : 64[B]"),
            ("QPs     : OFF", "QPs     : ON"),
            ("method : Ethernet", "method : rdma_cm"),
            ("Dual-port       : OFF", "Dual-port       : ON"),
            (" 65536      5000", " 65536      1000"),
            (" Mtu ", " Post List       : 16\n Mtu "),
            (" Mtu ", " Outstand reads  : 4\n Mtu "),
        )
    ),
    # IMB
    *(
        pytest.param(IMB, "-iter 20", theirs, id=f"imb {theirs}")
        for theirs in (
            "-iter 1000",
            "-iter 20 -iter_policy off",
            "-iter 20 -off_cache -1",
            "-iter 20 -multi 0",
            "-iter 20 -map 2x2",
            "-iter 20 -root_shift on",
            "-iter 20 -sync off",
            "-iter 20 -imb_barrier on",
            "-iter 20 -window_size 8",
            "-iter 20 -contig_type resize",
            "-iter 20 -warm_up off",
            "-iter 20 -msg_pause 4",
            "-iter 20 -aggregate_mode non_aggregate",
            "-iter 20 -mem 2",
            "-iter 20 -zero_size off",
            "-iter 20 -thread_level multiple",
        )
    ),
    pytest.param(IMB, "-time 0.1", "-time 10", id="imb -time"),
    pytest.param(IMB, "MPI_BYTE", "MPI_INT", id="imb -data_type"),
    pytest.param(IMB, "MPI_FLOAT", "MPI_DOUBLE", id="imb -red_data_type"),
    pytest.param(IMB, "Benchmarks 2021.9", "Benchmarks 2019.6", id="imb version"),
    # NetPIPE
    *(
        pytest.param(NETPIPE, "Now starting", f"{said}\nNow starting", id=f"netpipe {said}")
        for said in (
            "Using synchronous sends",
            "Preposting asynchronous receives",
            "Receive using the ANY_SOURCE flag",
            "Streaming in one direction only.",
            "Passing data in both directions simultaneously.",
            "Performance measured without cache effects",
            "Resetting connection after every trial",
            "Transmit buffer offset: 8",
            "Using a perturbation value of 7",
            "Using MPI-2 Get instead of Put",
            "Send and receive buffers are 16384 and 87380 bytes",
        )
    ),
    pytest.param(NETPIPE, " 10 times", " 20 times", id="netpipe -n"),
    # programs that solve a problem of a size
    pytest.param(STREAM, "size = 10000000", "size = 20000000", id="stream array size"),
    pytest.param(STREAM, "counted = 2", "counted = 4", id="stream threads"),
    pytest.param(HPL, "WR11C2R4", "WR00L2L2", id="hpl algorithm"),
    pytest.param(HPL, "10000   192", "10000   256", id="hpl NB"),
    pytest.param(HPCG_OPTIONS, "Global nx=104", "Global nx=208", id="hpcg size"),
    pytest.param(HPCG_OPTIONS, "processes=2", "processes=1", id="hpcg threads"),
    pytest.param(GRAPH500, "16\n", "32\n", id="graph500 edgefactor"),
    # HPCC
    *(
        pytest.param(HPCC_OPTIONS, ours, theirs, id=f"hpcc {ours}")
        for ours, theirs in (
            ("HPL_N=1000", "HPL_N=2000"),
            ("HPL_NB=192", "HPL_NB=64"),
            ("HPL_nprow=2", "HPL_nprow=4"),
            ("HPL_order=R", "HPL_order=C"),
            ("STREAM_VectorSize=500", "STREAM_VectorSize=900"),
            ("STREAM_Threads=1", "STREAM_Threads=4"),
            ("max_threads=1", "max_threads=2"),
            ("CommWorldProcs=8", "CommWorldProcs=4"),
            ("version 1.5.0", "version 1.4.2"),
        )
    ),
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
    concerned = {"STREAM": "STREAM", "HPL_": "HPL"}
    name = next((n for key, n in concerned.items() if ours.startswith(key)), "")
    shared = {cell for cell in before & after if not name or name in str(cell[1])}
    assert not shared, sorted(map(str, shared))[:3]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["-i", "-x", "-W", "--buffer-num", "-t"]), st.integers(1, 9999))
def test_any_value_of_an_option_in_the_command_counts(option: str, value: int) -> None:
    texts = [f"+ mpirun -np 2 ./osu_bw {option} {v}\n{OSU}" for v in (value, value + 1)]
    assert not cells(texts[0]) & cells(texts[1])


def test_options_that_only_choose_sizes_and_hosts_do_not_divide_cells() -> None:
    assert cells(f"+ srun ./osu_bw -m 4 > out.7 2>&1\n{OSU}") == cells(OSU)
    assert cells(IMB.replace("-npmin 2 -msglog 3", "-npmin 4 -msglog 9")) == cells(IMB)
    assert cells(WRITE.replace("mlx5_0", "mlx5_7")) == cells(WRITE)
    assert cells(WRITE.replace(" Mtu", " WARNING: a slow processor\n GID: 254:128\n Mtu")) == cells(
        WRITE
    )
    # A run of a fixed time counts what it reached: that is a result, not an option.
    assert cells(WRITE.replace(" 5000 ", " 5132777 ")) == cells(WRITE.replace("5000", "6132871"))


def test_the_datatype_line_does_not_erase_the_one_sided_mode() -> None:
    modes = [
        ("MPI_Win_create", "MPI_Win_post/start/complete/wait"),
        ("MPI_Win_allocate", "MPI_Win_flush"),
    ]
    text = OSU_ONE_SIDED.replace("# Size", "# Datatype: MPI_CHAR.\n# Size")
    created, allocated = (
        text.replace("MPI_Win_allocate", w).replace("MPI_Win_flush", s) for w, s in modes
    )
    assert read(created).tables[0].setup.synchronization == ", ".join(modes[0])
    assert not cells(created) & cells(allocated)


def test_a_window_that_is_not_the_usual_one_is_shown() -> None:
    assert read(RATE).tables[0].variant == "2 pairs"
    small = read(RATE.replace("window size: 64", "window size: 1")).tables[0]
    assert (small.variant, small.setup.window) == ("window 1, 2 pairs", "1")


def test_two_tables_of_one_test_are_not_one_launch() -> None:
    named = "# pair: node-1 node-2\n" + OSU + "# pair: node-3 node-4\n" + OSU
    assert [t.setup.pair for t in read(named).tables] == ["node-1 and node-2", "node-3 and node-4"]
    assert [t.setup.pair for t in read(OSU + OSU).tables] == ["table 1 of 2", "table 2 of 2"]
    assert not cells(OSU) & cells(OSU + OSU)
    hosts = [
        f"[0] MPI startup(): 0  1  {a}  {{0}}\n[0] MPI startup(): 1  2  {b}  {{0}}\n"
        for a, b in (("a", "b"), ("c", "d"))
    ]
    text = hosts[0] + OSU + hosts[1] + OSU
    assert [t.setup.pair for t in read(text).tables] == ["a and b", "c and d"]


MAPS = {
    "Intel MPI": "[0] MPI startup(): {0}  77  {1}  {{0,4}}\n",
    "Open MPI 4": "[{1}:123] MCW rank {0} bound to socket 0[core 0[hwt 0]]: [B/.]\n",
    "Open MPI 5": "[{1}:123] Rank {0} bound to package[0][core:0]\n",
    "a display of the map": " Data for node: {1}\tNum slots: 2\n\tProcess OMPI jobid: [1,1] App: 0 "
    "Process rank: {0} Bound: N/A\n",
    "a greeting": "Process {0} of 2 is on {1}\n",
}


@pytest.mark.parametrize("line", MAPS.values(), ids=MAPS)
def test_the_map_of_a_log_decides_whether_ranks_are_in_one_node(line: str) -> None:
    near, far = (
        "".join(line.format(rank, host) for rank, host in enumerate(hosts)) + OSU
        for hosts in (("n1", "n1"), ("n1", "n2"))
    )
    (inside,), (across,) = read(near).tables, read(far).tables
    assert (inside.setup.placement, inside.nodes) == ("", 1)
    assert (across.setup.placement, across.nodes) == ("", 2)


def test_iterations_that_change_with_the_size_do_not_divide_a_curve() -> None:
    (table,) = read(FULL.replace("6.10        1000", "6.10         100")).tables
    points = [
        Point("osu", table.test, "", int(row.values["size"]), 2, 2, "latency", unit, setup)
        for row in table.rows
        for setup, unit in ((table.setup_of(row), Unit.MICROSECONDS),)
    ]
    assert [p.setup.iterations for p in points] == ["1000", "100"]
    assert points[0].curve == points[1].curve


def test_only_the_ranks_that_communicate_count() -> None:
    # Four ranks block by block on two nodes: rank 0 and rank 1 are neighbours in one node.
    block = "".join(f"[0] MPI startup(): {r}  7  n{r // 2}  {{0}}\n" for r in range(4))
    (latency,) = read(block + OSU).tables
    assert (latency.setup.placement, latency.processes) == ("in one node", 2)
    (rate,) = read(block + RATE).tables
    assert (rate.setup.placement, rate.nodes) == ("", 2)
    cyclic = "".join(f"[0] MPI startup(): {r}  7  n{r % 2}  {{0}}\n" for r in range(4))
    assert read(cyclic + RATE).tables[0].setup.placement == "in one node"
    real = decode((LOGS / "osu" / "pkb_mbw_mr_full.txt").read_bytes(), "f")
    assert read(real).tables[0].setup == Setup(
        version="5.7.1", window="64", pair="4 pairs", placement="in one node"
    )


ERRORS = [
    (WRITE + " Completion with error at client\n", "f:21: 'Completion with error at client'"),
    (WRITE + " Failed status 12: wr_id 0 syndrom 0x81\n", "Failed status 12"),
    (WRITE.replace(" #bytes", "Problems with warm up\n #bytes"), "Problems with warm up"),
    (
        IMB.replace("t[usec]   Mbytes/sec", "t[usec]   Mbytes/sec      defects", 1)
        .replace("109.16         0.00", "109.16         0.00         0.00", 1)
        .replace("3.95         0.25", "3.95         0.25         0.50", 1),
        "0.5 defects, the data arrived wrong",
    ),
    (IMB.replace("# All", "0: Error Bcast, size = 4, sample #0\n# All"), "Error Bcast"),
    (QE.replace("   JOB DONE.\n", ""), "'JOB DONE.' is missing"),
    (QE.replace("JOB DONE", "Maximum CPU time exceeded"), "the run was ended early"),
    (
        HPCC.replace("HPL_time", "MPIRandomAccess_ErrorsFraction=0.5\nHPL_time"),
        "MPIRandomAccess_ErrorsFraction=0.5, the result is wrong",
    ),
    (HPCC.replace("Begin of", "||Ax-b|| ... FAILED\nBegin of"), "a check of HPCC failed"),
    (
        HPCC.replace("Begin of", "  1 tests completed and failed residual checks.\nBegin of"),
        "tests completed and failed",
    ),
    (
        NETPIPE.replace("Now", "Integrity check: 3 failed\nNow"),
        "the data arrived wrong",
    ),
    (
        OSU + "DATA VALIDATION ERROR: osu_bw exited with status 1 on message size 4\n",
        "DATA VALIDATION ERROR",
    ),
    (OSU + "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026 ***\n", "CANCELLED AT"),
    (OSU + "[n1:1] *** MPI_ERRORS_ARE_FATAL (processes will abort)\n", "MPI_ERRORS_ARE_FATAL"),
]


@pytest.mark.parametrize(("text", "words"), ERRORS, ids=[words for _, words in ERRORS])
def test_a_failed_run_is_refused_with_its_line(text: str, words: str) -> None:
    assert words in why_refused(text)


class Unwatched:
    """Progress without a display."""

    def begin(self, total: int) -> None: ...

    def step(self, text: str) -> None: ...


ARMS = """format: 1
run: cells
arms:
  metal: {platform: bare metal, fabric: IB, placement: far, facts: {line_rate_gbit: 100}}
  vm: {platform: VM, fabric: IB, placement: far, facts: {line_rate_gbit: 100}}
sources:
  - path: "{arm}/{_}-{launch}.log"
    nodes: 2
    repeated: true
"""
MEMORY = """STREAM version $Revision: 5.10 $
Array size = 10000000 (elements), Offset = 0 (elements)
Number of Threads counted = 2
Function    Best Rate MB/s  Avg time     Min time     Max time
Triad:         200000.0     0.020100     0.020000     0.021000
Solution Validates: avg error less than 1.000000e-13 on all three arrays
"""


def study(folder: Path, texts: dict[str, str]) -> Study:
    """Import six launches of each text; `{arm}/{name}` names them."""
    for name, text in texts.items():
        for launch in range(1, 7):
            path = folder / "logs" / f"{name}-{launch}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (folder / "labels.yaml").write_text(ARMS)
    import_study([folder / "logs"], folder / "labels.yaml", folder / "study", Unwatched())
    return Study(folder / "study")


def bandwidth(value: float, header: str = "# OSU MPI Bandwidth Test v7.4\n") -> str:
    return f"{header}# Size      Bandwidth (MB/s)\n1    {value:.2f}\n2    {value / 2:.2f}\n"


def judged(made: Study, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, object]]]:
    words = ["study", "judge", str(made.directory), "metal", "vm", "--margin", "5", "--json"]
    code = main(words)
    return code, json.loads(capsys.readouterr().out)["comparisons"]


def test_windows_of_two_arms_are_refused_and_not_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = RATE.replace("window size: 64", "window size: 1")
    made = study(tmp_path, {"metal/rate": RATE, "vm/rate": small})
    code, found = judged(made, capsys)
    assert code == 4
    assert {one["verdict"] for one in found} == {"REFUSED"}
    assert {one["reason"] for one in found} == {"the window size: 64 against 1"}


def test_windows_of_one_arm_are_two_cells_each_with_its_own_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = RATE.replace("window size: 64", "window size: 1").replace("2.00 ", "1.00 ", 1)
    small = small.replace("2000000.00", "1000000.00", 1)
    texts = {
        f"{arm}/{n}": text for arm in ("metal", "vm") for n, text in (("a", RATE), ("b", small))
    }
    made = study(tmp_path, texts)
    _, found = judged(made, capsys)
    values = {(o["variant"], o["size"], o["base"]["median"], o["arm"]["median"]) for o in found}  # type: ignore[index]
    assert {("2 pairs", 1, 2.0, 2.0), ("window 1, 2 pairs", 1, 1.0, 1.0)} <= values
    assert {one["verdict"] for one in found} == {"ACCEPT"}


def test_a_map_against_the_label_is_intra_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "[0] MPI startup(): {0}  77  {1}  {{0,4}}\n"
    near = line.format(0, "n1") + line.format(1, "n1")
    block = near + line.format(2, "n2") + line.format(3, "n2")
    made = study(tmp_path, {"metal/bw": bandwidth(900), "vm/bw": block + bandwidth(900)})
    _, found = judged(made, capsys)
    assert {one["verdict"] for one in found} == {"REFUSED"}
    assert "the placement that the logs show: as the labels say against in one node" in str(
        found[0]["reason"]
    )
    made = study(tmp_path / "b", {"metal/bw": bandwidth(900), "vm/bw": near + bandwidth(900)})
    assert {cell.point.nodes for cell in made.cells(arm="vm")} == {1}
    (remarks, *_) = [s.remarks for s in made.sources() if s.arm == "vm"]
    assert "the map of the log shows 1 nodes, the label says 2" in [text for _, text in remarks]


def test_a_point_beyond_the_line_is_invalid_and_in_no_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sane, wild = bandwidth(2000), bandwidth(2000).replace("2    1000.00", "2    100000.00")
    made = study(
        tmp_path,
        {"metal/bw": sane, "vm/bw": wild, "metal/stream": MEMORY, "vm/stream": MEMORY},
    )
    code, found = judged(made, capsys)
    assert code == 4
    verdicts = {(one["test"], one["size"]): one for one in found}
    bad = verdicts["osu_bw", 2]
    assert (bad["verdict"], bad["ratio"], bad["tax_percent"]) == ("INVALID", None, None)
    assert bad["reason"] == "800.0 Gbit/s over a line of 100 Gbit/s"
    assert verdicts["osu_bw", 1]["verdict"] == "ACCEPT"
    # 1600 Gbit/s between a processor and its memory cross no line.
    assert verdicts["stream_triad", None]["verdict"] == "ACCEPT"
    page = tmp_path / "page.html"
    words = ["study", "report", str(made.directory), "metal", "vm", "--margin", "5"]
    assert main([*words, "--output", str(page)]) == 4
    text = page.read_text()
    assert "800.0 Gbit/s over a line of 100 Gbit/s" in text
    assert "vm is invalid, against physics, at 1 of 2 primary endpoints" in text
    assert "(1 invalid, left out)" in text
    assert "stream" not in text[text.index('id="flags"') : text.index('id="flags"') + 1500]


def test_memory_and_one_node_cross_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "[0] MPI startup(): {0}  77  n1  {{0,4}}\n"
    near = line.format(0) + line.format(1)
    made = study(tmp_path, {f"{arm}/bw": near + bandwidth(90000) for arm in ("metal", "vm")})
    code, found = judged(made, capsys)
    assert code == 0
    assert {one["verdict"] for one in found} == {"ACCEPT"}
