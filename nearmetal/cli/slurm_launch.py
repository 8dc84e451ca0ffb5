# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm launch`: create the container of a job on this node, for the prolog."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nearmetal.cli.verbs import Subparsers, add_verb
from nearmetal.core.errors import ExitCode
from nearmetal.slurm.backend import ThisNode
from nearmetal.slurm.container import ContainerRequest, MachineRequest, Machines

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.view import View
    from nearmetal.slurm.backend import AnyInstance, JobBackend

Filled = TypeVar("Filled", ContainerRequest, MachineRequest)


def register(subparsers: Subparsers) -> None:
    """Add the verb. What an option sets has the name of a field of ContainerRequest or MachineRequest."""
    parser = add_verb(
        subparsers,
        "launch",
        run,
        "create the container of a job on this node; needs root",
        "nearmetal slurm launch --job 7 --uid 1000 --segment 67108864",
    )
    parser.add_argument("--job", type=int, required=True, metavar="N", help="job ID")
    parser.add_argument("--uid", type=int, required=True, help="user ID of the owner of the job")
    parser.add_argument(
        "--segment",
        type=int,
        required=True,
        dest="segment_bytes",
        metavar="BYTES",
        help="size of the rundir in bytes, at least 1 MiB",
    )
    parser.add_argument(
        "--scratch",
        type=int,
        default=1 << 30,
        dest="scratch_bytes",
        metavar="BYTES",
        help="size of the private /tmp and of /dev/shm in bytes, each (default: 1 GiB)",
    )
    parser.add_argument(
        "--mpi",
        default="",
        help="MPI whose settings the tasks get: openmpi5, openmpi4, mpich5 or impi (default: no settings)",
    )
    parser.add_argument(
        "--channels",
        default="",
        help="channels that the tasks may use, comma-separated, out of self,shm,segment,net (default: all)",
    )
    parser.add_argument(
        "--vfs",
        type=int,
        default=0,
        metavar="N",
        help="number of VFs of this node for the job (default: 0)",
    )
    parser.add_argument(
        "--partition",
        default="",
        help="partition of the job; the plugin admits steps by the rules of this partition",
    )
    parser.add_argument(
        "--request",
        default="",
        help="request of the job as text; the plugin compares it with the request of each step",
    )
    _add_machines(parser.add_argument_group("virtual machines"))


def _add_machines(machines: argparse._ArgumentGroup) -> None:
    machines.add_argument(
        "--vms",
        type=int,
        default=0,
        dest="nr",
        metavar="N",
        help="number of virtual machines (default: 0)",
    )
    machines.add_argument(
        "--vcpus", type=int, default=1, metavar="N", help="processors of each machine (default: 1)"
    )
    machines.add_argument(
        "--memory",
        type=int,
        default=1 << 30,
        dest="memory_bytes",
        metavar="BYTES",
        help="memory of each machine in bytes (default: 1 GiB)",
    )
    machines.add_argument(
        "--image",
        default="default",
        help="image of the machines: `default`, or a key from `nearmetal image list`",
    )
    machines.add_argument(
        "--shares",
        type=_directories,
        default=(),
        metavar="DIR[:DIR...]",
        help="directories of this node that the machines see at the same path",
    )
    machines.add_argument(
        "--accel", default="kvm", choices=("kvm", "tcg"), help="accelerator of QEMU (default: kvm)"
    )
    machines.add_argument(
        "--nodes",
        default="",
        help="all nodes of the job in Slurm's notation, for example node[1-4]",
    )
    machines.add_argument(
        "--key",
        type=Path,
        default=Path("/etc/nearmetal/slurm.key"),
        help="file with the key of the site, from which the keys of the job are derived (default: %(default)s)",
    )


def _directories(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(":")))


def run(args: argparse.Namespace, view: View) -> int:
    """Make it and tell its process 1."""
    return launch(args, view, ThisNode())


def launch(args: argparse.Namespace, view: View, backend: JobBackend[AnyInstance]) -> int:
    """As `run`, on any node."""
    machines = Machines(_filled(MachineRequest, args), args.nodes, args.key) if args.nr else None
    node = os.environ.get("SLURMD_NODENAME", "")
    made = backend.launch(_filled(ContainerRequest, args, node=node, machines=machines))
    line = f"job {args.job}: container of user {args.uid}, process {made.pid}"
    if made.refusal:
        # No fault of this node: the job is told, and the node stays in service.
        line = f"job {args.job}: refused: {made.refusal}"
    view.result({"job": args.job, "pid": made.pid, "refusal": made.refusal}, [line])
    return ExitCode.DONE


def _filled(kind: type[Filled], args: argparse.Namespace, **more: Any) -> Filled:
    given = vars(args) | more
    return kind(**{field.name: given[field.name] for field in fields(kind)})
