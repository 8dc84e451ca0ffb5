# SPDX-License-Identifier: Apache-2.0
"""Questions to Slurm: the jobs and the allocations of a node; and draining."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from nearmetal.core.errors import SlurmError
from nearmetal.core.process import Command, Completed, Runner

SQUEUE = ("squeue", "--noheader", "--all", "--states=all", "--format=%A %t")
GRES = "vf"
"""The name of VFs in Slurm: gres.conf, slurm.conf and users write it."""

_ENDED = frozenset({"BF", "CA", "CD", "DL", "F", "NF", "OOM", "TO", "PD", "RQ", "RH", "SE"})
"""States in which a job has nothing on a node, its epilog included; CG is not among them."""

_QUERY_S = 60.0
_NARROWING = ("SQUEUE_", "SINFO_", "SCONTROL_")
"""Variables that are options of these programs: with one, squeue omits running jobs."""


@dataclass(frozen=True)
class Allocated:
    """The allocation of a job on a node; 0: Slurm does not count that."""

    cpus: int = 0
    memory_bytes: int = 0


def this_node() -> str:
    """Return Slurm's name of this node: the one that slurmd gives, or that of the machine."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def this_job() -> tuple[str, str]:
    """Return the job in which this process is, and its nodes in Slurm's short form; or "", ""."""
    job, nodes = (os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"))
    return (job, nodes) if job.isdecimal() and nodes else ("", "")


def _run(runner: Runner, argv: tuple[str, ...]) -> Completed:
    """Run a program of Slurm, for this cluster, without options from the caller's variables."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name != "SLURM_CLUSTERS" and not name.startswith(_NARROWING)
    }
    return runner.run(Command(argv, env=env), timeout_s=_QUERY_S)


def _ask(runner: Runner, argv: tuple[str, ...], fault: str) -> str:
    """Return the answer of a program of Slurm. Raises SlurmError with the fault."""
    done = _run(runner, argv)
    if done.code != 0 or done.timed_out:
        raise SlurmError(
            f"{fault}: {done.error_tail or 'no answer in time'}", "check that slurmctld runs"
        )
    return done.text


def _scontrol(runner: Runner, *words: str) -> str:
    return _ask(runner, ("scontrol", "show", *words), f"scontrol does not show {' '.join(words)}")


def known_jobs(runner: Runner, node: str) -> frozenset[int]:
    """Return the jobs that may have something on a node; "": on any node.

    A requeued job may run elsewhere: it is known on that node and not on this one. Raises
    SlurmError if Slurm does not answer: without an answer, nothing is a leak.
    """
    where = (f"--nodelist={node}",) if node else ()
    return parse(_ask(runner, (*SQUEUE, *where), "squeue does not list the jobs"))


def parse(text: str) -> frozenset[int]:
    """Return the active jobs in squeue's output; raises SlurmError for anything else."""
    jobs = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) != 2 or not words[0].isdecimal():  # noqa: PLR2004 - job and state
            raise SlurmError(f"squeue wrote {line[:80]!r}, not a job and its state")
        if words[1] not in _ENDED:
            jobs.add(int(words[0]))
    return frozenset(jobs)


def gres(runner: Runner, node: str, name: str = GRES) -> int:
    """Return Slurm's number of a generic resource on a node. Raises SlurmError."""
    argv = ("sinfo", "-h", "-n", node, "-o", "%G")
    return parse_gres(_ask(runner, argv, f"sinfo does not show the gres of {node}"), name)


def parse_gres(text: str, name: str) -> int:
    """Return the sum for one name in `vf:7(S:0),gpu:tesla:2`; a line per kind of node."""
    lines = text.splitlines()
    entry = re.compile(rf"{re.escape(name)}(?::[^:(),]+)?:([0-9]{{1,9}})(?:\(.*\))?")
    # Brackets hold sockets, separated by commas.
    words = re.split(r",(?![^(]*\))", lines[0]) if lines else []
    return sum(int(found[1]) for word in words if (found := entry.fullmatch(word.strip())))


def expand(runner: Runner, nodes: str) -> tuple[str, ...]:
    """Return the names in Slurm's short form, in its order. Asks no daemon."""
    return tuple(_scontrol(runner, "hostnames", nodes).split())


def node_addresses(runner: Runner, nodes: Sequence[str]) -> dict[str, str]:
    """Return the addresses of nodes by which Slurm itself reaches them."""
    text = _scontrol(runner, "node", "-o", ",".join(nodes))
    found = dict(re.findall(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+)", text, re.MULTILINE))
    missing = [node for node in nodes if node not in found]
    if missing:
        raise SlurmError(f"scontrol does not show the address of node {missing[0]}")
    return {node: _resolved(found[node]) for node in nodes}


def _resolved(address: str) -> str:
    try:
        answer = socket.getaddrinfo(address, None, socket.AF_INET, socket.SOCK_DGRAM)
        return str(ipaddress.IPv4Address(answer[0][4][0]))
    except (OSError, ValueError) as error:
        raise SlurmError(f"no IPv4 address of node {address}: {error}") from error


def allocated(runner: Runner, job: int, node: str) -> Allocated:
    """Return the allocation of a job on a node; raises SlurmError if Slurm does not show it.

    The text also holds words of users, for example the name of the job, which may look like an
    allocation. So every match counts and the smallest one holds: a user gains nothing by it.
    """
    text = _scontrol(runner, "job", "-d", "-o", str(job))
    found = [
        (_count(cpus), int(memory) << 20)
        for names, cpus, memory in _DETAIL.findall(text)
        if _is_among(node, names)
    ]
    if not found:
        raise SlurmError(f"scontrol does not show what job {job} has on node {node}")
    return Allocated(
        min((cpus for cpus, _ in found if cpus), default=0),
        min((memory for _, memory in found if memory), default=0),
    )


def configuration(runner: Runner) -> dict[str, str]:
    """Return the settings of slurm.conf and cgroup.conf by name."""
    pairs = (line.partition("=") for line in _scontrol(runner, "config").splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


_NUMBERS = r"[0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*"
_DETAIL = re.compile(rf"\bNodes=(\S+) CPU_IDs=({_NUMBERS}|) Mem=([0-9]{{1,15}})\b")


def _ranges(text: str) -> list[tuple[str, str]]:
    """Return first and last of each range in a list, for example `0-3,8`. Pure."""
    pairs = [part.partition("-") for part in text.split(",") if part]
    return [(first, last or first) for first, _, last in pairs]


def _count(ranges: str) -> int:
    """Return how many numbers are in such a list. Pure."""
    return sum(max(0, int(last) - int(first) + 1) for first, last in _ranges(ranges))


def _is_among(node: str, names: str) -> bool:
    """Whether a node is in `a,b[01-16,20]`, which a user may have written. Pure."""
    for word in re.split(r",(?![^\[]*\])", names):
        pieces = re.split(rf"\[({_NUMBERS})\]", word)
        pattern = "([0-9]{1,9})".join(re.escape(literal) for literal in pieces[::2])
        match = re.fullmatch(pattern, node)
        if match and all(map(_is_within, match.groups(), pieces[1::2])):
            return True
    return False


def _is_within(number: str, ranges: str) -> bool:
    """Whether a number is in such a list, with the same leading zeros. Pure."""
    return any(
        int(first) <= int(number) <= int(last) and number == f"{int(number):0{len(first)}d}"
        for first, last in _ranges(ranges)
    )


def drain(runner: Runner, node: str, reason: str) -> None:
    """Drain a node, unless it is draining: the first reason stays. Raises SlurmError."""
    state = _run(runner, ("sinfo", "-h", "-n", node, "-o", "%T"))
    if state.code == 0 and state.text.startswith("drain"):
        return
    words = (f"NodeName={node}", "State=DRAIN", f"Reason=nearmetal: {reason}")
    _ask(runner, ("scontrol", "update", *words), f"node {node} cannot be drained")


def comment(runner: Runner, job: int, text: str) -> None:
    """Set what administrators say of a job, which its user sees in Slurm. Raises SlurmError."""
    words = (f"JobId={job}", f"AdminComment=nearmetal: {text}")
    _ask(runner, ("scontrol", "update", *words), f"job {job} gets no comment")
