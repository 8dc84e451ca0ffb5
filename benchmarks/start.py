# SPDX-License-Identifier: Apache-2.0
"""Compare the start of a job between two builds of the provider by turns: ratios with intervals.

    python -m benchmarks.start ../before/build/c/src/provider

A launch is one job of each build, in random order: ranks of MPICH on this machine, without nodes, that
run `mpi_first` (benchmarks/mpi). Its time goes from MPI_Init to the last of the first messages of all
ranks. The launch is the replicate. The table has the medians, the median of the ratios and its interval.
A ratio above 1 means that this checkout is slower. More ranks than cores measure the scheduler, too.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from nearmetal.study.stats import median_interval

ROOT = Path(__file__).resolve().parents[1]
PROVIDER = ROOT / "build/c/src/provider"
LIBRARY = "libnearmetal-fi.so"
PROGRAM = ROOT / "build/programs/mpich5/mpi_first"
LAUNCHER = ROOT / "build/mpi/mpich5/bin/mpiexec"
POOL_SIZE = "1048576"
"""What `nearmetal run` sets if ranks share cores."""
PATIENCE_S = 120.0

Times = tuple[float, float]
"""Seconds in MPI_Init, and until the last of the first messages."""


def start(provider: Path, program: Path, ranks: int) -> Times:
    """Return the times of one job."""
    with tempfile.TemporaryDirectory(prefix="nearmetal-start-") as rundir:
        variables = {
            **os.environ,
            "FI_PROVIDER_PATH": f"+{provider / LIBRARY}",
            "FI_PROVIDER": "nearmetal,tcp",
            "MPIR_CVAR_CH4_NETMOD": "ofi",
            "MPIR_CVAR_NOLOCAL": "1",
            "NEARMETAL_RUNDIR": rundir,
            "NEARMETAL_POOL_SIZE": POOL_SIZE,
        }
        job = subprocess.run(
            [str(LAUNCHER), "-n", str(ranks), str(program)],
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    words = job.stdout.split()
    if job.returncode or len(words) != len(("first", "init", "all")):
        sys.exit(f"mpi_first ended with {job.returncode}: {job.stdout}{job.stderr}")
    return float(words[1]), float(words[2])


def launch(before: Path, program: Path, ranks: int) -> tuple[Times, Times]:
    """Return the times of one launch: of the other build, and of this checkout."""
    builds = [("before", before), ("after", PROVIDER)]
    times = {
        name: start(provider, program, ranks)
        for name, provider in random.sample(builds, len(builds))
    }
    return times["before"], times["after"]


def row(name: str, pairs: list[tuple[float, float]]) -> str:
    """Return a line of the table."""
    ratios = [after / before for before, after in pairs]
    interval = median_interval(ratios)
    spread = f"{interval.low:.3f} to {interval.high:.3f}" if interval else "too few launches"
    before, after = (median(side) for side in zip(*pairs, strict=True))
    return f"| {name} | {before:.4g} | {after:.4g} | {median(ratios):.3f} | {spread} |"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("before", type=Path, help="directory with the other build's provider")
    parser.add_argument(
        "--launches", type=int, default=20, help="launches of each build (default: 20)"
    )
    parser.add_argument("--ranks", type=int, default=32, help="ranks of a job (default: 32)")
    parser.add_argument(
        "--program", type=Path, default=PROGRAM, help="mpi_first (default: of MPICH 5)"
    )
    args = parser.parse_args()
    launches = [
        launch(args.before.resolve(), args.program, args.ranks) for _ in range(args.launches)
    ]
    print("| seconds | before | after | ratio | 95 % interval |")
    print("|---|---|---|---|---|")
    for name, which in (("MPI_Init", 0), ("until the last of the first messages", 1)):
        print(row(name, [(before[which], after[which]) for before, after in launches]))


if __name__ == "__main__":
    main()
