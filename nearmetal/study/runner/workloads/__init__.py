# SPDX-License-Identifier: Apache-2.0
"""Workloads that a study can name, as data.

Micro-benchmarks: of this project, IMB, OSU (if the site has it), NetPIPE and perftest. Kernels and
applications have small inputs here if a free input exists; a study may give its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from math import isqrt
from pathlib import Path

from nearmetal.core.errors import LaunchError
from nearmetal.study.runner.suite import MPICH_ABI, OPENMPI_ABI, Program, Where


@dataclass(frozen=True)
class Module:
    """One workload. In arguments and inputs, `@ranks@`, `@P@` and `@Q@` are numbers (P x Q = ranks).

    `inputs` is a directory of inputs here; `needs_input`: the study must give one, because no small
    free input exists. `before` runs once in the directory of the launch, beside the cluster.
    `figures` is the file with the figures, if they are in no stream. A launch without output for
    `idle_s` hangs at a size and is ended. `sizes`: every size is a start of its own.
    """

    summary: str
    program: Program
    inputs: str = ""
    needs_input: bool = False
    before: tuple[tuple[str, ...], ...] = ()
    figures: str = ""
    idle_s: float | None = None
    doubling: bool = False
    """Whether each message size is twice the one before."""
    sizes: tuple[int, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    """Variables for the program, with the value that applies if the site sets none."""

    def environment(self) -> dict[str, str]:
        """Return the variables for the program: values of the site, or the usual values."""
        return {name: os.environ.get(name, usual) for name, usual in self.env}


def grid_of(ranks: int) -> tuple[int, int]:
    """Return the grid of P x Q ranks that is closest to a square, P at most Q."""
    p = next(p for p in range(isqrt(ranks), 0, -1) if ranks % p == 0)
    return p, ranks // p


def fill_in(text: str, ranks: int) -> str:
    """Return a text with its marks replaced."""
    p, q = grid_of(ranks)
    for mark, value in (("@ranks@", ranks), ("@P@", p), ("@Q@", q), ("{ranks}", ranks)):
        text = text.replace(mark, str(value))
    return text


def _copy(source: Traversable, target: Path, ranks: int) -> None:
    for entry in source.iterdir():
        if entry.is_dir():
            (target / entry.name).mkdir()
            _copy(entry, target / entry.name, ranks)
        else:
            text = fill_in(entry.read_text(encoding="utf-8"), ranks)
            (target / entry.name).write_text(text, encoding="utf-8")


def lay_out(module: Module, given: Path | None, target: Path, ranks: int) -> None:
    """Make the directory of a launch, with the inputs of the module or of the study."""
    target.mkdir(parents=True)
    if given is not None:
        if not given.is_dir():
            raise LaunchError(
                f"{given} is not a directory", "give a directory with the input files"
            )
        shutil.copytree(given, target, dirs_exist_ok=True, symlinks=True)
    elif module.inputs:
        _copy(resources.files(__package__) / "inputs" / module.inputs, target, ranks)


def figures_in(module: Module, directory: Path) -> Path | None:
    """Return the file with the figures of a launch; None: the launch wrote none."""
    found: Sequence[Path] = sorted(directory.glob(module.figures)) if module.figures else []
    return found[-1] if found else None


_LAST = 1 << 20
_IDLE_S = 60.0
"""A size without output for this time hangs."""

_KERNEL_S = 1800.0
_APPLICATION_S = 3 * 3600.0


def _imb(file: str, name: str, summary: str, *more: str, log2_size: int = 20) -> Module:
    options = f"-npmin @ranks@ -msglog {log2_size} -iter 100 -time 0.2 {name}"
    args = (*more, *options.split())
    program = Program(f"{file}-{name}", file, Where.IMPI, args, "imb", MPICH_ABI)
    return Module(summary, program, idle_s=_IDLE_S, doubling=True)


_mpi1 = partial(_imb, "IMB-MPI1")
_rma = partial(_imb, "IMB-RMA")


def _osu(file: str, summary: str, max_ranks: int | None = None) -> Module:
    program = Program(file, file, Where.SITE, (), "osu", max_ranks=max_ranks)
    return Module(summary, program, idle_s=_IDLE_S, doubling=True)


def _own(pattern: str, summary: str) -> Module:
    args = ("-p", pattern, "-t", "0.03")
    return Module(summary, Program(pattern, "mpi_patterns", Where.PROGRAMS, args))


def _netpipe(summary: str, last: int, *more: str) -> Module:
    args = ("-o", "/dev/null", "-u", str(last), *more)
    program = Program(
        "NetPIPE", "NPopenmpi", Where.SYSTEM, args, "netpipe", OPENMPI_ABI, "stderr", last, 2
    )
    return Module(summary, program, idle_s=_IDLE_S)


def _perftest(file: str, summary: str) -> Module:
    program = Program(file, file, Where.SITE, (), "perftest", mpis=(), max_ranks=2)
    sizes = tuple(1 << n for n in range(1, 24))
    return Module(summary, program, idle_s=_IDLE_S, doubling=True, sizes=sizes)


def _site(command: str, log_format: str, seconds: float, max_ranks: int | None = None) -> Program:
    """Return a program of the site, from its command line."""
    file, *args = command.split()
    return Program(
        file, file, Where.SITE, tuple(args), log_format, max_ranks=max_ranks, timeout_s=seconds
    )


def _npb(name: str, summary: str) -> Module:
    program = _site(f"{name}.A.x", "npb", _KERNEL_S)
    return Module(f"NPB {name.upper()}, class A: {summary}", program)


def _before(*commands: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(command.split()) for command in commands)


_MICRO = {
    "pingpong": _own("pingpong", "half round trip between two ranks"),
    "uniband": _own("uniband", "windows of messages one way"),
    "imb-pingpong": _mpi1("PingPong", "half round trip between two ranks"),
    "imb-multi-pingpong": _mpi1("PingPong", "all pairs at a time", "-multi", "0"),
    "imb-sendrecv": _mpi1("Sendrecv", "a ring, one way"),
    "imb-exchange": _mpi1("Exchange", "a ring, both ways"),
    "imb-uniband": _mpi1("Uniband", "pairs, windows one way"),
    "imb-biband": _mpi1("Biband", "pairs, windows both ways"),
    "imb-allreduce": _mpi1("Allreduce", "sum over all ranks"),
    "imb-reduce": _mpi1("Reduce", "sum to one rank"),
    "imb-allgather": _mpi1("Allgather", "all to all the same", log2_size=16),
    "imb-alltoall": _mpi1("Alltoall", "all to all", log2_size=16),
    "imb-alltoallv": _mpi1("Alltoallv", "all to all, with a size for each pair", log2_size=16),
    "imb-bcast": _mpi1("Bcast", "one to all"),
    "imb-barrier": _mpi1("Barrier", "all ranks wait for all"),
    "imb-put": _rma("Unidir_put", "puts of one rank"),
    "imb-get": _rma("Unidir_get", "gets of one rank"),
    "imb-bidir-put": _rma("Bidir_put", "puts of two ranks"),
    "imb-all-put-all": _rma("All_put_all", "puts of all to all", log2_size=16),
    "osu-latency": _osu("osu_latency", "half round trip", 2),
    "osu-bw": _osu("osu_bw", "windows one way", 2),
    "osu-bibw": _osu("osu_bibw", "windows both ways", 2),
    "osu-mbw-mr": _osu("osu_mbw_mr", "pairs: bandwidth and message rate"),
    "osu-multi-lat": _osu("osu_multi_lat", "pairs: latency"),
    "osu-put-latency": _osu("osu_put_latency", "latency of puts", 2),
    "osu-get-latency": _osu("osu_get_latency", "latency of gets", 2),
    "osu-put-bw": _osu("osu_put_bw", "bandwidth of puts", 2),
    "osu-get-bw": _osu("osu_get_bw", "bandwidth of gets", 2),
    "osu-allreduce": _osu("osu_allreduce", "sum over all ranks"),
    "osu-allgather": _osu("osu_allgather", "all to all the same"),
    "osu-alltoall": _osu("osu_alltoall", "all to all"),
    "osu-alltoallv": _osu("osu_alltoallv", "all to all, with a size for each pair"),
    "osu-bcast": _osu("osu_bcast", "one to all"),
    "osu-barrier": _osu("osu_barrier", "all ranks wait for all"),
    "netpipe": _netpipe("half round trip, also for sizes beside powers of two", _LAST),
    "netpipe-quick": _netpipe("the same in a few seconds, to 64 KiB", 1 << 16, "-n", "20"),
    "perftest-send-lat": _perftest("ib_send_lat", "latency of sends, verbs"),
    "perftest-send-bw": _perftest("ib_send_bw", "bandwidth of sends, verbs"),
    "perftest-write-lat": _perftest("ib_write_lat", "latency of writes, verbs"),
    "perftest-write-bw": _perftest("ib_write_bw", "bandwidth of writes, verbs"),
    "perftest-read-lat": _perftest("ib_read_lat", "latency of reads, verbs"),
    "perftest-read-bw": _perftest("ib_read_bw", "bandwidth of reads, verbs"),
}

_KERNELS = {
    "hpcc": Module(
        "HPC Challenge", _site("hpcc", "hpcc", _KERNEL_S), "hpcc", figures="hpccoutf.txt"
    ),
    "hpl": Module("HPL", _site("xhpl", "hpl", _KERNEL_S), "hpl"),
    "hpcg": Module(
        "HPCG", _site("xhpcg", "hpcg", _KERNEL_S), "hpcg", figures="HPCG-Benchmark*.txt"
    ),
    "stream": Module("STREAM, one process", _site("stream", "stream", _KERNEL_S, max_ranks=1)),
    "graph500": Module(
        "Graph500, breadth-first search, scale 16",
        _site("graph500_reference_bfs 16 16", "graph500", _KERNEL_S),
    ),
    "npb-cg": _npb("cg", "conjugate gradients"),
    "npb-ep": _npb("ep", "no messages"),
    "npb-ft": _npb("ft", "all to all"),
    "npb-is": _npb("is", "integer sort"),
    "npb-lu": _npb("lu", "small messages"),
    "npb-mg": _npb("mg", "near and far neighbours"),
}

_APPLICATIONS = {
    "lammps": Module(
        "LAMMPS, Lennard-Jones liquid of 4000 atoms",
        _site("lmp -in in.liquid -log none", "lammps", _APPLICATION_S),
        "lammps",
    ),
    "gromacs": Module(
        "GROMACS, water in a box of 3 nm",
        _site(
            "gmx_mpi mdrun -s topol.tpr -g md.log -ntomp 1 -nb cpu -notunepme",
            "gromacs",
            _APPLICATION_S,
        ),
        "gromacs",
        before=_before(
            "gmx -quiet solvate -cs spc216.gro -box 3 3 3 -o conf.gro -p topol.top",
            "gmx -quiet grompp -f water.mdp -c conf.gro -p topol.top -o topol.tpr",
        ),
        figures="md.log",
    ),
    "openfoam": Module(
        "OpenFOAM, a lid-driven cavity of 64 x 64 cells",
        _site("icoFoam -parallel", "openfoam", _APPLICATION_S),
        "openfoam",
        before=_before("blockMesh", "decomposePar -force"),
        env=(("WM_PROJECT_DIR", "/usr/share/openfoam"),),
    ),
    "quantum-espresso": Module(
        "Quantum ESPRESSO, a hydrogen molecule",
        _site("pw.x -in scf.in", "qe", _APPLICATION_S),
        "quantum-espresso",
        before=_before("ld1.x -in atom.in"),
    ),
    "namd": Module(
        "NAMD; the input directory holds run.namd",
        _site("namd2 run.namd", "namd", _APPLICATION_S),
        needs_input=True,
    ),
    "wrf": Module(
        "WRF; the input directory holds namelist.input and the files that it names",
        _site("wrf.exe", "wrf", _APPLICATION_S),
        needs_input=True,
        figures="rsl.error.0000",
    ),
}

WORKLOADS = {**_MICRO, **_KERNELS, **_APPLICATIONS}
"""By the name that a study uses."""
