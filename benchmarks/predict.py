# SPDX-License-Identifier: Apache-2.0
"""Predict the tax of three applications of Debian, and compare it with the measured tax.

    python -m benchmarks.predict --blocks 8 --output results/predict

Two nodes of the local backend run a benchmark of patterns, LAMMPS, GROMACS and Quantum ESPRESSO in
three arms: nearmetal through shared memory (the base), nearmetal over TCP, and the MPI's own stack
over TCP. All launches are one study, in random blocks, so prediction and measurement meet the same
state of the machine. Then each application runs once more in the base arm under Open MPI's
monitoring, and with `--mpip LIBRARY` also under mpiP. `nearmetal study predict` gets this profile
and the patterns. The command needs root, Open MPI 4 and the packages of
tools/setup/apps-packages.txt.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nearmetal.cli.arguments import open_running
from nearmetal.core.process import Command, LocalRunner
from nearmetal.job.mpi import Mpi, Provider
from nearmetal.job.run import JobRequest, Output, run_job
from nearmetal.study.ratios import ratio
from nearmetal.study.runner.starts import Staged, staged
from nearmetal.study.runner.workloads import WORKLOADS, lay_out
from nearmetal.study.stats import Ratio
from nearmetal.study.store import Study

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = "examples/two-nodes.yaml"
BASE = "near"
TAXED = ("net", "stock")
PATTERNS = '"pingpong,bcast,allreduce,reduce,allgather,alltoall,barrier"'
RANKS = 2
COLUMNS = (
    *("application", "arm", "profile", "predicted, %", "limits", "measured, %", "95 %"),
    *("fastest, %", "error", "inside"),
)
PREPARE_S = 600.0
RUN_S = 600.0

STUDY = """\
format: 1
name: predict
arms:
  near: {{cluster: {cluster}, way: auto, platform: container, fabric: nearmetal, placement: two nodes}}
  net: {{cluster: {cluster}, way: net, platform: container, fabric: nearmetal over TCP,
        placement: two nodes}}
  stock: {{cluster: {cluster}, way: stock, platform: container, fabric: TCP, placement: two nodes}}
workloads:
  patterns: {{program: build/programs/openmpi4/mpi_patterns, mpi: openmpi4,
             args: [-p, {patterns}, -M, 1M, -t, "0.02"], log_format: nearmetal-bench}}
  lammps: {{use: lammps, mpi: openmpi4, input: {output}/lammps}}
  gromacs: {{use: gromacs, mpi: openmpi4, input: {output}/gromacs}}
  quantum-espresso: {{use: quantum-espresso, mpi: openmpi4, input: {output}/quantum-espresso}}
launches: {{least: {blocks}, most: {blocks}, budget_minutes: {minutes}}}
"""

# Without it, some runs of the water end with a segmentation fault: molecules are too near.
MINIMIZE = """\
integrator = steep
nsteps = 200
cutoff-scheme = Verlet
coulombtype = PME
rcoulomb = 0.9
rvdw = 0.9
"""
MINIMIZED = (
    "gmx -quiet grompp -f minimize.mdp -c conf.gro -p topol.top -o minimize.tpr",
    "gmx -quiet mdrun -s minimize.tpr -deffnm minimize -nt 1",
    "gmx -quiet grompp -f water.mdp -c minimize.gro -p topol.top -o topol.tpr",
)

# Words for a shell on a node; $0 is the directory of the run.
MONITORED = """\
cd "$0" && export OMPI_MCA_pml="$OMPI_MCA_pml,monitoring" OMPI_MCA_pml_monitoring_enable=2
export OMPI_MCA_pml_monitoring_enable_output=3 OMPI_MCA_pml_monitoring_filename="$0/profile"
exec "$@"
"""
PRELOADED = (
    'cd "$0" && library="$1" && shift && export MPIP="-k 0" LD_PRELOAD="$library"; exec "$@"'
)
FETCH = 'cat "$0"/$1'


@dataclass(frozen=True)
class Application:
    """One application: its workload, and the test and metric of its run time.

    The inputs of the workloads run for about a second. `longer` is a file of the input, and words
    in it with the words for a run of some five seconds.
    """

    workload: str
    test: str
    metric: str
    longer: tuple[str, str, str]


APPLICATIONS = (
    Application("lammps", "lammps", "loop_time", ("in.liquid", "run 500", "run 5000")),
    Application("gromacs", "gromacs", "wall_time", ("water.mdp", "nsteps = 500", "nsteps = 2500")),
    Application(
        *("quantum-espresso", "pwscf", "wall_time"),
        ("scf.in", "celldm(1) = 14.0", "celldm(1) = 30.0"),
    ),
)


def nearmetal(*words: str, codes: Sequence[int] = (0,)) -> str:
    """Run a verb and return what it prints; end the command if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "nearmetal", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode not in codes:
        sys.exit(f"nearmetal {' '.join(words)} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


@contextmanager
def cluster() -> Iterator[None]:
    """Bring the two nodes up, and remove them afterwards."""
    nearmetal("up", CLUSTER)
    try:
        yield
    finally:
        nearmetal("down", "--yes", CLUSTER)


def prepare(application: Application, place: Path, log: Path) -> None:
    """Make the input of an application once, so that all launches start from the same bytes."""
    module = WORKLOADS[application.workload]
    lay_out(module, None, place, RANKS)
    name, short, long = application.longer
    text = (place / name).read_text()
    if text.count(short) != 1:
        sys.exit(f"{name} of {application.workload} does not say {short!r} once")
    (place / name).write_text(text.replace(short, long))
    commands = [" ".join(words) for words in module.before]
    if application.workload == "gromacs":
        (place / "minimize.mdp").write_text(MINIMIZE)
        commands = [commands[0], *MINIMIZED]
    with log.open("wb") as stream:
        for command in commands:
            done = LocalRunner().attach(
                Command(tuple(command.split()), env=dict(os.environ), cwd=place),
                stdout=stream,
                stderr=stream,
                timeout_s=PREPARE_S,
            )
            if done.code:
                sys.exit(f"{command} failed, read {log}")


def profile(application: Application, place: Path, target: Path, mpip: Path | None) -> Path:
    """Run an application under a profiler in the base arm; return the path of the profile."""
    running, spec = open_running(CLUSTER)
    backend, runner = running.backend, LocalRunner()
    module = WORKLOADS[application.workload]
    program = shutil.which(module.program.file) or sys.exit(f"no {module.program.file}")
    nodes = [node.name for _, node in spec.nodes]
    with (target / "log").open("wb") as log, staged(backend, runner, nodes, place) as there:
        shell = [MONITORED, there.path] if mpip is None else [PRELOADED, there.path, str(mpip)]
        request = JobRequest(
            program="/bin/sh",
            args=("-c", *shell, program, *module.program.args),
            mpi=Mpi.OPENMPI4.value,
            ranks=RANKS,
            provider=Provider.NEARMETAL,
            timeout_s=RUN_S,
        )
        ended = run_job(backend, spec, request, runner, Output(stdout=log, stderr=log))
        if ended.exit_code:
            sys.exit(f"{application.workload} under its profiler failed, read {log.name}")
        return _fetched(there, target, mpip)


def _fetched(there: Staged, target: Path, mpip: Path | None) -> Path:
    """Copy the files of a profile from the nodes; return the path of the profile."""
    if mpip is not None:
        found = target / "report.mpiP"
        found.write_bytes(there.run(there.nodes[0], (FETCH, there.path, "*.mpiP")).stdout)
        return found
    for rank in range(RANKS):
        name = f"profile.{rank}.prof"
        counts = next(
            done.stdout
            for node in there.nodes
            if (done := there.run(node, (FETCH, there.path, name))).code == 0
        )
        (target / name).write_bytes(counts)
    return target


@dataclass(frozen=True)
class Measured:
    """The run time of an application in the base arm, and its ratio in another arm."""

    seconds: float
    ratio: Ratio
    fastest: float
    """The ratio of the fastest launches, which other programs disturbed least; it has no interval."""


def measured(study: Path, application: Application, arm: str) -> Measured:
    """Return what the launches of an application say."""
    values = [
        next(
            cell.values
            for cell in Study(study).cells(
                arm=name, test=application.test, metric=application.metric
            )
        )
        for name in (BASE, arm)
    ]
    found = ratio(values[1], values[0]) or sys.exit(f"{application.workload} took no time")
    least = min(values[1]) / min(values[0])
    return Measured(median(values[0]), found, least)


def row(application: Application, how: str, one: Measured, found: dict[str, Any], arm: str) -> str:
    """Return a line of the table: predicted and measured tax, and the error."""
    value, low, high, least = (
        math.nan if r is None else (r - 1) * 100 for r in (*one.ratio, one.fastest)
    )
    name = f"| {application.workload} | {arm} | {how} |"
    real = f"{value:+.1f} | {low:+.1f} to {high:+.1f} | {least:+.1f} |"
    predicted = found["tax_percent"]
    if predicted is None:
        return f"{name} {found['not_predictable']} | | {real} | |"
    tax, first, last = (predicted[key] for key in ("value", "low", "high"))
    inside = "yes" if first <= value <= last else "no"
    return (
        f"{name} {tax:+.1f} | {first:+.1f} to {last:+.1f} | {real} {tax - value:+.1f} | {inside} |"
    )


def table(study: Path, profiles: dict[tuple[Application, str], Path], output: Path) -> list[str]:
    """Return the lines of the table."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for arm in TAXED:
        for (application, how), path in profiles.items():
            one = measured(study, application, arm)
            more = ["--seconds", str(one.seconds)] if how == "monitoring" else []
            text = nearmetal(
                *("study", "predict", str(path), str(study), BASE, arm, "--json", *more),
                codes=(0, 4),
            )
            (output / f"{application.workload}-{how}-{arm}.json").write_text(text)
            lines.append(row(application, how, one, json.loads(text), arm))
    return lines


def main() -> None:
    """Measure, predict, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=8, help="launches of each arm (default: 8)")
    parser.add_argument("--minutes", type=float, default=30, help="time limit of the launches")
    parser.add_argument("--output", type=Path, required=True, help="new directory for the results")
    parser.add_argument("--mpip", type=Path, help="libmpiP.so, for profiles with times")
    args = parser.parse_args()
    output: Path = args.output.absolute()
    output.mkdir(parents=True)
    os.environ["NEARMETAL_STATE_DIR"] = str(output / "state")
    os.chdir(ROOT)
    design = output / "study.yaml"
    design.write_text(
        STUDY.format(
            cluster=CLUSTER,
            blocks=args.blocks,
            minutes=args.minutes,
            patterns=PATTERNS,
            output=output / "input",
        )
    )
    for application in APPLICATIONS:
        log = output / f"{application.workload}.log"
        prepare(application, output / "input" / application.workload, log)
    profiles: dict[tuple[Application, str], Path] = {}
    with cluster():
        nearmetal("study", "run", str(design), "--output", str(output / "run"), codes=(0, 1))
        for application in APPLICATIONS:
            for how, library in (("monitoring", None), ("mpip", args.mpip)):
                if how == "monitoring" or library is not None:
                    target = output / f"{application.workload}-{how}"
                    target.mkdir()
                    profiles[application, how] = profile(
                        application, output / "input" / application.workload, target, library
                    )
    study = output / "study"
    nearmetal("study", "import", str(output / "run"), "--output", str(study), "--keep-going")
    lines = table(study, profiles, output)
    (output / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
