# SPDX-License-Identifier: Apache-2.0
"""Real launchers put the rank and the time before every line, and the numbers stay the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nearmetal.evidence import parse_log
from nearmetal.evidence.recognize import decode, recognize
from nearmetal.job.mpi import Mpi, find_installations
from tests.system.need import need_mpi

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(120)]
need_mpi(Mpi.OPENMPI4, Mpi.OPENMPI5, Mpi.MPICH5, Mpi.IMPI)

LOGS = Path(__file__).parent.parent / "data" / "logs" / "osu"
LOG = LOGS / "stackhpc_alaska_ib_openmpi4-ucx_osu_latency.txt"
"""Short enough for one pipe buffer: Open MPI 4 cuts lines where its buffers end."""
PROGRAM = """
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
echo "Process $rank of 2 is on node-$rank"
if [ "$rank" = 0 ]; then cat "$0"; fi
"""
ALONE = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
WAYS = [
    (Mpi.OPENMPI4, "--oversubscribe --tag-output"),
    (Mpi.OPENMPI4, "--oversubscribe --timestamp-output"),
    (Mpi.OPENMPI4, "--oversubscribe --tag-output --timestamp-output"),
    (Mpi.OPENMPI5, "--oversubscribe --output tag"),
    (Mpi.OPENMPI5, "--oversubscribe --output rank"),
    (Mpi.OPENMPI5, "--oversubscribe --output tag-detailed"),
    (Mpi.OPENMPI5, "--oversubscribe --output tag,timestamp"),
    (Mpi.MPICH5, "-l"),
    (Mpi.IMPI, "-l"),
]


@pytest.mark.parametrize(("mpi", "options"), WAYS, ids=[f"{m.value} {o}" for m, o in WAYS])
def test_what_a_launcher_writes_before_lines_changes_no_number(mpi: Mpi, options: str) -> None:
    launcher = str(find_installations()[mpi].launcher)
    words = [launcher, *options.split(), "-n", "2", "sh", "-c", PROGRAM, str(LOG)]
    done = subprocess.run(
        words,
        env=os.environ | ALONE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=100,
        check=True,
    )
    text = decode(done.stdout, "f")
    found = parse_log(text, "f", recognize(text, "f"))
    plain = parse_log(LOG.read_text(), "f", "osu")
    numbers = [[row.values for row in table.rows] for table in plain.tables]
    assert [[row.values for row in table.rows] for table in found.tables] == numbers
    lines = [line.rstrip("\r") for line in text.split("\n")]
    printed = tuple(line for line in LOG.read_text().split("\n") if line)
    rows = [row for table in found.tables for row in table.rows]
    assert rows
    assert all(lines[row.line - 1].endswith(printed) for row in rows)
