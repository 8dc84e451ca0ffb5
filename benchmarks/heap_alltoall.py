# SPDX-License-Identifier: Apache-2.0
"""Time Alltoall of 64 KiB with 4 ranks by turns: with a heap, without one, and Open MPI's own sm.

    nearmetal up SPEC
    python -m benchmarks.heap_alltoall SPEC

SPEC has two local nodes of one host, each with two slots or more. Open MPI 5 runs `mpi_patterns` in
each launch, and the launches take turns. `heap` and `pool` place two ranks in each node. `sm` is
four processes of this machine, outside of the nodes. The table has the 2nd percentile and the
median of the samples, each as the median of the launches.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from statistics import median

from benchmarks.versus import ROOT
from nearmetal.job.mpi import Mpi, find_installations

PROGRAM = ROOT / "build/programs/openmpi5/mpi_patterns"
ARGUMENTS = ("-p", "alltoall", "-m", "64K", "-M", "64K", "-t", "0.3")
RANKS = "4"
NODES = (sys.executable, "-m", "nearmetal", "run", "--mpi", "openmpi5", "-n", RANKS)
SM = ("--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "self,sm")
TIMEOUT_S = 120
P2, P50 = 3, 5
"""Columns of a row of the program's table."""


def commands(spec: str) -> dict[str, list[str]]:
    """Return the command of each way."""
    mpirun = find_installations()[Mpi.OPENMPI5].prefix / "bin/mpirun"
    job = [str(PROGRAM), *ARGUMENTS]
    nodes = [*NODES, "--map-by", "node"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return {
        "heap": [*nodes, "--heap", spec, "--", *job],
        "pool": [*nodes, spec, "--", *job],
        "sm": [str(mpirun), *root, "-n", RANKS, *SM, *job],
    }


def launch(command: list[str]) -> tuple[float, float]:
    """Return 2nd percentile and median of one launch."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    row = re.search(r"^65536 .*$", done.stdout, re.MULTILINE)
    if done.returncode or row is None:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    words = row[0].split()
    return float(words[P2]), float(words[P50])


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("spec", help="spec of a cluster with two nodes, which is up")
    parser.add_argument("--launches", type=int, default=10, help="of each way (default: 10)")
    args = parser.parse_args()
    ways = commands(args.spec)
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(args.launches):
        for way, command in ways.items():
            found[way].append(launch(command))
    print("| way | 2nd percentile, µs | median, µs |\n|---|---|---|")
    for way, times in found.items():
        low, middle = (median(side) for side in zip(*times, strict=True))
        print(f"| {way} | {low:.4g} | {middle:.4g} |")


if __name__ == "__main__":
    main()
