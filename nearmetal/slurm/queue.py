# SPDX-License-Identifier: Apache-2.0
"""What Slurm knows: the jobs of a node, which tells a container in use from a leak; and draining."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from typing import TYPE_CHECKING

from nearmetal.core.errors import SlurmError
from nearmetal.core.process import Command
from nearmetal.slurm.wanted import Allocated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.core.process import Completed, Runner

SQUEUE = ("squeue", "--noheader", "--all", "--states=all", "--format=%A %t")
_ENDED = frozenset({"BF", "CA", "CD", "DL", "F", "NF", "OOM", "TO", "PD", "RQ", "RH", "SE"})
"""States in which nothing of a job is on a node, its epilog included; CG is not among them."""

_QUERY_S = 60.0
_NARROWING = ("SQUEUE_", "SINFO_", "SCONTROL_")
"""Variables that are options of these programs: with one, squeue leaves out jobs that run."""


def known_jobs(runner: Runner, node: str) -> frozenset[int]:
    """Return the jobs that may have something on a node; "": on any node.

    A job that was put back into the queue may run elsewhere: there it is known, here it is not.
    Raises SlurmError when Slurm does not answer: nothing is a leak without its word.
    """
    where = (f"--nodelist={node}",) if node else ()
    done = _ask(runner, (*SQUEUE, *where))
    if done.code != 0 or done.timed_out:
        raise SlurmError(
            f"squeue does not tell which jobs there are: {done.error_tail or 'no answer in time'}",
            "is slurmctld running?",
        )
    return parse(done.text)


def _ask(runner: Runner, argv: tuple[str, ...]) -> Completed:
    """Run a program of Slurm: of this cluster, whatever the caller's variables ask it for."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name != "SLURM_CLUSTERS" and not name.startswith(_NARROWING)
    }
    return runner.run(Command(argv, env=env), timeout_s=_QUERY_S)


def parse(text: str) -> frozenset[int]:
    """Return the jobs in use of what squeue wrote; raises SlurmError for anything else."""
    jobs = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) != 2 or not words[0].isdecimal():  # noqa: PLR2004 - job and state
            raise SlurmError(f"squeue wrote {line[:80]!r}, not a job and its state")
        if words[1] not in _ENDED:
            jobs.add(int(words[0]))
    return frozenset(jobs)


GRES = "vf"
"""What Slurm knows VFs as: its gres.conf, slurm.conf and users name them so."""


def gres(runner: Runner, node: str, name: str = GRES) -> int:
    """Return how many of a generic resource Slurm has on record for a node. Raises SlurmError."""
    done = _ask(runner, ("sinfo", "-h", "-n", node, "-o", "%G"))
    if done.code != 0 or done.timed_out:
        raise SlurmError(
            f"sinfo does not tell the gres of {node}: {done.error_tail or 'no answer in time'}",
            "is slurmctld running?",
        )
    return parse_gres(done.text, name)


def parse_gres(text: str, name: str) -> int:
    """Return the sum of what `vf:7(S:0),gpu:tesla:2` says of a name; a line per kind of node."""
    lines = text.splitlines()
    entry = re.compile(rf"{re.escape(name)}(?::[^:(),]+)?:([0-9]{{1,9}})(?:\(.*\))?")
    # Sockets stand in brackets, with commas between.
    words = re.split(r",(?![^(]*\))", lines[0]) if lines else []
    return sum(int(found[1]) for word in words if (found := entry.fullmatch(word.strip())))


def expand(runner: Runner, nodes: str) -> tuple[str, ...]:
    """Return the names that Slurm's short form stands for, in its order. Asks no daemon."""
    return tuple(_told(runner, ("scontrol", "show", "hostnames", nodes), f"nodes {nodes}").split())


def node_addresses(runner: Runner, nodes: Sequence[str]) -> dict[str, str]:
    """Return where nodes are, as Slurm itself reaches them."""
    text = _told(runner, ("scontrol", "show", "node", "-o", ",".join(nodes)), "the nodes")
    found = dict(re.findall(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+)", text, re.MULTILINE))
    missing = [node for node in nodes if node not in found]
    if missing:
        raise SlurmError(f"scontrol does not tell the address of node {missing[0]}")
    return {node: _resolved(found[node]) for node in nodes}


def _resolved(address: str) -> str:
    try:
        answer = socket.getaddrinfo(address, None, socket.AF_INET, socket.SOCK_DGRAM)
        return str(ipaddress.IPv4Address(answer[0][4][0]))
    except (OSError, ValueError) as error:
        raise SlurmError(f"no IPv4 address of node {address}: {error}") from error


def allocated(runner: Runner, job: int, node: str) -> Allocated:
    """Return what a job has on a node; raises SlurmError when Slurm does not say.

    The text holds what users wrote as well, such as the name of the job, which may look like what is
    looked for. So whatever is there counts and the least of it holds: a user gains nothing by it.
    """
    text = _told(runner, ("scontrol", "show", "job", "-d", "-o", str(job)), f"job {job}")
    found = [
        (_count(cpus), int(memory) << 20)
        for names, cpus, memory in _DETAIL.findall(text)
        if _is_among(node, names)
    ]
    if not found:
        raise SlurmError(f"scontrol does not tell what job {job} has on node {node}")
    return Allocated(
        min((cpus for cpus, _ in found if cpus), default=0),
        min((memory for _, memory in found if memory), default=0),
    )


def configuration(runner: Runner) -> dict[str, str]:
    """Return what slurm.conf and cgroup.conf say, by name."""
    lines = _told(runner, ("scontrol", "show", "config"), "its configuration").splitlines()
    pairs = (line.partition("=") for line in lines)
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


_NUMBERS = r"[0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*"
_DETAIL = re.compile(rf"\bNodes=(\S+) CPU_IDs=({_NUMBERS}|) Mem=([0-9]{{1,15}})\b")


def _ranges(text: str) -> list[tuple[str, str]]:
    """Return first and last of each range in a list as `0-3,8`. Pure."""
    pairs = [part.partition("-") for part in text.split(",") if part]
    return [(first, last or first) for first, _, last in pairs]


def _count(ranges: str) -> int:
    """Return how many numbers there are in such a list. Pure."""
    return sum(max(0, int(last) - int(first) + 1) for first, last in _ranges(ranges))


def _is_among(node: str, names: str) -> bool:
    """Whether a node is one of `a,b[01-16,20]`. Pure: nobody is asked what a user may have written."""
    for word in re.split(r",(?![^\[]*\])", names):
        pieces = re.split(rf"\[({_NUMBERS})\]", word)
        pattern = "([0-9]{1,9})".join(re.escape(literal) for literal in pieces[::2])
        match = re.fullmatch(pattern, node)
        if match and all(map(_is_within, match.groups(), pieces[1::2])):
            return True
    return False


def _is_within(number: str, ranges: str) -> bool:
    """Whether a number is in such a list, with as many zeros in front as are written there. Pure."""
    return any(
        int(first) <= int(number) <= int(last) and number == f"{int(number):0{len(first)}d}"
        for first, last in _ranges(ranges)
    )


def _told(runner: Runner, argv: tuple[str, ...], what: str) -> str:
    done = _ask(runner, argv)
    if done.code != 0 or done.timed_out:
        raise SlurmError(
            f"scontrol does not tell of {what}: {done.error_tail or 'no answer in time'}",
            "is slurmctld running?",
        )
    return done.text


def drain(runner: Runner, node: str, reason: str) -> None:
    """Take a node out of service, unless it is: the first reason stays. Raises SlurmError."""
    state = _ask(runner, ("sinfo", "-h", "-n", node, "-o", "%T"))
    if state.code == 0 and state.text.startswith("drain"):
        return
    update = (
        "scontrol",
        "update",
        f"NodeName={node}",
        "State=DRAIN",
        f"Reason=nearmetal: {reason}",
    )
    done = _ask(runner, update)
    if done.code != 0 or done.timed_out:
        raise SlurmError(
            f"node {node} cannot be drained: {done.error_tail or 'no answer in time'}",
            "is slurmctld running, and are you root?",
        )
