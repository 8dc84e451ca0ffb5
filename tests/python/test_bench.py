# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from nearmetal.cluster.registration import desired
from nearmetal.cluster.resource import Facts
from nearmetal.cluster.spec import parse_spec
from nearmetal.core.errors import LaunchError, LogError
from nearmetal.core.process import Command, Completed
from nearmetal.evidence import load_run
from nearmetal.job.mpi import Mpi, Provider
from nearmetal.study.runner.collect import Collector, program_path, sent_bytes
from nearmetal.study.runner.environment import environment
from nearmetal.study.runner.suite import ARMS, SUITES, PlannedLaunch, Program, Where, schedule
from nearmetal.study.runner.two_nodes import pair_of
from tests.python.evidence_runs import limits_log, pair
from tests.python.fake_backend import FakeBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.core.process import Dialogue

SPEC = parse_spec(
    """\
version: 1
name: c
backend: local
hosts: [{name: h, nodes: [{name: n1}, {name: n2}]}]
""",
    "spec.yaml",
)


def test_every_block_begins_with_the_limits_and_runs_every_arm_once() -> None:
    suite = SUITES["standard"]
    steps = schedule(suite, list(Mpi), list(ARMS.values()), 4)
    for block in range(4):
        part = [s for s in steps if s.block == block]
        assert part[0].program.label == "limits"
        assert part[0].arm is None
        assert [s.program.label for s in part[1:3]] == ["fabric", "fabric"]
        seen = [(s.program.label, s.mpi, s.arm.name) for s in part[1:] if s.arm]
        assert len(seen) == len(set(seen)) == len(part) - 1


def test_the_arms_of_a_comparison_stand_in_a_row_in_varying_order() -> None:
    steps = schedule(SUITES["quick"], [Mpi.OPENMPI5], list(ARMS.values()), 20)
    orders = set()
    for block in range(20):
        arms = tuple(s.arm.name for s in steps if s.block == block and s.arm)
        assert sorted(arms) == sorted(ARMS)
        orders.add(arms)
    assert len(orders) > 3
    assert steps == schedule(SUITES["quick"], [Mpi.OPENMPI5], list(ARMS.values()), 20)


def test_libfabric_without_mpi_runs_over_our_arms_only() -> None:
    steps = schedule(SUITES["standard"], [Mpi.OPENMPI5], [ARMS["auto"], ARMS["stock"]], 1)
    assert [s.arm for s in steps if s.program.label == "fabric"] == [ARMS["auto"]]


def test_a_fabric_pair_is_two_nodes_of_one_host() -> None:
    assert pair_of(SPEC) == ("h", "n1", "n2")
    apart = parse_spec(
        """\
version: 1
name: c
backend: local
hosts: [{name: h, nodes: [{name: n1}]}, {name: i, nodes: [{name: n2}]}]
""",
        "spec.yaml",
    )
    with pytest.raises(LaunchError, match="no two nodes share a host"):
        pair_of(apart)


def test_programs_run_only_under_mpis_they_are_made_for() -> None:
    steps = schedule(SUITES["standard"], list(Mpi), list(ARMS.values()), 1)
    found = {(s.program.label, s.mpi) for s in steps}
    assert ("IMB-MPI1", Mpi.MPICH5) in found
    assert ("IMB-MPI1", Mpi.OPENMPI5) not in found
    assert ("NetPIPE", Mpi.OPENMPI4) in found
    assert ("NetPIPE", Mpi.IMPI) not in found


def test_imb_runs_every_pattern_to_4_mib() -> None:
    program = next(p for p in SUITES["standard"].programs if p.label == "IMB-MPI1")
    assert program.args[program.args.index("-msglog") + 1] == "22"
    assert {
        "PingPong",
        "PingPing",
        "Uniband",
        "Biband",
        "Sendrecv",
        "Exchange",
        "Bcast",
        "Allreduce",
        "Reduce",
        "Allgather",
        "Alltoall",
        "Alltoallv",
        "Barrier",
    } <= {*program.args}


def test_arms_differ_in_what_carries_the_messages() -> None:
    assert ARMS["auto"].provider is ARMS["net"].provider is Provider.NEARMETAL
    assert ARMS["auto"].channels is None
    assert "shm" not in (ARMS["net"].channels or ())
    assert ARMS["stock"].provider is Provider.STOCK


NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:     100       1    0    0    0     0          0         0      100       1    0    0
  eth0:    2000      20    0    0    0     0          0         0     3000      30    0    0
"""


def test_sent_bytes_leave_loopback_out() -> None:
    assert sent_bytes(NET_DEV) == 3000


@pytest.mark.parametrize("text", ["", "a\nb\n", "a\nb\nc", "a\nb\neth0: 1 2 3\n"])
def test_counters_that_cannot_be_read_are_unknown_not_zero(text: str) -> None:
    assert sent_bytes(text) is None


def test_the_environment_names_the_machine() -> None:
    found = environment(FakeBackend().status())
    names = [name for name, _ in found.machine]
    assert {"processor", "caches", "kernel", "memory"} <= set(names)
    assert all(value for _, value in (*found.machine, *found.software))


def test_a_program_that_is_not_built_says_what_to_do() -> None:
    with pytest.raises(LaunchError, match="no-such-program") as caught:
        program_path(Program("x", "no-such-program", Where.SYSTEM, ()), None)
    assert "make setup" in caught.value.hint


@dataclass
class Beside:
    """A runner whose only program prints a text and ends with a code."""

    text: str
    code: int = 0
    commands: list[Command] = field(default_factory=list)

    def run(self, command: Command, *, timeout_s: float) -> Completed:
        assert timeout_s > 0
        return Completed(command, 0, NET_DEV.encode(), b"", 0.0)

    def run_all(
        self,
        commands: Sequence[Command],
        *,
        timeout_s: float,
        ended: Callable[[int, Completed], None] | None = None,
    ) -> list[Completed]:
        assert ended is None
        return [self.run(command, timeout_s=timeout_s) for command in commands]

    def check(self, command: Command, *, timeout_s: float) -> Completed:
        return self.run(command, timeout_s=timeout_s)

    def attach(
        self,
        command: Command,
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        timeout_s: float | None = None,
        idle_s: float | None = None,
        foreground: bool = False,
    ) -> Completed:
        assert stdin is None
        assert stderr is not None
        assert timeout_s
        assert not foreground
        assert idle_s is None
        self.commands.append(command)
        if stdout is not None:
            stdout.write(self.text.encode())
        return Completed(command, self.code, b"", b"", 1.0)

    def converse(self, command: Command, *, stderr: IO[bytes] | None = None) -> Dialogue:
        raise AssertionError(command, stderr)


LIMITS = Program("limits", "true", Where.SYSTEM, ("-t", "1"), mpis=())


def collector(directory: Path, runner: Beside) -> Collector:
    there = {item.key: item for item in desired(SPEC, Facts((0, 1))).resources}
    return Collector(
        FakeBackend(there=there),
        SPEC,
        runner,
        directory,
        "quick",
        1,
        2,
        pairs=(pair("n1", "n2", "shm"),),
    )


def test_raw_output_is_kept_byte_for_byte_with_its_hash(tmp_path: Path) -> None:
    runner = Beside(limits_log())
    manifest = collector(tmp_path / "r", runner).run([PlannedLaunch(0, LIMITS, None, None)])
    assert (tmp_path / "r" / manifest.launches[0].stdout).read_text() == limits_log()
    run = load_run(tmp_path / "r")
    assert run.select(program="limits", test="cacheline", metric="time_p50")[0].value == 0.06
    assert run.manifest.finished
    assert runner.commands[0].argv[-2:] == ("-t", "1")


def test_a_launch_that_fails_is_recorded_and_the_next_is_made(tmp_path: Path) -> None:
    steps = [PlannedLaunch(0, LIMITS, None, None), PlannedLaunch(1, LIMITS, None, None)]
    manifest = collector(tmp_path / "r", Beside("cut off", -11)).run(steps)
    assert [launch.exit_code for launch in manifest.launches] == [139, 139]
    assert not any(launch.good for launch in manifest.launches)
    assert load_run(tmp_path / "r").facts == ()


def test_damaged_output_of_a_good_launch_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"raw/0001-limits\.out:\d+: "):
        collector(tmp_path / "r", Beside(limits_log()[:300])).run(
            [PlannedLaunch(0, LIMITS, None, None)]
        )
    # What was measured is not lost with the error.
    assert re.search(r'"finished": ""', (tmp_path / "r" / "manifest.json").read_text())


def test_what_cannot_be_run_is_listed_with_its_reason(tmp_path: Path) -> None:
    absent = Program("absent", "no-such-program", Where.SYSTEM, (), mpis=())
    manifest = collector(tmp_path / "r", Beside("")).run([PlannedLaunch(0, absent, None, None)])
    assert not manifest.launches
    assert "no-such-program" in manifest.skipped[0]


def test_a_run_directory_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with pytest.raises(FileExistsError):
        collector(tmp_path, Beside("")).run([])


def test_the_limits_use_the_cores_of_the_nodes(tmp_path: Path) -> None:
    runner = Beside(limits_log())
    collector(tmp_path / "r", runner).run([PlannedLaunch(0, LIMITS, None, None)])
    assert runner.commands[0].argv[1:5] == ("-a", "0", "-b", "1")
    assert os.access(runner.commands[0].argv[0], os.X_OK)
