# SPDX-License-Identifier: Apache-2.0
"""The verbs for the launchers of a site: env, wrap, doctor and container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.cli.arguments import mpi_names
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.core.process import LocalRunner, become

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.job.mpi import Ucx
    from nearmetal.job.site.found import FoundMpi


def _mpi_help() -> str:
    return (
        f"MPI: {mpi_names()}, or the path of its directory, its mpirun or its libmpi.so "
        "(default: the MPI of `mpirun` in PATH)"
    )


def _add_fabric(parser: VerbParser) -> None:
    from nearmetal.job.mpi import Library

    parser.option(
        "--fabric",
        "ofi: the MPI uses nearmetal through libfabric; ucx: through UCX 1.22 (default: ofi)",
        choices=[f.value for f in Library],
        default="ofi",
    )


def _library(args: argparse.Namespace) -> Path | Ucx:
    """Return the provider, or UCX with its transport; raises LaunchError."""
    from nearmetal.core.resources import provider_library
    from nearmetal.job.ucx import find_ucx

    return find_ucx(LocalRunner()) if args.fabric == "ucx" else provider_library()


def _add_own(parser: VerbParser) -> None:
    _add_fabric(parser)
    parser.option("--rundir DIR", "also set the directory where the ranks of a job on a host meet")
    parser.option("--channels LIST", "also limit the channels, see `nearmetal run --help`")
    parser.option(
        "--collectives DIR",
        "also use the rules for collectives that `tune collectives` wrote to DIR",
    )


def _own(args: argparse.Namespace, mpi: FoundMpi, view: View) -> dict[str, str]:
    found: dict[str, str] = {}
    if args.collectives is not None:
        from nearmetal.job.collectives import read_rules

        saved = read_rules(args.collectives, mpi.installation)
        found |= saved.variables
        if saved.ranks is not None:
            view.note(f"the rules for collectives are for jobs of {saved.ranks} ranks only")
    if args.rundir is not None:
        found["NEARMETAL_RUNDIR"] = str(args.rundir.absolute())
    if args.channels is not None:
        from nearmetal.job.run import check_channels

        check_channels(args.channels.split(","), LocalRunner())
        found["NEARMETAL_CHANNELS"] = args.channels
    return found


def env_options(parser: VerbParser) -> None:
    """Add the arguments of `env`."""
    parser.option("mpi MPI", _mpi_help(), nargs="?")
    forms = parser.add_mutually_exclusive_group()
    parser.option("--lmod", "print lines for a modulefile of Lmod", to=forms)
    parser.option("--docker", "print an env-file of Docker or Podman", to=forms)
    _add_own(parser)


def on_env(args: argparse.Namespace, view: View) -> int:
    """Print the variables of an MPI."""
    from nearmetal.job.site.exported import Form, exported, written
    from nearmetal.job.site.found import find_mpi

    form = Form.LMOD if args.lmod else Form.DOCKER if args.docker else Form.SH
    mpi = find_mpi(args.mpi, LocalRunner())
    found = exported(mpi, _library(args), os.environ, own=_own(args, mpi, view))
    lines = written(found, form)
    for note in found.notes:
        view.note(note)
    data = {
        "mpi": mpi.title,
        "source": mpi.source,
        "set": dict(found.set),
        "prepend": dict(found.prepend),
        "unset": list(found.unset),
        "notes": list(found.notes),
    }
    view.result(data, lines)
    return ExitCode.DONE


def wrap_options(parser: VerbParser) -> None:
    """Add the arguments of `wrap`."""
    parser.option("--mpi MPI", f"{_mpi_help()}; if PROGRAM is a launcher, its MPI")
    _add_own(parser)
    parser.option("program PROGRAM", "launcher or MPI program to start", metavar="-- PROGRAM")
    parser.option("args ARGS", "arguments of the program", nargs="*")


def on_wrap(args: argparse.Namespace, view: View) -> int:
    """Become the command, with the variables of the MPI."""
    from nearmetal.job.site.exported import exported, for_launcher
    from nearmetal.job.site.found import LAUNCHERS, find_mpi

    if args.json:
        raise UsageError("wrap has no result of its own", "leave out --json, or use `env --json`")
    launcher = args.program if Path(args.program).name in LAUNCHERS else None
    mpi = find_mpi(args.mpi or launcher, LocalRunner())
    library, own, words = _library(args), _own(args, mpi, view), args.args
    if launcher is None:
        found = exported(mpi, library, os.environ, own=own, listed=True)
    else:
        found, words = for_launcher(mpi, library, words, os.environ, own=own)
        for note in found.notes:
            view.note(note)
    become([args.program, *words], found.applied(os.environ))


def doctor_options(parser: VerbParser) -> None:
    """Add the arguments of `doctor`."""
    parser.option("mpi MPI", _mpi_help(), nargs="?")
    _add_fabric(parser)
    parser.option("--no-run", "do not start two ranks, which takes some seconds")


def on_doctor(args: argparse.Namespace, view: View) -> int:
    """Print the diagnoses; exit code 4 if one failed."""
    from nearmetal.job.mpi import Library
    from nearmetal.job.site.diagnoses import Rating
    from nearmetal.job.site.doctor import examine

    fabric = Library(args.fabric)
    report = examine(args.mpi, LocalRunner(), run=not args.no_run, fabric=fabric)
    title = report.mpi.title if report.mpi else "the MPI"
    failed = [one.id for one in report.found if one.grade is Rating.FAIL]
    lines = []
    for one in report.found:
        lines.append(f"{one.grade.value:<5} {one.id:<16} {one.words}")
        if one.remedy and one.grade is not Rating.OK:
            lines.append(f"{'':<6}{'fix:':<16} {one.remedy}")
    option = " --fabric ucx" if fabric is Library.UCX else ""
    verdict = (
        f"{title} will use nearmetal here, with `nearmetal env{option}` or `nearmetal wrap{option}`"
    )
    if failed:
        verdict = f"{title} will not use nearmetal here as it should: {', '.join(failed)}"
    data = {
        "mpi": report.mpi.title if report.mpi else None,
        "good": report.good,
        "diagnoses": [
            {"id": d.id, "severity": d.grade.value, "words": d.words, "remedy": d.remedy}
            for d in report.found
        ],
    }
    view.result(data, [*lines, "", verdict])
    return ExitCode.DONE if report.good else ExitCode.CHECKS_FAILED


def container_options(parser: VerbParser) -> None:
    """Add the arguments of `container`."""
    from nearmetal.job.site.container import ENGINES

    parser.option(
        "--engine NAME",
        f"engine that will run the container: {', '.join(ENGINES)} (default: podman)",
        choices=ENGINES,
        default="podman",
    )
    parser.option(
        "--mpi NAME",
        "MPI in the image: openmpi5, openmpi4 or mpich5 (default: openmpi5)",
        default="openmpi5",
    )
    _add_fabric(parser)
    parser.option(
        "directory DIR",
        "directory below /dev/shm where the containers of one job meet; made if it is missing",
        nargs="?",
    )


def on_container(args: argparse.Namespace, view: View) -> int:
    """Print the options of the engine, one per line."""
    from nearmetal.job.site.container import container_words
    from nearmetal.job.ucx import find_ucx

    runner = LocalRunner()
    ucx = find_ucx(runner) if args.fabric == "ucx" else None
    words = container_words(args.engine, args.mpi, args.directory, runner, ucx)
    view.result({"engine": args.engine, "options": words}, words)
    return ExitCode.DONE
