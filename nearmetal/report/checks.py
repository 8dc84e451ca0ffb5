# SPDX-License-Identifier: Apache-2.0
"""Whether the figures can be believed: what carried them, where, and what nature allows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from nearmetal.report import numbers
from nearmetal.report.analysis import (
    ARM_TITLES,
    BASELINE,
    MPI_TITLES,
    NETWORK,
    OURS,
    Evidence,
    Quantity,
    Which,
    limit,
)

if TYPE_CHECKING:
    from nearmetal.evidence import Launch, RunFacts

_COPY_SLACK = 1.25
"""A figure may exceed the limit of its run by so much: they were measured seconds apart."""


class State(Enum):
    """What a check found."""

    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"


@dataclass(frozen=True)
class Check:
    """One finding with its reason."""

    state: State
    title: str
    reason: str


def _ended(run: RunFacts) -> Check:
    bad = [launch for launch in run.manifest.launches if not launch.good]
    total = len(run.manifest.launches)
    if not bad and not run.manifest.skipped:
        return Check(State.GOOD, "every launch ended well", f"{total} of {total}")
    words = [
        f"{b.mpi} {b.arm} {b.program}: exit code {b.exit_code}"
        + (", no end in time" if b.timed_out else "")
        for b in bad
    ]
    words += [f"not run: {s}" for s in run.manifest.skipped]
    return Check(State.BAD, f"missing launches: {len(words)}", "; ".join(words))


def _whole(run: RunFacts) -> Check:
    if run.manifest.finished:
        return Check(
            State.GOOD, "the run is complete", f"{run.manifest.started} to {run.manifest.finished}"
        )
    return Check(State.BAD, "the run was interrupted", "later launches are missing")


def _by_arm(run: RunFacts, arm: str) -> list[Launch]:
    return [launch for launch in run.manifest.launches if launch.arm == arm and launch.good]


def _carried(run: RunFacts) -> list[Check]:
    """Judge, from the provider's counters, what carried each of our arms."""
    found = []
    for arm in (OURS, NETWORK):
        launches = _by_arm(run, arm)
        if not launches:
            continue
        unproven = [launch for launch in launches if launch.proof.verdict != "proven"]
        messages: dict[str, int] = defaultdict(int)
        for launch in launches:
            for channel, count in launch.proof.messages.items():
                messages[channel] += count
        words = ", ".join(f"{c}: {n:,} messages" for c, n in sorted(messages.items()))
        if unproven:
            reason = f"{len(unproven)} of {len(launches)}: {unproven[0].proof.reason}"
            found.append(Check(State.BAD, f"{ARM_TITLES[arm]}: not proven", reason))
        else:
            found.append(Check(State.GOOD, f"{ARM_TITLES[arm]}: the provider carried it", words))
    return found


def _wire(run: RunFacts) -> list[Check]:
    """Hold what the nodes' interfaces sent against what each arm says it used."""
    found = []
    ours = [launch for launch in _by_arm(run, OURS) if launch.wire_bytes is not None]
    near = run.manifest.locality and all(p.channel != "net" for p in run.manifest.locality)
    if ours and near:
        wire = sum(launch.wire_bytes or 0 for launch in ours)
        payload = sum(sum(launch.proof.bytes.values()) for launch in ours)
        reason = (
            f"the nodes' interfaces sent {numbers.data(wire)} while {numbers.data(payload)} "
            "of messages were carried"
        )
        state = State.GOOD if wire * 10 < payload else State.BAD
        found.append(Check(state, "the network was idle under nearmetal", reason))
    stock = [launch for launch in _by_arm(run, BASELINE) if launch.wire_bytes is not None]
    if stock:
        wire = sum(launch.wire_bytes or 0 for launch in stock)
        least = min(launch.wire_bytes or 0 for launch in stock)
        reason = f"the nodes' interfaces sent {numbers.data(wire)} in {len(stock)} launches"
        state = State.GOOD if least > 1 << 20 else State.BAD
        found.append(Check(state, "the baseline went over the network", reason))
    return found


def _placements(run: RunFacts) -> Check | None:
    """Say in which cache domain the cores were, as the cache line told in each block."""
    seen = [
        run.logs[launch.file].header.get("placement", "").split()
        for launch in run.manifest.launches
        if launch.program == "limits" and launch.file in run.logs
    ]
    words = [s[0] for s in seen if s]
    if not words:
        return None
    near = words.count("near")
    reason = (
        f"near (shared cache) in {near} of {len(words)} blocks, by the half round trip of "
        "one cache line"
    )
    if near == len(words):
        return Check(State.GOOD, "the cores share a cache", reason)
    title = "the cores moved between cache domains" if near else "the cores share no cache"
    return Check(State.DOUBT, title, reason + "; or they were disturbed")


def _limits(evidence: Evidence) -> Check | None:
    """No message is faster than one cache line, no stream faster than the best single copy."""
    line = evidence.point(Quantity.TIME, limit("cacheline"), 8)
    copies = evidence.curve(Quantity.BANDWIDTH, limit("memcpy"))
    if line is None or not copies:
        return None
    top = max(p.high for p in copies) * _COPY_SLACK
    broken = []
    for mpi in evidence.mpis("patterns"):
        for arm in evidence.arms(mpi, "patterns"):
            which = Which(arm, mpi, "patterns", "pingpong")
            times = evidence.curve(Quantity.TIME, which)
            streams = evidence.curve(Quantity.BANDWIDTH, replace(which, test="uniband"))
            broken += [
                f"{MPI_TITLES.get(mpi, mpi)} {arm}: {numbers.microseconds(p.value)} for "
                f"{numbers.size(p.size)}"
                for p in times
                if p.value < line.low
            ]
            broken += [
                f"{MPI_TITLES.get(mpi, mpi)} {arm}: "
                f"{numbers.megabytes_per_second(p.value)} at {numbers.size(p.size)}"
                for p in streams
                if p.value > top
            ]
    if broken:
        return Check(State.BAD, "figures beyond what the cores can do", "; ".join(broken))
    return Check(
        State.GOOD,
        "no figure beats the cores",
        "no half round trip is shorter than one cache line's, no stream faster than "
        "the best copy within one process",
    )


def _gaps(run: RunFacts) -> Check | None:
    """Tell what third-party programs left out by themselves, as IMB does when time is up."""
    words = [
        f"{launch.mpi} {launch.arm} {launch.program}: {text.split(';')[0]}"
        for launch in run.manifest.launches
        if launch.file in run.logs
        for _, text in run.logs[launch.file].remarks
        if "time-out" in text
    ]
    if not words:
        return None
    return Check(State.DOUBT, "sizes that ran out of time", "; ".join(words))


def _noise(run: RunFacts) -> Check:
    loads = [launch.load for launch in run.manifest.launches]
    cores = max(1, len({c for n in run.manifest.environment.nodes for c in n.cpus}))
    top = max(loads, default=0.0)
    crowded = [n for n in run.manifest.environment.nodes if n.slots > len(n.cpus)]
    text = (
        f"load average before launches up to {numbers.digits(top) if top else '0'}, {cores} cores"
    )
    if (
        crowded
        or max((launch.ranks for launch in run.manifest.launches if launch.mpi), default=0) > cores
    ):
        return Check(
            State.DOUBT, "more ranks than cores", "figures measure the scheduler as well; " + text
        )
    # A launch keeps its own ranks in the average, so twice the cores means somebody else's work.
    if top > 2 * cores:
        return Check(State.DOUBT, "the machine was busy with other work", text)
    return Check(State.GOOD, "the machine was not crowded", text)


def run_checks(evidence: Evidence) -> list[Check]:
    """Return every check that applies, in the order to show."""
    run = evidence.run
    optional = [_gaps(run), _placements(run), _limits(evidence)]
    return [
        _whole(run),
        _ended(run),
        *_carried(run),
        *_wire(run),
        *(check for check in optional if check is not None),
        _noise(run),
    ]
