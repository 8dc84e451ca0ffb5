# SPDX-License-Identifier: Apache-2.0
"""Real logs of others: values written down by hand from the raw text, and reasons of refusals."""

import re
from pathlib import Path

import pytest

from nearmetal.core.errors import LogError
from nearmetal.evidence import Log, Unit, parse_log
from nearmetal.evidence.recognize import decode, recognize, refuse_crash
from tests.python.study_shared import LOGS, SAMPLES

IB = "osu/stackhpc_alaska_ib_openmpi4-ucx_osu_"
ROCE = "osu/stackhpc_alaska_roce_openmpi4-ucx_osu_"
GMX = "apps/gromacs/stackhpc_alaska_ib_3000k_16n_mdlog_tail.txt"
LMP = "apps/lammps/usernetes_lammps-32-512-1.out"
WRF = "apps/wrf/stackhpc_csd3_roce_conus12km_56ranks_rsl.error.0000"
HPCC = "hpcc/pkb_hpcc-sample.txt"
ALL_TO_ALL = "osu/pkb_ialltoall_full.txt"
GPC = "gpcnet/superbench_network_test.log"
LOAD = "gpcnet/superbench_network_load.log"
ALLREDUCE = "nccl/superbench_allreduce.log"
NCCL = "nccl/pkb_nccl_output.txt"
PERFLOG = "perflog/reframe3_ib_gromacs_1400k_1.log"
MIBS = Unit.MEBIBYTES_PER_SECOND
MS, MBS, S = Unit.MICROSECONDS, Unit.MEGABYTES_PER_SECOND, Unit.SECONDS

# file, test, size (None: no sizes), metric, unit, value, line
WRITTEN_DOWN = [
    (IB + "latency.txt", "osu_latency", 1, "latency", MS, 1.02, 4),
    (IB + "latency.txt", "osu_latency", 4194304, "latency", MS, 351.21, 26),
    (ROCE + "bw.txt", "osu_bw", 1, "bandwidth", MBS, 5.30, 3),
    (ROCE + "bw.txt", "osu_bw", 4194304, "bandwidth", MBS, 3063.09, 25),
    (ROCE + "mbw_mr_16.txt", "osu_mbw_mr", 16, "bandwidth", MBS, 452.63, 8),
    (ROCE + "mbw_mr_16.txt", "osu_mbw_mr", 16, "rate", Unit.MESSAGES_PER_SECOND, 28289631.40, 8),
    (IB + "alltoall.txt", "osu_alltoall", 65536, "latency", MS, 13857.90, 20),
    (IB + "allreduce.txt", "osu_allreduce", 4, "latency", MS, 5.47, 4),
    (ALL_TO_ALL, "osu_ialltoall", 4, "overall", MS, 390.22, 20),
    (ALL_TO_ALL, "osu_ialltoall", 4, "compute", MS, 269.75, 20),
    (ALL_TO_ALL, "osu_ialltoall", 4, "init", MS, 7.08, 20),
    (ALL_TO_ALL, "osu_ialltoall", 4, "mpi_test", MS, 0.0, 20),
    (ALL_TO_ALL, "osu_ialltoall", 4, "mpi_wait", MS, 113.26, 20),
    (ALL_TO_ALL, "osu_ialltoall", 4, "communication", MS, 253.75, 20),
    (ALL_TO_ALL, "osu_ialltoall", 4, "communication_min", MS, 28.26, 20),
    (ALL_TO_ALL, "osu_ialltoall", 4, "communication_max", MS, 479.14, 20),
    (ALL_TO_ALL, "osu_ialltoall", 4, "overlap", Unit.PERCENT, 52.52, 20),
    (ALL_TO_ALL, "osu_ialltoall", 8, "mpi_wait", MS, 215.95, 21),
    (ALL_TO_ALL, "osu_ialltoall", 8, "communication_max", MS, 82.86, 21),
    ("osu/pkb_mbw_mr_full.txt", "osu_mbw_mr", 8, "bandwidth", MBS, 252.65, 19),
    ("osu/pkb_latency_full.txt", "osu_latency", 8, "latency", MS, 25.03, 14),
    ("osu/virtualclient_latency_bom.txt", "osu_latency", 2097152, "latency", MS, 563.25, 25),
    (
        "osu/perfstudy_aws_gpu_cudaHH_latency.txt",
        "osu_latency",
        4194304,
        "latency",
        MS,
        1655.53,
        35,
    ),
    (
        "osu_repeats/bare-metal/osu_barrier-32-512-1.out",
        "osu_barrier",
        None,
        "latency",
        MS,
        91.3,
        4,
    ),
    (
        "osu_repeats/usernetes/osu_barrier-32-512-1.out",
        "osu_barrier",
        None,
        "latency",
        MS,
        175.96,
        5,
    ),
    ("osu_repeats/usernetes/osu_latency-1.out", "osu_latency", 1048576, "latency", MS, 97.61, 25),
    ("imb/stackhpc_alaska_ib_pingpong.txt", "PingPong", 65536, "bandwidth", MBS, 5742.43, 52),
    ("imb/stackhpc_alaska_ib_pingpong.txt", "PingPong", 65536, "time", MS, 11.41, 52),
    (
        "perftest/superbench_ib_loopback_all_sizes.log",
        "rdma_write_bw",
        64,
        "bandwidth",
        Unit.MEBIBYTES_PER_SECOND,
        171.66,
        46,
    ),
    (
        "perftest/superbench_ib_loopback_all_sizes.log",
        "rdma_write_bw",
        64,
        "rate",
        Unit.MEGAMESSAGES_PER_SECOND,
        2.812504,
        46,
    ),
    (HPCC, "HPL", None, "rate", Unit.TERAFLOPS, 0.0331844, 448),
    (HPCC, "MPIRandomAccess", None, "updates", Unit.GIGAUPDATES, 0.0134972, 517),
    (HPCC, "StarSTREAM_Triad", None, "bandwidth", Unit.GIGABYTES_PER_SECOND, 5.92076, 531),
    (HPCC, "RandomlyOrderedRingLatency", None, "latency", MS, 0.534474, 544),
    ("hpcg/virtualclient_hpcg.txt", "hpcg", None, "rate", Unit.GIGAFLOPS, 1.94783, 119),
    ("hpcg/virtualclient_hpcg.txt", "hpcg", None, "time_ddot", S, 0.00189122, 86),
    ("stream/virtualclient_stream.txt", "stream_triad", None, "bandwidth", MBS, 23314.0, 30),
    ("stream/virtualclient_stream.txt", "stream_copy", None, "time_max", S, 0.317779, 27),
    (
        "graph500/virtualclient_graph500_v3.txt",
        "graph500_bfs",
        None,
        "harmonic_mean_teps",
        Unit.TRAVERSED_EDGES,
        3.49594e7,
        33,
    ),
    (
        "graph500/virtualclient_graph500_v3.txt",
        "graph500_sssp",
        None,
        "max_time",
        S,
        0.000899553,
        18,
    ),
    ("npb/virtualclient_ft_mpi_3.4.2.txt", "npb_ft", None, "rate", Unit.MEGAOPS, 3873.74, 30),
    (GMX, "gromacs", None, "wall_time", S, 330.865, 56),
    (GMX, "gromacs", None, "speed", Unit.NANOSECONDS_PER_DAY, 5.223, 58),
    (GMX, "gromacs", None, "hours_per_ns", Unit.HOURS_PER_NANOSECOND, 4.595, 58),
    (LMP, "lammps", None, "loop_time", S, 16.0802, 55),
    (LMP, "lammps", None, "steps", Unit.STEPS_PER_SECOND, 6.219, 57),
    (LMP, "lammps", None, "atom_steps", Unit.MEGAOPS, 3.872, 57),
    (
        "apps/openfoam/stackhpc_alaska_ib_mbike_4n_tail.txt",
        "openfoam",
        None,
        "execution_time",
        S,
        19.73,
        48,
    ),
    ("apps/qe/qef_cnt10por8_pw_tail.txt", "pwscf", None, "wall_time", S, 7740.0, 33),
    (WRF, "wrf", None, "first_step", S, 0.62982, 40),
    (GPC, "gpcnet_rr_two_sided_lat", 8, "latency", MS, 10000.0, 15),
    (GPC, "gpcnet_multiple_alltoall", 4096, "bandwidth_p99", MIBS, 10000.0, 29),
    (LOAD, "gpcnet_multiple_allreduce", 8, "impact_p99", Unit.COUNT, 0.0, 96),
    (PERFLOG, "Gromacs_1400k_1", None, "ns_per_day", Unit.NANOSECONDS_PER_DAY, 0.729, 1),
]

REFUSED = {
    "MANIFEST.tsv": "the format is unknown",
    "fabric/superbench_ibstat.txt": "the format is unknown",
}

RANKS = {
    GPC: 2,
    NCCL: 2,
    GMX: 512,
    LMP: 512,
    WRF: 56,
    ALL_TO_ALL: 8,
    HPCC: 4,
    IB + "mbw_mr_16.txt": 16,
}


ROOTS = [LOGS, *([SAMPLES] if SAMPLES.is_dir() else [])]
STEPS = {LOGS: 7.00599, SAMPLES: 44.16443}
"""The sum of all steps but the first: 24 in the excerpt, 149 in the whole log."""


def read(file: str, root: Path = LOGS) -> Log:
    text = decode((root / file).read_bytes(), file)
    refuse_crash(text, file)
    return parse_log(text, file, recognize(text, file))


@pytest.mark.parametrize(
    ("file", "test", "size", "metric", "unit", "value", "line"),
    [
        pytest.param(*row, id=f"{row[0].rpartition('/')[2]}-{row[3]}-{row[6]}")
        for row in WRITTEN_DOWN
    ],
)
def test_a_number_is_what_the_raw_text_says(  # noqa: PLR0917 - a row of the table above
    file: str, test: str, size: int | None, metric: str, unit: Unit, value: float, line: int
) -> None:
    found = [
        (row.line, column.unit, row.values[metric])
        for table in read(file).tables
        if table.test == test
        for column in table.columns
        for row in table.rows
        if column.metric == metric and row.values.get("size") == size
    ]
    assert [(row_line, row_unit) for row_line, row_unit, _ in found] == [(line, unit)]
    assert found[0][2] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("file", "ranks"), RANKS.items())
def test_ranks_come_from_the_log(file: str, ranks: int) -> None:
    assert {table.processes for table in read(file).tables} == {ranks}


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_steps_are_summed(root: Path) -> None:
    rows = [row for table in read(WRF, root).tables for row in table.rows]
    (row,) = (row for row in rows if "step_total" in row.values)
    assert row.values["step_total"] == pytest.approx(STEPS[root])
    assert row.line == 189


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_every_sample_is_read_or_refused_by_name(root: Path) -> None:
    refused = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        file = str(path.relative_to(root))
        try:
            log = read(file, root)
        except LogError as error:
            refused[file] = error.message
            continue
        assert log.tables, file
        lines = path.read_text(errors="replace").split("\n")
        for table in log.tables:
            for row in table.rows:
                # Sums over many lines are the exception: they stand in none.
                words = lines[row.line - 1].replace(",", " ")
                shown = [v for m, v in row.values.items() if m not in {"step_mean", "step_total"}]
                if log.format != "qe":
                    printed = _numbers(words)
                    assert all(any(abs(v - p) <= 1e-9 * abs(v) for p in printed) for v in shown), (
                        file,
                        row,
                    )
    expected = {file: why for file, why in REFUSED.items() if (root / file).is_file()}
    assert refused.keys() == expected.keys()
    assert expected
    for file, reason in expected.items():
        assert refused[file].startswith(f"{file}:1: "), refused[file]
        assert reason in refused[file]


def _numbers(words: str) -> list[float]:
    found = []
    for word in re.sub(r"[=:|()]|X(?= )", " ", words).split():
        try:
            found.append(float(word))
        except ValueError:
            continue
    return found


def test_all_pairs_are_complete() -> None:
    log = read("matrix/stackhpc_alaska_ib_nxnlatbw.csv")
    assert len(log.tables) == 16 * 15
    first, last = log.tables[0], log.tables[-1]
    assert (first.variant, first.rows[0].values["latency"], first.line) == ("7 to 0", 0.81, 1)
    assert (last.variant, last.rows[0].values["bandwidth"], last.line) == (
        "9 to 15",
        11836.466543,
        241,
    )


def test_both_places_of_nccl_are_read() -> None:
    out, within = read(NCCL).tables
    assert (out.test, out.nodes) == ("nccl_all_reduce_or_sendrecv", 2)
    assert (out.setup.buffers, within.setup.buffers) == ("out of place", "in place")
    last = [(t.rows[-1].line, t.rows[-1].values["time"]) for t in (out, within)]
    assert last == [(20, 1752724.0), (20, 1763386.0)]


@pytest.mark.parametrize(
    ("file", "test", "last"),
    [
        (ALLREDUCE, "nccl_all_reduce", [(231.76, 48), (231.93, 48)]),
        ("nccl/superbench_alltoall.log", "nccl_alltoall", [(220.79, 47), (223.56, 47)]),
    ],
)
def test_an_old_version_of_nccl_tests_is_read(
    file: str, test: str, last: list[tuple[float, int]]
) -> None:
    """It prints neither the name of the test nor an operation of a test that has none."""
    tables = read(file).tables
    found = [
        (row.values["bus_bandwidth"], row.line)
        for table in tables
        for row in table.rows
        if row.values["size"] == 1 << 31
    ]
    assert {table.test for table in tables} == {test}
    assert found == last


def test_parts_of_a_network_under_load_are_told_apart() -> None:
    tables = read(LOAD).tables
    modes = {t.setup.mode for t in tables if t.test == "gpcnet_alltoall"}
    assert "congestors alone" in modes
    assert "with congestors, RR Two-sided Lat" in modes
    assert len(modes) == len([t for t in tables if t.test == "gpcnet_alltoall"]) == 4


def test_each_job_of_a_performance_log_is_a_launch() -> None:
    found = [
        (table.launch, row.values["ns_per_day"])
        for table in read(PERFLOG).tables
        for row in table.rows
        if "ns_per_day" in row.values
    ]
    assert found[0] == (0, 0.729)
    assert [launch for launch, _ in found] == list(range(len(found)))


def test_what_both_sides_of_perftest_printed_counts_once() -> None:
    (table,) = read("perftest/superbench_ib_loopback_all_sizes.log").tables
    assert [row.values["size"] for row in table.rows] == [2 << i for i in range(23)]


def test_a_short_run_is_remarked() -> None:
    (_, remark), *_ = read("osu/virtualclient_latency_bom.txt").remarks
    assert "ends at 2097152 B" in remark


if SAMPLES.is_dir():

    def test_an_excerpt_has_lines_of_its_log_and_nothing_else() -> None:
        found = [p for p in LOGS.rglob("*") if (SAMPLES / p.relative_to(LOGS)).is_file()]
        assert len(found) > 150
        for path in found:
            whole = (SAMPLES / path.relative_to(LOGS)).read_bytes().split(b"\n")
            for number, line in enumerate(path.read_bytes().split(b"\n")):
                assert line in {b"", whole[number]}, (path, number + 1)
