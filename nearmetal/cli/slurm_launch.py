# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm launch`: make the container of a job on this node; the plugin's prolog calls it."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode
from nearmetal.slurm import Machines, ThisNode, Wanted, Wish

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View
    from nearmetal.slurm import Backend
    from nearmetal.slurm.backend import AnyInstance

Filled = TypeVar("Filled", Wish, Wanted)


def register(subparsers: Subparsers) -> None:
    """Add the verb. What an option sets has the name of a field of Wish or Wanted."""
    parser = add_verb(
        subparsers,
        "launch",
        run,
        "make the container of a job on this node",
        "nearmetal slurm launch --job 7 --uid 1000 --segment 67108864",
    )
    parser.add_argument("--job", type=int, required=True, help="the job")
    parser.add_argument("--uid", type=int, required=True, help="its user")
    parser.add_argument(
        "--segment",
        type=int,
        required=True,
        dest="segment_bytes",
        metavar="BYTES",
        help="size of its segment directory",
    )
    parser.add_argument(
        "--scratch",
        type=int,
        default=1 << 30,
        dest="scratch_bytes",
        metavar="BYTES",
        help="size of its /tmp and of its /dev/shm",
    )
    parser.add_argument("--mpi", default="", help="the MPI whose settings its tasks get")
    parser.add_argument("--channels", default="", help="channels its tasks may use")
    parser.add_argument("--vfs", type=int, default=0, help="VFs of this node that it gets")
    parser.add_argument("--partition", default="", help="the partition of the job")
    parser.add_argument("--request", default="", help="what tasks must have asked for to enter")
    machines = parser.add_argument_group("virtual machines")
    machines.add_argument(
        "--vms", type=int, default=0, dest="nr", metavar="N", help="how many; 0: none"
    )
    machines.add_argument("--vcpus", type=int, default=1, help="processors of each")
    machines.add_argument(
        "--memory",
        type=int,
        default=1 << 30,
        dest="memory_bytes",
        metavar="BYTES",
        help="memory of each",
    )
    machines.add_argument("--image", default="default", help="what they boot: default, or a key")
    machines.add_argument(
        "--shares",
        type=_directories,
        default=(),
        metavar="DIR[:DIR...]",
        help="directories of this node that they see",
    )
    machines.add_argument("--accel", default="kvm", choices=("kvm", "tcg"), help="what runs them")
    machines.add_argument("--nodes", default="", help="all nodes of the job, as Slurm writes them")
    machines.add_argument(
        "--key",
        type=Path,
        default=Path("/etc/nearmetal/slurm.key"),
        help="the file from which keys are derived",
    )


def _directories(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(":")))


def run(args: argparse.Namespace, view: View) -> int:
    """Make it and tell its process 1."""
    return launch(args, view, ThisNode())


def launch(args: argparse.Namespace, view: View, backend: Backend[AnyInstance]) -> int:
    """As `run`, on any node."""
    machines = Machines(_filled(Wanted, args), args.nodes, args.key) if args.nr else None
    node = os.environ.get("SLURMD_NODENAME", "")
    made = backend.launch(_filled(Wish, args, node=node, machines=machines))
    line = f"job {args.job}: container of user {args.uid}, process {made.pid}"
    if made.refusal:
        # No fault of this node: the job is told, and the node stays in service.
        line = f"job {args.job}: refused: {made.refusal}"
    view.result({"job": args.job, "pid": made.pid, "refusal": made.refusal}, [line])
    return ExitCode.DONE


def _filled(kind: type[Filled], args: argparse.Namespace, **more: Any) -> Filled:
    given = vars(args) | more
    return kind(**{field.name: given[field.name] for field in fields(kind)})
