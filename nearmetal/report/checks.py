# SPDX-License-Identifier: Apache-2.0
"""Whether the figures can be believed: carrier of the messages, placement, physical limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from nearmetal.evidence import Launch, RunFacts
from nearmetal.evidence.counters import NETWORK as CHANNEL
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

_COPY_SLACK = 1.25
"""Factor by which a figure may exceed the limit of its run: they were measured seconds apart."""


class State(Enum):
    """The result of a check."""

    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"


class Check(NamedTuple):
    """One finding with its reason."""

    state: State
    title: str
    reason: str


def _verdict(good: bool) -> State:  # noqa: FBT001 - turns a condition into a state
    return State.GOOD if good else State.BAD


def _whole(run: RunFacts) -> Check:
    if not run.manifest.finished:
        return Check(State.BAD, "the run was interrupted", "later launches are missing")
    span = f"{run.manifest.started} to {run.manifest.finished}"
    return Check(State.GOOD, "the run is complete", span)


def _ended(run: RunFacts) -> Check:
    launches = run.manifest.launches
    words = [
        f"{b.mpi} {b.arm} {b.program}: exit code {b.exit_code}"
        + (", no end in time" if b.timed_out else "")
        for b in launches
        if not b.good
    ]
    words += [f"not run: {s}" for s in run.manifest.skipped]
    if words:
        return Check(State.BAD, f"missing launches: {len(words)}", "; ".join(words))
    return Check(State.GOOD, "every launch ended well", f"{len(launches)} of {len(launches)}")


def _by_arm(run: RunFacts, arm: str) -> list[Launch]:
    return [launch for launch in run.manifest.launches if launch.arm == arm and launch.good]


def _carried(run: RunFacts) -> list[Check]:
    """Judge, from the provider's counters, the channels that carried each of our arms."""
    found = []
    for arm in (OURS, NETWORK):
        launches = _by_arm(run, arm)
        unproven = [launch for launch in launches if launch.proof.verdict != "proven"]
        messages: Counter[str] = Counter()
        for launch in launches:
            messages.update(launch.proof.messages)
        if unproven:
            reason = f"{len(unproven)} of {len(launches)}: {unproven[0].proof.reason}"
            found.append(Check(State.BAD, f"{ARM_TITLES[arm]}: not proven", reason))
        elif launches:
            words = ", ".join(f"{c}: {n:,} messages" for c, n in sorted(messages.items()))
            found.append(Check(State.GOOD, f"{ARM_TITLES[arm]}: the provider carried it", words))
    return found


def _wire(run: RunFacts) -> list[Check]:
    """Compare the traffic of the nodes' interfaces with the claim of each arm."""
    found = []
    ours, stock = (
        [launch for launch in _by_arm(run, arm) if launch.wire_bytes is not None]
        for arm in (OURS, BASELINE)
    )
    near = run.manifest.locality and all(p.channel != CHANNEL for p in run.manifest.locality)
    if ours and near:
        wire = sum(launch.wire_bytes or 0 for launch in ours)
        payload = sum(sum(launch.proof.bytes.values()) for launch in ours)
        reason = (
            f"the nodes' interfaces sent {numbers.data(wire)} while {numbers.data(payload)} "
            "of messages were carried"
        )
        title = "the network was idle under nearmetal"
        found.append(Check(_verdict(wire * 10 < payload), title, reason))
    if stock:
        sent = [launch.wire_bytes or 0 for launch in stock]
        reason = f"the nodes' interfaces sent {numbers.data(sum(sent))} in {len(stock)} launches"
        title = "the baseline went over the network"
        found.append(Check(_verdict(min(sent) > 1 << 20), title, reason))
    return found


def _placements(run: RunFacts) -> Check | None:
    """Report the cache domain of the cores, as the cache line shows it in each block."""
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
            name = f"{MPI_TITLES.get(mpi, mpi)} {arm}"
            which = Which(arm, mpi, "patterns", "pingpong")
            broken += [
                f"{name}: {numbers.microseconds(p.value)} for {numbers.size(p.size)}"
                for p in evidence.curve(Quantity.TIME, which)
                if p.value < line.low
            ]
            broken += [
                f"{name}: {numbers.megabytes_per_second(p.value)} at {numbers.size(p.size)}"
                for p in evidence.curve(Quantity.BANDWIDTH, replace(which, test="uniband"))
                if p.value > top
            ]
    if broken:
        return Check(State.BAD, "figures beyond the limits of the cores", "; ".join(broken))
    return Check(
        State.GOOD,
        "no figure beats the cores",
        "no half round trip is shorter than one cache line's, no stream faster than "
        "the best copy within one process",
    )


def _gaps(run: RunFacts) -> Check | None:
    """Report sizes that third-party programs left out, as IMB does when time is up."""
    words = [
        f"{launch.mpi} {launch.arm} {launch.program}: {text.split(';')[0]}"
        for launch in run.manifest.launches
        if launch.file in run.logs
        for _, text in run.logs[launch.file].remarks
        if "time-out" in text
    ]
    return Check(State.DOUBT, "sizes that ran out of time", "; ".join(words)) if words else None


def _noise(run: RunFacts) -> Check:
    launches, nodes = run.manifest.launches, run.manifest.environment.nodes
    cores = max(1, len({c for n in nodes for c in n.cpus}))
    top = max((launch.load for launch in launches), default=0.0)
    ranks = max((launch.ranks for launch in launches if launch.mpi), default=0)
    text = f"load average before launches up to {numbers.digits(top)}, {cores} cores"
    if ranks > cores or any(n.slots > len(n.cpus) for n in nodes):
        reason = f"figures measure the scheduler as well; {text}"
        return Check(State.DOUBT, "more ranks than cores", reason)
    # The average includes the ranks of the launch before: only twice the cores is other work.
    if top > 2 * cores:
        return Check(State.DOUBT, "the machine was busy with other work", text)
    return Check(State.GOOD, "the machine was not crowded", text)


def run_checks(evidence: Evidence) -> list[Check]:
    """Return every check that applies, in the order to show."""
    run = evidence.run
    found = (
        _whole(run),
        _ended(run),
        *_carried(run),
        *_wire(run),
        _gaps(run),
        _placements(run),
        _limits(evidence),
        _noise(run),
    )
    return [check for check in found if check is not None]
