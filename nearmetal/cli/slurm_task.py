# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm task`: become a program in the container of this step on this node; srun starts it."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.process import become
from nearmetal.slurm.task import Share, enter, step_of

if TYPE_CHECKING:
    from nearmetal.cli.view import View


def register(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "task",
        run,
        "run a task of a Slurm step in a container; needs neither the plugin nor root",
        "srun -N2 --ntasks-per-node=2 nearmetal slurm task -- ./app",
    )
    parser.add_argument(
        "--segment",
        type=_size,
        default=64 << 20,
        metavar="SIZE",
        help="size of the rundir on each node with a unit, for example 64MiB (default: 64MiB)",
    )
    parser.add_argument(
        "--scratch",
        type=_size,
        default=1 << 30,
        metavar="SIZE",
        help="size of the private /tmp and of /dev/shm, each, with a unit (default: 1GiB)",
    )
    parser.add_argument(
        "--mpi",
        default="",
        help="MPI whose settings the program gets: openmpi5, openmpi4, mpich5 or impi (default: no settings)",
    )
    parser.add_argument(
        "--channels",
        default="",
        help="channels that the program may use, comma-separated, out of self,shm,segment,net (default: all)",
    )
    parser.add_argument("program", metavar="PROGRAM", help="program of the task")
    parser.add_argument(
        "args", metavar="ARGS", nargs="*", help="arguments of the program, after `--`"
    )


def _size(text: str) -> int:
    # Slow to import, and prologs and epilogs of other verbs read this module, too.
    from nearmetal.config.size import parse_size  # noqa: PLC0415

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).replace("|", ": ")) from error


def run(args: argparse.Namespace, view: View) -> int:
    """Become the program; returns only by an error."""
    del view
    share = Share(args.segment, args.scratch, args.mpi, args.channels)
    env = enter(step_of(os.environ), share, os.environ)
    become((args.program, *args.args), env)
