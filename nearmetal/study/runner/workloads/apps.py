# SPDX-License-Identifier: Apache-2.0
"""Applications. Small inputs are here where a free one can be made; a study may give its own."""

from __future__ import annotations

from nearmetal.study.runner.suite import Program, Where
from nearmetal.study.runner.workloads.model import Module

_HOURS = 3 * 3600.0


def _app(file: str, log_format: str, *args: str) -> Program:
    return Program(file, file, Where.SITE, args, log_format, timeout_s=_HOURS)


APPS = {
    "lammps": Module(
        "LAMMPS, Lennard-Jones liquid of 4000 atoms",
        _app("lmp", "lammps", "-in", "in.liquid", "-log", "none"),
        "lammps",
    ),
    "gromacs": Module(
        "GROMACS, water in a box of 3 nm",
        _app(
            "gmx_mpi",
            "gromacs",
            "mdrun",
            "-s",
            "topol.tpr",
            "-g",
            "md.log",
            "-ntomp",
            "1",
            "-nb",
            "cpu",
            "-notunepme",
        ),
        "gromacs",
        before=(
            (
                "gmx",
                "-quiet",
                "solvate",
                "-cs",
                "spc216.gro",
                "-box",
                "3",
                "3",
                "3",
                "-o",
                "conf.gro",
                "-p",
                "topol.top",
            ),
            (
                "gmx",
                "-quiet",
                "grompp",
                "-f",
                "water.mdp",
                "-c",
                "conf.gro",
                "-p",
                "topol.top",
                "-o",
                "topol.tpr",
            ),
        ),
        figures="md.log",
    ),
    "openfoam": Module(
        "OpenFOAM, a lid-driven cavity of 64 x 64 cells",
        _app("icoFoam", "openfoam", "-parallel"),
        "openfoam",
        before=(("blockMesh",), ("decomposePar", "-force")),
        env=(("WM_PROJECT_DIR", "/usr/share/openfoam"),),
    ),
    "quantum-espresso": Module(
        "Quantum ESPRESSO, a hydrogen molecule",
        _app("pw.x", "qe", "-in", "scf.in"),
        "quantum-espresso",
        before=(("ld1.x", "-in", "atom.in"),),
    ),
    "namd": Module(
        "NAMD; the input directory holds run.namd",
        _app("namd2", "namd", "run.namd"),
        needs_input=True,
    ),
    "wrf": Module(
        "WRF; the input directory holds namelist.input and what it names",
        _app("wrf.exe", "wrf"),
        needs_input=True,
        figures="rsl.error.0000",
    ),
}
