# SPDX-License-Identifier: Apache-2.0
"""Workload modules, what is recorded of a launch, and a hang that is told with its size."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.backend import NodeStatus
from nearmetal.cluster.spec import load_spec
from nearmetal.core.errors import LaunchError
from nearmetal.core.process import Command, LocalRunner
from nearmetal.evidence import parse_log
from nearmetal.evidence.parse import PARSERS
from nearmetal.job.run import Output
from nearmetal.study.gate import VARIES, fold
from nearmetal.study.runner.environment import (
    NodeAnswers,
    facts_of,
    look_here,
    parse_answer,
    sent_between,
)
from nearmetal.study.runner.two_nodes import first_two, run_sizes
from nearmetal.study.runner.workloads import WORKLOADS, fill_in, grid_of, lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_module_says_what_it_needs(name: str, tmp_path: Path) -> None:
    module = WORKLOADS[name]
    assert module.summary
    assert module.program.log_format in PARSERS
    lay_out(module, None, tmp_path / "work", 6)
    files = [path for path in (tmp_path / "work").rglob("*") if path.is_file()]
    assert bool(files) == bool(module.inputs)
    for path in files:
        text = path.read_text()
        assert "SPDX-License-Identifier" in text or "Apache-2.0" in text
        assert "@" not in text, "a mark was not replaced"


def test_the_workloads_of_the_field_are_there() -> None:
    names = set(WORKLOADS)
    for wanted in (
        "osu-latency",
        "osu-mbw-mr",
        "osu-put-latency",
        "imb-pingpong",
        "imb-put",
        "imb-multi-pingpong",
        "imb-alltoall",
        "imb-alltoallv",
        "perftest-write-bw",
        "hpcc",
        "hpcg",
        "hpl",
        "stream",
        "netpipe",
        "graph500",
        "npb-cg",
        "gromacs",
        "lammps",
        "openfoam",
        "quantum-espresso",
        "namd",
        "wrf",
    ):
        assert wanted in names


@pytest.mark.parametrize(
    ("ranks", "grid"), [(1, (1, 1)), (2, (1, 2)), (6, (2, 3)), (7, (1, 7)), (64, (8, 8))]
)
def test_ranks_make_a_grid(ranks: int, grid: tuple[int, int]) -> None:
    assert grid_of(ranks) == grid
    assert fill_in("@ranks@ = @P@ x @Q@", ranks) == f"{ranks} = {grid[0]} x {grid[1]}"


def test_an_input_of_the_study_takes_the_place_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    (tmp_path / "mine" / "deep" / "in.liquid").write_text("run 1\n")
    lay_out(WORKLOADS["lammps"], tmp_path / "mine", tmp_path / "work", 2)
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["deep"]
    with pytest.raises(LaunchError, match="is not a directory"):
        lay_out(WORKLOADS["lammps"], tmp_path / "nothing", tmp_path / "other", 2)


SERVER = """\
#!/bin/sh
# Prints as perftest does; sizes above 8192 hang in the client, as on a broken path.
size=0
while [ $# -gt 0 ]; do [ "$1" = -s ] && size=$2 && shift; last=$1; shift; done
case $last in
*.*) ;;
*) echo waiting; sleep 2; exit 0 ;;
esac
[ "$size" -gt 8192 ] && sleep 60
[ "$size" -eq 64 ] && [ -e "$FAIL" ] && exit 3
echo "                    RDMA_Write BW Test"
echo " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
echo " $size        5000           100.00             100.00         0.100"
"""


@dataclass
class Here:
    """A backend whose nodes are this machine."""

    fail: str = "/nonexistent"

    def status(self) -> list[NodeStatus]:
        return [
            NodeStatus(n, "h", n, "10.0.0.1", 1, (0,), "", 1, 1.0, healthy=True, health="")
            for n in ("n1", "n2")
        ]

    def on_node(
        self, node: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> Command:
        assert node in {"n1", "n2"}
        return Command(tuple(argv), env={**(env or {}), "FAIL": self.fail})

    def end_marked(self, marker: str) -> int:
        assert "=" in marker
        return 0


def perftest(tmp_path: Path) -> str:
    program = tmp_path / "ib_write_bw"
    program.write_text(SERVER)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_a_hang_is_told_with_its_size(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        done = run_sizes(
            Here(),  # type: ignore[arg-type]
            LocalRunner(),
            ("n1", "n2"),
            [perftest(tmp_path)],
            (4096, 8192, 16384, 32768),
            output=Output(None, out, err),
            size_s=5,
        )
    assert (done.hung_at, done.exit_code) == (16384, 0)
    log = parse_log((tmp_path / "out").read_text(), "out", "perftest")
    assert [row.values["size"] for row in log.tables[0].rows] == [4096, 8192]


def test_a_client_waits_for_a_server_that_listens_late(tmp_path: Path) -> None:
    """The server says nothing, and a client that comes too early fails."""
    program = Path(perftest(tmp_path))
    late = (
        f"exec {sys.executable} -c 'import socket, time; time.sleep(1); "
        's = socket.create_server(("127.0.0.1", 18515)); s.accept()\''
    )
    client = (
        f"{sys.executable} -c 'import socket; socket.create_connection((\"127.0.0.1\", 18515))'"
    )
    text = program.read_text().replace("echo waiting; sleep 2; exit 0", late)
    program.write_text(text.replace('[ "$size" -gt', f'{client} || exit 4\n[ "$size" -gt'))
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        done = run_sizes(
            Here(),  # type: ignore[arg-type]
            LocalRunner(),
            ("n1", "n2"),
            [str(program)],
            (4096,),
            output=Output(None, out, err),
            size_s=5,
        )
    assert (done.exit_code, done.hung_at) == (0, None)
    assert done.seconds >= 1


def test_a_pair_that_fails_stops(tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        done = run_sizes(
            Here(str(tmp_path / "fail")),  # type: ignore[arg-type]
            LocalRunner(),
            ("n1", "n2"),
            [perftest(tmp_path)],
            (64, 128),
            output=Output(None, out, err),
            size_s=5,
        )
    assert (done.hung_at, done.exit_code) == (None, 3)
    assert (tmp_path / "out").read_text() == ""


def test_a_pair_needs_two_nodes() -> None:
    spec = load_spec(ROOT / "nearmetal/share/examples" / "two-nodes.yaml")
    assert first_two(spec, ()) == ("n1", "n2")
    with pytest.raises(LaunchError, match="two nodes"):
        first_two(spec, ("n2",))


def test_a_silent_program_is_ended(tmp_path: Path) -> None:
    talker = ["/bin/sh", "-c", "echo 1; sleep 1; echo 2; sleep 60"]
    with (tmp_path / "out").open("wb") as out:
        done = LocalRunner().attach(Command(tuple(talker)), stdout=out, timeout_s=50, idle_s=3)
    assert done.timed_out
    assert (tmp_path / "out").read_text() == "1\n2\n"
    with (tmp_path / "out").open("wb") as out:
        done = LocalRunner().attach(Command(("true",)), stdout=out, timeout_s=50, idle_s=3)
    assert (done.code, done.timed_out) == (0, False)


def test_this_machine_answers() -> None:
    seen = look_here(LocalRunner())
    assert seen.values("kernel") == [os.uname().release]
    found = facts_of(seen, [("n1", 1), ("n2", 1)], {"n1": "0", "n2": "1"})
    assert found["binding"] == "n1: cores 0; n2: cores 1"
    assert (found["ranks_per_node"], found["placement"]) == ("1", "n1: 1, n2: 1")
    assert found["hypervisor"]


def test_adapters_and_their_counters() -> None:
    text = (
        "firmware mlx5_2\t16.35.1012\nfunction mlx5_2\tVF\nrate mlx5_2/1\t100 Gb/sec (4X EDR)\n"
        "counter mlx5_2/1 port_xmit_data\t{sent}\ncounter mlx5_2/1 port_rcv_errors\t{bad}\n"
        "counter eth0 tx_bytes\t500\nno answer at all\n"
    )
    before = NodeAnswers({"n1": parse_answer(text.format(sent=1000, bad=0))})
    after = NodeAnswers({"n1": parse_answer(text.format(sent=1250, bad=2))})
    assert sent_between(before, after) == (1000, {"n1 mlx5_2/1 port_rcv_errors": 2})
    assert sent_between(NodeAnswers(), NodeAnswers()) == (None, {})
    found = facts_of(after, [], {})
    assert found["firmware"] == "mlx5_2 16.35.1012"
    assert found["functions"] == "mlx5_2 VF"
    assert found["link"] == "mlx5_2/1 100 Gb/sec (4X EDR)"


def test_what_was_recorded_is_folded() -> None:
    same = [{"launch: mpi": "MPICH 5", "version": "1"}, {"launch: mpi": "MPICH 5"}]
    assert fold(same) == {"mpi": "MPICH 5"}
    other = fold([*same, {"launch: mpi": "Open MPI 5"}])["mpi"]
    assert other == VARIES + "MPICH 5 | Open MPI 5"
