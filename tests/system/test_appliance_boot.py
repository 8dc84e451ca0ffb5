# SPDX-License-Identifier: Apache-2.0
"""Two machines of the appliance `mpi`: what a login says can be run runs at once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.system.machines import Machine, Yard, built_image

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(2400)]

NAMES = ("vm1", "vm2")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yard = Yard(tmp_path_factory.mktemp("appliance"), built_image(appliance="mpi"))
    try:
        one, other = (yard.start(name, yard.seed(name, NAMES)) for name in NAMES)
        other.ready()
        yield one.ready()
    finally:
        yard.end()


def test_an_interactive_login_shows_the_greeting(first: Machine) -> None:
    argv = ["ssh", "-tt", *first._options(), "-p", str(first.port), "mpi@127.0.0.1"]
    done = subprocess.run(argv, input=b"exit\n", capture_output=True, timeout=300, check=False)
    greeting = first.tell("cat /etc/motd").splitlines()
    assert greeting[0].startswith("A node with Open MPI")
    assert greeting[0].encode() in done.stdout
    assert greeting[0] not in first.tell("true")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("mpirun mpi_hello", "hello from 2 ranks"),
        ("mpirun -n 2 --map-by node mpi_patterns -p pingpong,uniband -M 64 -t 0.01", "pingpong"),
        ("mpirun mpi_patterns -p bcast,allreduce,alltoall -M 64 -t 0.01", "alltoall"),
    ],
)
def test_the_commands_of_the_greeting_run(first: Machine, command: str, words: str) -> None:
    said = first.tell("cat /etc/motd")
    assert command.partition(" -M ")[0] in said
    assert words in first.tell(f"bash -lc '{command}'")


def test_other_commands_of_the_greeting_are_there(first: Machine) -> None:
    for program in ("mpi_window", "nearmetal-info", "ibv_devices", "ip"):
        first.tell(f"bash -lc 'command -v {program}'")
