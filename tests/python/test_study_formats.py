# SPDX-License-Identifier: Apache-2.0
"""Formats of logs: short texts written by hand, and every way in which they can be damaged."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.core.errors import LogError
from nearmetal.evidence import Log, Unit, parse_log
from nearmetal.evidence.parse import PARSERS
from nearmetal.evidence.recognize import decode, recognize, refuse_crash
from tests.python.study_logs import (
    GPCNET,
    NCCL,
    OSU_DERIVED,
    OSU_VARIED,
    PERFTEST_TIME,
    REFRAME,
    REFRAME_3,
)

OSU = """# OSU MPI Bandwidth Test v7.4
# Datatype: MPI_CHAR.
# Size      Bandwidth (MB/s)
1                       2.00
2                       4.50
4                       9.25
"""
OSU_FULL = """# OSU MPI-CUDA Non-blocking Allreduce Latency Test v7.5
# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait

# Datatype: MPI_INT.
# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)
4                      11.09              6.10              5.18              3.46
8                      10.87              6.04              5.10              5.46
"""
OSU_ONE_SIDED = """# OSU MPI_Put Latency Test v5.9
# Window creation: MPI_Win_allocate
# Synchronization: MPI_Win_flush
# Size          Latency (us)
1                       1.50
2                       1.50
"""
OSU_STATISTICS = """# OSU MPI Latency Test v7.2
# Size       Avg Latency(us)  P50 Tail Lat(us)  P99 Tail Lat(us)  Validation
1                       1.50              1.40              1.90        Pass
2                       1.60              1.45              2.00        Pass
"""
PERFTEST = """
---------------------------------------------------------------------------------------
                    Send BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Mtu             : 4096[B]
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 2          1000             0.087386            0.083431            5.214466
 4          1000             0.17               0.16                5.148076
---------------------------------------------------------------------------------------
"""
PERFTEST_LAT = """
                    RDMA_Write Latency Test
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.12           6.55         1.17               1.19             0.16             1.41                    6.55
"""
PERFTEST_JSON = """{
"test_info": {
"test": "Send_BW_Test",
"Device": "mlx5_0"
},
"results": {
"MsgSize": 65536,
"n_iterations": 5000,
"BW_peak": 94.90,
"BW_average": 94.87,
"MsgRate": 0.180948
}
}
"""
HPL = """HPLinpack 2.3  --  High-Performance Linpack benchmark  --   December 2, 2018
================================================================================
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
WR11C2R4       10000   192     2     3              12.50             5.3340e+01
--------------------------------------------------------------------------------
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   3.1e-03 ...... PASSED
================================================================================
End of Tests.
"""
HPCC = """This is the DARPA/DOE HPC Challenge Benchmark version 1.5.0 October 2012
HPLinpack 2.0  --  High-Performance Linpack benchmark
STREAM version $Revision: 5.10 $
Begin of Summary section.
Success=1
CommWorldProcs=8
HPL_Tflops=0.25
HPL_time=100.5
MaxPingPongLatency_usec=1.25
StarSTREAM_Triad=2.5
End of Summary section.
"""
HPCG = """HPCG-Benchmark
version=3.1
Machine Summary::Distributed Processes=4
Benchmark Time Summary::Total=60.5
Final Summary::HPCG result is VALID with a GFLOP/s rating of=12.25
"""
STREAM = """STREAM version $Revision: 5.10 $
Array size = 10000000 (elements), Offset = 0 (elements)
Number of Threads counted = 2
Function    Best Rate MB/s  Avg time     Min time     Max time
Copy:           10000.5     0.016100     0.016000     0.017000
Triad:          12000.0     0.020100     0.020000     0.021000
Solution Validates: avg error less than 1.000000e-13 on all three arrays
"""
GRAPH500 = """SCALE:                          12
edgefactor:                     16
num_mpi_processes:              4
bfs  min_time:                  0.001
bfs  harmonic_mean_TEPS:     !  2.5e+07
bfs  min_validate:              0.002
"""
NPB = """
 NAS Parallel Benchmarks 3.4 -- CG Benchmark
 Size:       1400  (class S)
 CG Benchmark Completed.
 Class           =                        S
 Time in seconds =                     0.25
 Total processes =                        4
 Mop/s total     =                   250.50
 Verification    =               SUCCESSFUL
 Version         =                    3.4.2
"""
GROMACS = """GROMACS version:    2020.5
On 4 MPI ranks doing PP, each using 2 OpenMP threads
               Core t (s)   Wall t (s)        (%)
       Time:      100.500       12.600      797.6
                 (ns/day)    (hour/ns)
Performance:       55.500        0.432
Finished mdrun on rank 0 Thu Jan  1 12:00:00 2026
"""
LAMMPS = """LAMMPS (29 Sep 2021)
Loop time of 2.5 on 4 procs for 100 steps with 32000 atoms

Performance: 17280.000 tau/day, 40.000 timesteps/s
Total wall time: 0:00:02
"""
NAMD = """Info: NAMD 2.14 for Linux-x86_64-MPI
Info: Running on 48 processors, 48 nodes, 1 physical nodes.
Info: Benchmark time: 48 CPUs 0.0125 s/step 0.144676 days/ns 512.5 MB memory
WallClock: 30.500000  CPUTime: 29.250000  Memory: 520.000000 MB
"""
OPENFOAM = """Build  : 9-bc4c8f7e2d1b
Exec   : simpleFoam -parallel
nProcs : 8
Time = 1
ExecutionTime = 1.5 s  ClockTime = 2 s
Time = 2
ExecutionTime = 2.75 s  ClockTime = 3 s
End
"""
WRF = """ Ntasks in X            2 , ntasks in Y            4
WRF V4.2 MODEL
Timing for main: time 2001-10-25_00:01:12 on domain   1:    3.00000 elapsed seconds
Timing for main: time 2001-10-25_00:02:24 on domain   1:    1.00000 elapsed seconds
Timing for main: time 2001-10-25_00:03:36 on domain   1:    2.00000 elapsed seconds
wrf: SUCCESS COMPLETE WRF
"""
QE = """     Program PWSCF v.6.7MaX starts on  1Jan2026 at 12: 0: 0
     Number of MPI processes:                 4
     PWSCF        :   1m23.50s CPU   1m25.25s WALL
   JOB DONE.
"""
MATRIX = """1,0,1.25,11000.5
rank_a,rank_b,lat_us,bw_MBs
0,1,1.20,11001.5
"""
CLCK = """Intel(R) Cluster Checker 2021 Update 6
Databases used: user_plus_2021.0.db
 2. DGEMM:
 [DGEMM Performance: 3081.050 GFLOP/s.][nodes: compute-03]
 3. HPCG_CLUSTER:
 [HPCG 4-Node Performance: 169.95 GFLOP/s.][nodes: compute-[01-04]]
 6. IMB PINGPONG:
 [IMB pingpong bandwidth: 12.407 GB/s and latency: 1.050 mcseconds.][nodes:compute-[02-03]]
"""
GOOD = {
    "osu": OSU,
    "perftest": PERFTEST,
    "hpl": HPL,
    "hpcc": HPCC,
    "hpcg": HPCG,
    "stream": STREAM,
    "graph500": GRAPH500,
    "npb": NPB,
    "gromacs": GROMACS,
    "lammps": LAMMPS,
    "namd": NAMD,
    "openfoam": OPENFOAM,
    "wrf": WRF,
    "qe": QE,
    "nccl": NCCL,
    "gpcnet": GPCNET,
    "reframe": REFRAME,
    "matrix": MATRIX,
    "clck": CLCK,
}


def read(text: str) -> Log:
    raw = text.encode()
    text = decode(raw, "f")
    refuse_crash(text, "f")
    return parse_log(text, "f", recognize(text, "f"))


def error(text: str) -> str:
    with pytest.raises(LogError, match=r"^f:\d+: ") as caught:
        read(text)
    return caught.value.message


def values(log: Log, test: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for table in log.tables:
        if table.test == test:
            for row in table.rows:
                for metric, value in row.values.items():
                    found.setdefault(metric, []).append(value)
    return found


def unit(log: Log, metric: str) -> Unit:
    return next(c.unit for t in log.tables for c in t.columns if c.metric == metric)


@pytest.mark.parametrize(("name", "text"), GOOD.items())
def test_a_format_is_recognized_by_its_content(name: str, text: str) -> None:
    assert recognize(text, "f") == name
    assert read("\ufeff" + text.replace("\n", "\r\n")).format == name


@pytest.mark.parametrize(
    ("text", "test", "metric", "found", "what", "ranks"),
    [
        (OSU, "osu_bw", "bandwidth", [2.0, 4.5, 9.25], Unit.MEGABYTES_PER_SECOND, 2),
        (OSU_FULL, "osu_iallreduce", "communication", [5.18, 5.1], Unit.MICROSECONDS, None),
        (OSU_ONE_SIDED, "osu_put_latency", "latency", [1.5, 1.5], Unit.MICROSECONDS, 2),
        (OSU_STATISTICS, "osu_latency", "latency_p99", [1.9, 2.0], Unit.MICROSECONDS, 2),
        (PERFTEST, "send_bw", "bandwidth", [0.083431, 0.16], Unit.GIGABITS_PER_SECOND, 2),
        (PERFTEST_LAT, "rdma_write_latency", "latency_p999", [6.55], Unit.MICROSECONDS, 2),
        (PERFTEST_JSON, "send_bw", "bandwidth", [94.87], Unit.GIGABITS_PER_SECOND, 2),
        (HPL, "hpl", "rate", [53.34], Unit.GIGAFLOPS, 6),
        (HPCC, "StarSTREAM_Triad", "bandwidth", [2.5], Unit.GIGABYTES_PER_SECOND, 8),
        (HPCC, "MaxPingPongLatency", "latency", [1.25], Unit.MICROSECONDS, 8),
        (HPCG, "hpcg", "rate", [12.25], Unit.GIGAFLOPS, 4),
        (STREAM, "stream_triad", "bandwidth", [12000.0], Unit.MEGABYTES_PER_SECOND, None),
        (GRAPH500, "graph500_bfs", "harmonic_mean_teps", [2.5e7], Unit.TRAVERSED_EDGES, 4),
        (NPB, "npb_cg", "rate", [250.5], Unit.MEGAOPS, 4),
        (GROMACS, "gromacs", "speed", [55.5], Unit.NANOSECONDS_PER_DAY, 4),
        (LAMMPS, "lammps", "loop_time", [2.5], Unit.SECONDS, 4),
        (NAMD, "namd", "days_per_ns", [0.144676], Unit.DAYS_PER_NANOSECOND, 48),
        (OPENFOAM, "openfoam", "execution_time", [2.75], Unit.SECONDS, 8),
        (WRF, "wrf", "step_mean", [1.5], Unit.SECONDS, 8),
        (WRF, "wrf", "first_step", [3.0], Unit.SECONDS, 8),
        (QE, "pwscf", "wall_time", [85.25], Unit.SECONDS, 4),
        (MATRIX, "all_pairs", "latency", [1.25, 1.20], Unit.MICROSECONDS, 2),
        (NCCL, "nccl_all_reduce", "time", [30.5, 32.5, 31.5, 33.5], Unit.MICROSECONDS, 2),
        (
            NCCL,
            "nccl_all_reduce",
            "bus_bandwidth",
            [0.5, 1.5, 0.51, 1.51],
            Unit.GIGABYTES_PER_SECOND,
            2,
        ),
        (GPCNET, "gpcnet_rr_two_sided_lat", "latency_p99", [4.5, 9.5], Unit.MICROSECONDS, 8),
        (GPCNET, "gpcnet_rr_two_sided_lat", "impact", [1.4], Unit.COUNT, 8),
        (
            GPCNET,
            "gpcnet_rr_two_sided_bw+sync",
            "bandwidth",
            [4061.5],
            Unit.MEBIBYTES_PER_SECOND,
            8,
        ),
        (REFRAME, "stream", "copy", [21116.5, 21216.5], Unit.MEGABYTES_PER_SECOND, 4),
        (REFRAME_3, "gmx_1400k", "speed", [0.729, 0.735], Unit.NANOSECONDS_PER_DAY, 32),
        (OSU_VARIED, "osu_mbw_mr", "bandwidth", [1, 2, 64, 128], Unit.MEGABYTES_PER_SECOND, 4),
        (OSU_VARIED, "osu_mbw_mr", "rate", [1e6, 1e6, 6.4e7, 6.4e7], Unit.MESSAGES_PER_SECOND, 4),
        (OSU_DERIVED, "osu_latency", "transmitted", [1, 1, 2], Unit.BYTES, 2),
        (PERFTEST_TIME, "send_latency", "latency", [1.9], Unit.MICROSECONDS, 2),
        (PERFTEST_TIME, "send_latency", "transactions", [262864.28], Unit.MESSAGES_PER_SECOND, 2),
        (CLCK, "clck_dgemm", "rate", [3081.05], Unit.GIGAFLOPS, None),
        (CLCK, "clck_hpcg_4_node", "rate", [169.95], Unit.GIGAFLOPS, None),
        (CLCK, "clck_imb_pingpong", "latency", [1.05], Unit.MICROSECONDS, None),
    ],
)
def test_figures_units_and_ranks(  # noqa: PLR0917 - a row of the table above
    text: str, test: str, metric: str, found: list[float], what: Unit, ranks: int | None
) -> None:
    log = read(text)
    assert values(log, test)[metric] == pytest.approx(found)
    assert unit(log, metric) is what
    assert {t.processes for t in log.tables if t.test == test} == {ranks}


def test_variants_tell_apart_what_has_one_name() -> None:
    assert read(OSU_FULL).tables[0].variant == "cuda, MPI_INT"
    assert read(OSU_ONE_SIDED).tables[0].variant == "MPI_Win_allocate, MPI_Win_flush"
    pairs = OSU.replace("Bandwidth Test", "Multiple Bandwidth / Message Rate Test").replace(
        "# Size ", "# [ pairs: 8 ] [ window size: 64 ]\n# Size "
    )
    (table,) = read(pairs.replace("Bandwidth (MB/s)", "MB/s")).tables
    assert (table.test, table.variant, table.processes) == ("osu_mbw_mr", "8 pairs", 16)
    assert read(NPB).tables[0].variant == "class S"


def test_several_tests_in_one_file() -> None:
    log = read(
        OSU + "a launcher speaks\n" + OSU.replace("Bandwidth Test", "Bi-Directional Bandwidth Test")
    )
    assert [t.test for t in log.tables] == ["osu_bw", "osu_bibw"]
    assert [t.rows[0].line for t in log.tables] == [4, 11]
    assert (7, "a launcher speaks") in log.remarks


def test_the_unit_of_json_is_derived_or_refused() -> None:
    mebi = PERFTEST_JSON.replace("94.87", "11309.2").replace("94.90", "11310.0")
    assert unit(read(mebi), "bandwidth") is Unit.MEBIBYTES_PER_SECOND
    assert "the unit of the bandwidth is not named" in error(PERFTEST_JSON.replace("94.87", "500"))


def test_client_and_server_in_one_stream() -> None:
    last = " 4          1000             0.17               0.16                5.148076\n"
    (table,) = read(PERFTEST + last).tables
    assert len(table.rows) == 2
    assert "stands twice with different values" in error(PERFTEST + last.replace("0.16", "0.18"))


@pytest.mark.parametrize("word", ["nan", "-nan"])
def test_a_deviation_that_perftest_could_not_compute_is_no_number(word: str) -> None:
    (table,) = read(PERFTEST_LAT.replace("0.16", word)).tables
    assert "latency_stdev" not in table.rows[0].values
    assert table.rows[0].values["latency_p99"] == pytest.approx(1.41)
    assert "is not a measured value" in error(PERFTEST_LAT.replace("1.19", word))
    cut = PERFTEST_LAT.replace("0.16", word).replace("                    6.55\n", "\n")
    assert "7 values for 8 columns" in error(cut)


DAMAGE = [
    (OSU, "Bandwidth (MB/s)", "Bandwidth (GB/s)", "f:3: unknown column 'Bandwidth(GB/s)'"),
    (OSU, "4.50", "4,50", "f:5: '4,50' is not a number, a decimal comma?"),
    (OSU, "4.50", "nan", "f:5: 'nan' is not a measured value"),
    (OSU, "4.50", "-4.50", "f:5: '-4.50' is not a measured value"),
    (OSU, "                       4.50", "", "f:5: 1 values for 2 columns"),
    (OSU, "2                       4.50\n", "", "f:5: size 4 after 1, rows are missing"),
    (OSU, "9.25\n", "9.2", "f:6: the last row ends in '9.2', it is cut off"),
    (OSU, "# Size      Bandwidth (MB/s)\n", "", "without a header"),
    (
        OSU,
        "4                       9.25\n",
        "# OSU MPI Bandwidth Test v5.8\n",
        "f:6: version 5.8 after 7.4",
    ),
    (
        OSU,
        "2                       4.50\n",
        "Segmentation fault (core dumped)\n",
        "f:5: 'Segmentation fault'",
    ),
    (OSU_STATISTICS, "2.00        Pass", "2.00        Fail", "f:4: validation says 'Fail'"),
    (
        OSU,
        "1                       2.00\n2                       4.50\n4                       9.25\n",
        "",
        "osu_bw has no row",
    ),
    (PERFTEST, "5.214466", "5,214466", "'5,214466' is not a number, a decimal comma?"),
    (PERFTEST, "            5.214466", "", "4 values for 5 columns"),
    (PERFTEST, "MsgRate[Mpps]", "MsgRate[kpps]", "unknown column 'MsgRate[kpps]'"),
    (PERFTEST_JSON, '"MsgRate": 0.180948\n}\n}', '"MsgRate": 0.180948', "not JSON"),
    (PERFTEST_JSON, "MsgRate", "Rate", "unknown member of results 'Rate'"),
    (PERFTEST_JSON, "94.87", '"94,87"', "a number was expected"),
    (HPL, "PASSED", "FAILED", "the residual check failed"),
    (HPL, "End of Tests.", "", "the output stops before its end"),
    (HPL, "Gflops\n", "Gflops Power\n", "unknown column 'Power'"),
    (HPCC, "Success=1", "Success=0", "Success is not 1"),
    (HPCC, "End of Summary section.", "", "the output stops before its end"),
    (HPCG, "is VALID with", "is INVALID with", "no valid result"),
    (STREAM, "Solution Validates", "Failed Validation", "no line 'Solution Validates'"),
    (STREAM, "Best Rate MB/s", "Best Rate kB/s", "unknown column 'Best Rate kB/s'"),
    (STREAM, "     0.021000", "", "3 values for 4 columns"),
    (GRAPH500, "harmonic_mean_TEPS", "median_TEPS", "no harmonic_mean_TEPS"),
    (GRAPH500, "min_time", "min_energy", "unknown figure 'min_energy'"),
    (NPB, "SUCCESSFUL", "UNSUCCESSFUL", "verification: UNSUCCESSFUL"),
    (NPB, "CG Benchmark Completed.", "", "the output stops before its end"),
    (GROMACS, "(hour/ns)", "(min/ns)", "f:5: unknown column '(min/ns)'"),
    (GROMACS, "Finished mdrun", "Started mdrun", "0 lines 'Finished mdrun'"),
    (GROMACS, "        0.432", "", "1 values for 2 columns"),
    (LAMMPS, "Total wall time", "Total time", "the output stops before its end"),
    (LAMMPS, "timesteps/s", "steps/h", "unknown rate '40.000 steps/h'"),
    (LAMMPS, "2.5 on", "fast on", "'fast' is not a number"),
    (NAMD, "WallClock:", "Clock:", "the output stops before its end"),
    (NAMD, "days/ns", "weeks/ns", "is not a benchmark line"),
    (OPENFOAM, "End\n", "", "the output stops before its end"),
    (OPENFOAM, "= 2.75 s", "= 1.25 s", "the time runs backwards"),
    (OPENFOAM, "End\n", "--> FOAM FATAL ERROR:\n", "FOAM FATAL ERROR"),
    (WRF, "SUCCESS COMPLETE WRF", "", "the output stops before its end"),
    (WRF, "2.00000 elapsed", "2.00000 elap", "a damaged step"),
    (QE, "1m25.25s WALL", "", "0 total times"),
    (NCCL, "      0    31.50", "      3    31.50", "f:14: 3 wrong values"),
    (NCCL, "0 OK", "7 FAILED", "f:16: 7 values out of bounds"),
    (NCCL, "# Out of bounds values : 0 OK\n", "", "the output stops before its end"),
    (
        NCCL,
        "(us)  (GB/s)  (GB/s)            (us)",
        "(ms)  (GB/s)  (GB/s)            (us)",
        "f:13: units",
    ),
    (NCCL, "busbw #wrong     time", "busbw #wrong     took", "f:12: unknown column 'took'"),
    (NCCL, "    0.26    0.51      0\n", "    0.26    0.51\n", "f:14: 12 values for 13 columns"),
    (NCCL, "n1:1946:1946", "n1: Test NCCL failure all_reduce.cu:44", "the test failed"),
    (
        NCCL,
        "# Out of",
        "           4             1     float     sum      -1 1 1 1 0 1 1 1 0\n# Out of",
        "f:16: size 4 after 16",
    ),
    (NCCL, "# Out of", "# nThread 1 nGpus 1\n# Out of", "f:16: another run begins"),
    (GPCNET, "         2.5 |", "         2.5 ", "f:10: 1 values for 2 columns"),
    (GPCNET, "       usec |\n+", "       msec |\n+", "f:10: unknown unit 'msec'"),
    (
        GPCNET,
        "          99% |        Units",
        "          98% |        Units",
        "unknown column '98%'",
    ),
    (GPCNET, "Isolated Network Tests ", "Isolated Network Trial ", "unknown part"),
    (GPCNET, "                1.4X |", "                 1.4 |", "they must end in X"),
    (GPCNET, "2.1X |\n", "2.1X\n", "the row has no end"),
    (REFRAME, "|21116.5|MB/s", "|21116,5|MB/s", "f:2: '21116,5' is not a number"),
    (
        REFRAME,
        "|20000|-0.1|None|stream %size=9|lab\n",
        "|20000|-0.1|None|stream\n",
        "f:2: 15 values for 16",
    ),
    (
        REFRAME,
        "|66|null|4|compute",
        "|66|null|4|fast",
        "f:3: lab:fast after lab:compute, two partitions",
    ),
    (REFRAME, "copy_value", "copy", "no column of a figure"),
    (
        REFRAME_3,
        "jobid=7|num_tasks=32|speed",
        "jobid=7|num_tasks=32|wall",
        "f:2: wall stands twice",
    ),
    (REFRAME_3, "|speed=0.735", "", "f:3: no figure in the line"),
    (REFRAME_3, "2026-08-20", "oh\n2026-08-20", "f:3: 'oh' is no line of a performance log"),
    (REFRAME_3, "speed=0.735", "speed=nan", "f:3: 'nan' is not a measured value"),
    (
        OSU_VARIED,
        "#                1          64\n1  ",
        "#                1          1\n1  ",
        "f:5: a window size",
    ),
    (OSU_VARIED, "2.00      128.00", "2.00", "f:7: 2 values for 3 columns"),
    (OSU_DERIVED, "Transmit Size", "Transmit Sizes", "f:3: unknown column"),
    (PERFTEST_TIME, "tps average", "tps mean", "f:4: unknown column"),
    (MATRIX, "0,1,1.20,11001.5\n", "", "2 are needed: the output is cut off"),
    (MATRIX, "0,1,1.20", "1,0,1.20", "stands twice"),
    (MATRIX, "lat_us", "lat_ms", "unknown column 'lat_ms'"),
    (
        CLCK,
        "GFLOP/s.][nodes: compute-03]",
        "MFLOP/s.][nodes: compute-03]",
        "unknown unit 'MFLOP/s'",
    ),
]


@pytest.mark.parametrize(("text", "old", "new", "expected"), DAMAGE)
def test_damage_is_told_with_file_and_line(text: str, old: str, new: str, expected: str) -> None:
    assert old in text
    assert expected in error(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "f:1: the file is empty"),
        (b" \r\n\n", "f:1: the file is empty"),
        (b"\x7fELF\x02\x01\x00", "f:1: a zero byte, this is not text: it is a binary file"),
        (OSU.encode("utf-16"), "UTF-16? save it as UTF-8"),
        (b"hello\n", "f:1: the format is unknown"),
        ((OSU + LAMMPS).encode(), "f:1: it holds the output of osu and lammps"),
        (b"Open MPI v4.1.4\n", "f:1: this is the MPI library's version only, which is not read"),
    ],
)
def test_what_is_no_log_is_refused_with_the_reason(raw: bytes, expected: str) -> None:
    with pytest.raises(LogError) as caught:
        recognize(decode(raw, "f"), "f")
    assert expected in caught.value.message


def test_two_outputs_of_one_program_are_not_mixed_up() -> None:
    for name in (
        "lammps",
        "gromacs",
        "stream",
        "npb",
        "graph500",
        "hpcc",
        "qe",
        "gpcnet",
        "reframe",
    ):
        assert error(GOOD[name] + GOOD[name]), name


@pytest.mark.parametrize("name", GOOD)
def test_every_cut_is_refused_or_reads_a_prefix(name: str) -> None:
    """A log that was cut off anywhere gives an error, or numbers the whole log has too."""
    text = GOOD[name]
    whole = {repr(v) for t in read(text).tables for r in t.rows for v in r.values.values()}
    for end in range(0, len(text), 3):
        with contextlib.suppress(LogError):
            log = read(text[:end])
            found = {repr(v) for t in log.tables for r in t.rows for v in r.values.values()}
            assert found <= whole, text[:end][-80:]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PARSERS)), st.data())
def test_parsers_meet_any_bytes_with_a_log_or_a_log_error(name: str, data: st.DataObject) -> None:
    text = GOOD.get(name, "# nearmetal-bench 1 p\n")
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 30))
    middle = data.draw(st.text(alphabet="0123456789.,:-#[]=()\n\t eEnax/%\x00\u20ac", max_size=30))
    changed = text[:at] + middle + text[at + length :]
    with contextlib.suppress(LogError):
        log = parse_log(changed, "f", name)
        for table in log.tables:
            for row in table.rows:
                assert 1 <= row.line <= changed.count("\n") + 1
                assert all(0 <= v < float("inf") for v in row.values.values())


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_recognized(raw: bytes) -> None:
    with contextlib.suppress(LogError):
        recognize(decode(raw, "f"), "f")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=22))
def test_what_is_printed_is_read_back(numbers: list[float]) -> None:
    rows = "".join(f"{1 << i:<10}{value:>18.2f}\n" for i, value in enumerate(numbers))
    log = read(f"# OSU MPI Latency Test v5.8\n# Size          Latency (us)\n{rows}")
    assert values(log, "osu_latency")["latency"] == [float(f"{v:.2f}") for v in numbers]
