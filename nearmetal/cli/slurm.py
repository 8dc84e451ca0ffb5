# SPDX-License-Identifier: Apache-2.0
"""The verbs of Slurm nodes: slurm status, task, launch and reclaim.

The plugin calls `launch` in the prolog of a job and `reclaim` in its epilog. A timer calls
`reclaim --ended`, and srun starts `task`.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nearmetal.cli.arguments import mpi_names
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.core.process import Runner
    from nearmetal.slurm.backend import AnyInstance, JobBackend
    from nearmetal.slurm.records import Instance
    from nearmetal.slurm.vfs import Count, JobVf, JobVfs

Filled = TypeVar("Filled")

_SIZE_HELP = "SIZE is in bytes, or has a unit"
_COLUMNS = ("job", "user", "node", "since", "process", "state", "VFs", "request")


def on_status(args: argparse.Namespace, view: View) -> int:
    """Print containers and VFs; exit code 4 for leaks, or if Slurm promises too many VFs."""
    from nearmetal.slurm.backend import ThisNode
    from nearmetal.slurm.vfs import JobVfs

    del args
    return show_status(LocalRunner(), ThisNode(), view, JobVfs())


def show_status(runner: Runner, backend: JobBackend[AnyInstance], view: View, vfs: JobVfs) -> int:
    """Print the containers and VFs of a node."""
    from nearmetal.slurm.backend import leaks

    found, taken = backend.found(), vfs.found()
    left = [c.job for c in leaks(runner, found)]
    rows = [_entry(c, taken, leak=c.job in left) for c in found]
    if rows:
        view.table(_COLUMNS, [_row(row) for row in rows])
    for job in left:
        text = f"job {job} has ended and its container is here, or its servers are in the cloud"
        view.warn(text, "nearmetal slurm reclaim --ended")
    lost = [vf for vf in taken if vf.job not in {c.job for c in found}]
    for vf in lost:
        view.warn(
            f"job {vf.job} has no records any more, and VF {vf.address} still belongs to it",
            "nearmetal host vf --reclaim",
        )
    held = backend.holders()
    for one in held:
        view.warn(
            f"job {one.job} has ended, and process {one.pid} of user {one.uid} held its "
            "namespaces or files",
            f"kill {one.pid}",
        )
    count = vfs.count()
    promised = _promised(runner, found, count)
    sound = _compare(view, count, promised)
    lines = [] if rows else ["no container of a job on this node"]
    if count.offered:
        lines.append(
            f"VFs: {count.offered}, of which jobs can have {count.for_jobs} and have "
            f"{len(taken)}; Slurm counts {promised}"
        )
    view.result(
        {
            "containers": rows,
            "vfs": [vars(vf) for vf in taken],
            "holders": [vars(one) for one in held],
            "count": {
                "offered": count.offered,
                "for_jobs": count.for_jobs,
                "others": list(count.others),
                "gres": promised,
            },
        },
        lines,
    )
    good = sound and not left and not lost and not held
    return ExitCode.DONE if good else ExitCode.CHECKS_FAILED


def _promised(runner: Runner, found: Sequence[Instance], count: Count) -> int | None:
    """Return the number of VFs that Slurm may give away on this node; None: it has no VF."""
    from nearmetal.slurm.queue import gres, this_node

    if not count.offered:
        return None
    named = next((c.node for c in found if c.node), "")
    return gres(runner, named or this_node())


def _compare(view: View, count: Count, promised: int | None) -> bool:
    """Warn if Slurm and the ledger disagree; returns whether jobs get what Slurm promises."""
    from nearmetal.slurm.queue import GRES

    if not promised:
        return True
    if promised > count.for_jobs:
        others = f": {'; '.join(count.others)}" if count.others else ""
        view.warn(
            f"gres.conf promises {promised} VFs of this node, and jobs can have "
            f"{count.for_jobs} of its {count.offered}{others}",
            f"set Count={count.for_jobs} for Name={GRES}, or give those back",
        )
    elif promised < count.for_jobs:
        view.warn(
            f"gres.conf counts {promised} VFs of this node, and jobs could have {count.for_jobs}",
            f"set Count={count.for_jobs} for Name={GRES} if jobs may have all of them",
        )
    return promised <= count.for_jobs


def _entry(found: Instance, taken: tuple[JobVf, ...], *, leak: bool) -> dict[str, Any]:
    from nearmetal.slurm.records import Container
    from nearmetal.slurm.servers import DamagedServers, JobServers

    servers = found if isinstance(found, JobServers | DamagedServers) else None
    return {
        "job": found.job,
        "uid": found.uid,
        "node": found.node,
        "since": found.since,
        "pid": found.pid if isinstance(found, Container) else 0,
        "alive": found.lives(),
        "leak": leak,
        "refusal": found.refusal,
        "servers": servers.name if servers else "",
        "fault": servers.fault if servers else "",
        "vfs": [vf.address for vf in taken if vf.job == found.job],
        "request": found.request,
    }


def _row(row: dict[str, Any]) -> list[str]:
    state = "in use" if row["alive"] else "its process 1 has died"
    if row["servers"]:
        state = f"servers {row['servers']}: {row['fault'] or 'a last look is due'}"
    if row["refusal"]:
        state = f"refused: {row['refusal']}"
    return [
        str(row["job"]),
        str(row["uid"]),
        row["node"] or "-",
        time.strftime("%F %T", time.localtime(row["since"])),
        str(row["pid"]),
        "leak" if row["leak"] and not row["fault"] else state,
        " ".join(row["vfs"]) or "-",
        row["request"] or "-",
    ]


def task_options(parser: VerbParser) -> None:
    """Add the arguments of `slurm task`."""
    parser.option(
        "--segment SIZE",
        f"size of the memory that the tasks of the step on one Slurm node share (default: 64MiB); {_SIZE_HELP}",
        type=_size,
        default=64 << 20,
    )
    parser.option(
        "--scratch SIZE",
        "size of the private /tmp, and of /dev/shm (default: 1GiB)",
        type=_size,
        default=1 << 30,
    )
    _add_settings(parser, "the program")
    parser.option("program PROGRAM", "program of the task", metavar="-- PROGRAM")
    parser.option("args ARGS", "arguments of the program", nargs="*")
    parser.option("--json", "print an error of nearmetal as one JSON document")


def _add_settings(parser: VerbParser, whose: str) -> None:
    verb = "gets" if whose == "the program" else "get"
    parser.option(
        "--mpi NAME",
        f"MPI whose settings {whose} {verb}: {mpi_names()} (default: no settings)",
        default="",
    )
    parser.option(
        "--channels LIST",
        f"channels that {whose} may use, comma-separated, see `nearmetal --help` (default: all)",
        default="",
    )


def _size(text: str) -> int:
    from nearmetal.config.size import parse_size

    if text.isdecimal():
        return int(text)
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).replace("|", ": ")) from error


def on_task(args: argparse.Namespace, view: View) -> int:
    """Become the program in the container of this step; returns only by an error."""
    from nearmetal.core.process import become
    from nearmetal.slurm.task import Share, enter, step_of

    del view
    share = Share(args.segment, args.scratch, args.mpi, args.channels)
    env = enter(step_of(os.environ), share, os.environ)
    become((args.program, *args.args), env)


def launch_options(parser: VerbParser) -> None:
    """Add the arguments of `slurm launch`, named as the fields of the requests."""
    parser.option("--job N", "ID of the job", required=True)
    parser.option("--uid N", "user ID of the owner of the job", required=True)
    parser.option(
        "--segment SIZE",
        f"size of the memory that the tasks of the job on this Slurm node share, at least 1MiB; {_SIZE_HELP}",
        type=_size,
        required=True,
        dest="segment_bytes",
    )
    parser.option(
        "--scratch SIZE",
        "size of the private /tmp, and of /dev/shm (default: 1GiB)",
        type=_size,
        default=1 << 30,
        dest="scratch_bytes",
    )
    _add_settings(parser, "the tasks")
    parser.option("--vfs N", "number of VFs of this Slurm node for the job (default: 0)", default=0)
    parser.option(
        "--partition NAME",
        "partition of the job, by whose rules the plugin spank_nearmetal(8) admits steps (default: none)",
        default="",
    )
    parser.option(
        "--request TEXT",
        "request of the job, which the plugin compares with that of each step (default: none)",
        default="",
    )
    machines = parser.add_argument_group("virtual machines, and servers of a cloud")
    parser.option(
        "--vms N",
        "number of virtual machines on this Slurm node (default: 0)",
        default=0,
        dest="nr",
        to=machines,
    )
    parser.option(
        "--servers N",
        "number of servers of a cloud, instead of virtual machines (default: 0)",
        default=0,
        to=machines,
    )
    parser.option(
        "--cloud FILE",
        "settings of the site about servers, see spank_nearmetal(8) (default: %(default)s)",
        default=Path("/etc/nearmetal/slurm-openstack.yaml"),
        to=machines,
    )
    parser.option(
        "--vcpus N", "processors of each virtual machine (default: 1)", default=1, to=machines
    )
    parser.option(
        "--memory SIZE",
        "memory of each virtual machine (default: 1GiB)",
        type=_size,
        default=1 << 30,
        dest="memory_bytes",
        to=machines,
    )
    parser.option(
        "--image NAME",
        "image of the virtual machines: `default`, or a key from `nearmetal image list`; of servers: a name in the settings (default: %(default)s)",
        default="default",
        to=machines,
    )
    parser.option(
        "--shares DIR[:DIR...]",
        "directories of this Slurm node that the virtual machines see at the same path (default: none)",
        type=_directories,
        default=(),
        to=machines,
    )
    parser.option(
        "--accel",
        "accelerator of QEMU (default: kvm)",
        default="kvm",
        choices=("kvm", "tcg"),
        to=machines,
    )
    parser.option(
        "--nodes LIST",
        "all Slurm nodes of the job in Slurm's notation, for example node[1-4]; required with --vms and --servers",
        default="",
        to=machines,
    )
    parser.option(
        "--key FILE",
        "file with the secret of the site, from which the keys of the job are derived, see spank_nearmetal(8) (default: %(default)s)",
        default=Path("/etc/nearmetal/slurm.key"),
        to=machines,
    )


def _directories(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(":")))


def on_launch(args: argparse.Namespace, view: View) -> int:
    """Make the container of a job and show its process 1."""
    from nearmetal.slurm.backend import ThisNode

    return launch(args, view, ThisNode())


def launch(args: argparse.Namespace, view: View, backend: JobBackend[AnyInstance]) -> int:
    """Make the container of a job on any node."""
    from nearmetal.slurm.container import (
        ContainerRequest,
        MachineRequest,
        Machines,
        ServerRequest,
    )

    machines = Machines(_filled(MachineRequest, args), args.nodes, args.key) if args.nr else None
    servers = None
    if args.servers:
        servers = ServerRequest(args.image, args.servers, args.nodes, args.cloud)
    node = os.environ.get("SLURMD_NODENAME", "")
    wish = _filled(ContainerRequest, args, node=node, machines=machines, servers=servers)
    made = backend.launch(wish)
    line = f"job {args.job}: container of user {args.uid}, process {made.pid}"
    if made.refusal:
        # This is no fault of the node: the job gets the reason, and the node stays in service.
        line = f"job {args.job}: refused: {made.refusal}"
    view.result({"job": args.job, "pid": made.pid, "refusal": made.refusal}, [line])
    return ExitCode.DONE


def _filled(kind: type[Filled], args: argparse.Namespace, **more: Any) -> Filled:
    given = vars(args) | more
    return kind(**{field.name: given[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def reclaim_options(parser: VerbParser) -> None:
    """Add the arguments of `slurm reclaim`."""
    whose = parser.add_mutually_exclusive_group(required=True)
    parser.option("--job N", "end the container of the job with this ID, even if it runs", to=whose)
    parser.option("--ended", "end all leaks: containers of jobs that have ended", to=whose)
    parser.option("--drain", "only with --ended: drain this Slurm node if a container does not end")


def on_reclaim(args: argparse.Namespace, view: View) -> int:
    """End the containers; if there is none, that is no error."""
    from nearmetal.slurm.backend import ThisNode

    node = ThisNode()
    try:
        return reclaim(args, view, node)
    finally:
        if args.ended:
            node.guard(LocalRunner())


def reclaim(args: argparse.Namespace, view: View, backend: JobBackend[AnyInstance]) -> int:
    """End the containers of any node."""
    from nearmetal.slurm.backend import reclaim_ended

    if args.ended:
        jobs = reclaim_ended(LocalRunner(), backend, drains=args.drain)
        lines = [f"job {job}: reclaimed" for job in jobs] or ["no job has left anything here"]
        view.result({"reclaimed": list(jobs)}, lines)
        return ExitCode.DONE
    if args.drain:
        raise UsageError("--drain needs --ended", "an epilog that fails drains its node by itself")
    found = backend.reclaim(args.job)
    line = f"job {args.job}: {'reclaimed' if found else 'nothing is here'}"
    view.result({"reclaimed": [args.job] if found else []}, [line])
    return ExitCode.DONE
