# SPDX-License-Identifier: Apache-2.0
"""The findings of a run: slow parts, nodes that could not be measured, lines not full. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp

from nearmetal.check.model import Gravity, Spotted
from nearmetal.check.performance.checks import (
    ANSWER,
    ARITHMETIC,
    LINE,
    MISSING,
    OF_QUANTITY,
    FoundOnNodes,
)
from nearmetal.check.performance.classes import NodeClasses
from nearmetal.check.performance.line_verdict import (
    JUDGED,
    NO_LINE,
    MeasuredLine,
    line_findings,
)
from nearmetal.check.performance.naming import Culprit, Named, SlowPart, name_parts
from nearmetal.check.performance.neighbours import is_without_noise
from nearmetal.check.performance.robust import FALSE_ALARM, FLOOR
from nearmetal.check.performance.run import QUANTITIES, TOGETHER, PerformanceRun
from nearmetal.check.performance.screen import Side

_MOST_NAMES = 6
"""Neighbours that a reason names."""

_REASONS = {
    Culprit.NODE: "the node is slower than its class",
    Culprit.FOLLOWS: "the node itself is slow, and so is its traffic",
    Culprit.LINK: "the node is slow with every partner, and its partners are not: its link",
    Culprit.HOST_LINK: "the node is slow only outside its host: the link of the host",
    Culprit.BETWEEN: "only pairs between these two hosts are slow: the link between the hosts",
    Culprit.NOISE: "the node loses more to its neighbours than others do to as many",
    Culprit.PAIR: "only this pair is slow: each of its nodes is fast with other partners",
}
_REMEDIES = {
    "memory": "nearmetal check --profile health_extended  # memory.*, uniformity.memory",
    "processor": "cat /sys/fs/cgroup/cpu.max; cpupower frequency-info",
    "neighbours": "numastat -v; taskset -acp PID",
    "hpl": "cat /sys/fs/cgroup/cpu.max; cpupower frequency-info",
    "rdma_latency": "perfquery; ethtool -S INTERFACE; ibv_devinfo -v",
    "rdma_bandwidth": "ibstat; perfquery; lspci -vv -s ADDRESS; ibportstate LID PORT",
    "neighbours_processor": "cat /sys/fs/cgroup/cpu.max; taskset -acp PID",
    "neighbours_latency": "tc -s qdisc show dev INTERFACE; devlink port function rate show",
    "neighbours_bandwidth": "tc -s qdisc show dev INTERFACE; devlink port function rate show",
    "latency": "ethtool -S INTERFACE; tc qdisc show dev INTERFACE",
    "bandwidth": "ethtool INTERFACE; tc qdisc show dev INTERFACE; ibportstate LID PORT",
    "stream": "nearmetal check --profile health_extended  # memory.*, uniformity.memory",
    "dgemm": "cat /sys/fs/cgroup/cpu.max; cpupower frequency-info",
    "mpi_latency": "nearmetal doctor SPEC; ethtool -S INTERFACE",
    "mpi_bandwidth": "nearmetal doctor SPEC; ethtool INTERFACE; ibportstate LID PORT",
}


@dataclass(frozen=True)
class JudgedRun:
    """A run with its findings, the checks that they come from, and what was not compared."""

    checks: tuple[str, ...]
    findings: tuple[FoundOnNodes, ...]
    not_run: dict[str, str]


def judge_run(
    run: PerformanceRun, classes: NodeClasses, lines: Sequence[MeasuredLine] = ()
) -> JudgedRun:
    """Judge the quantities that were measured, and the nodes that could not be."""
    named = name_parts(run, classes)
    quantities = dict.fromkeys(turn.quantity for turn in run.screening)
    not_run = named.not_compared()
    if not lines and not quantities.keys().isdisjoint(JUDGED):
        not_run[LINE.name] = NO_LINE
    return JudgedRun(
        (
            ANSWER.name,
            *([ARITHMETIC.name] if run.wrong or "hpl" in quantities else []),
            *([MISSING.name] if run.lacking else []),
            *(OF_QUANTITY[name].name for name in quantities),
            *([LINE.name] if lines else []),
        ),
        (
            *unanswered(run),
            *wrong_results(run),
            *missing(run),
            *slow_parts(named),
            *line_findings(lines),
        ),
        not_run,
    )


def unanswered(run: PerformanceRun) -> Iterator[FoundOnNodes]:
    """Yield nodes that were given up, and pairs of the others that got no connection.

    A node whose pairs with most of the others failed is named alone.
    """
    gone = {item[0]: why for item, why in run.failures.items() if len(item) == 1}
    for name, why in gone.items():
        yield (
            ANSWER,
            (name,),
            Spotted(
                why,
                "a result of each measurement",
                "the node cannot be entered, hangs, has ended or gives no value: what it could "
                "measure is compared",
                "nearmetal status SPEC; nearmetal exec SPEC NODE -- true",
            ),
        )
    partners: dict[str, dict[str, str]] = defaultdict(dict)
    for item, why in run.failures.items():
        if len(item) > 1 and gone.keys().isdisjoint(item):
            partners[item[0]][item[1]] = partners[item[1]][item[0]] = why
    others = len(run.names) - len(gone) - 1
    while partners:
        name = max(partners, key=lambda node: len(partners[node]))
        found = partners.pop(name)
        if len(found) > max(1, others / 2):
            yield _unreached(
                (name,), f"with {len(found)} of {others} nodes", next(iter(found.values()))
            )
        else:
            for partner, why in sorted(found.items()):
                nodes = tuple(sorted((name, partner)))
                yield _unreached(nodes, " and ".join(nodes), why)
        for partner in found:
            del partners[partner][name]
            if not partners[partner]:
                del partners[partner]


def wrong_results(run: PerformanceRun) -> Iterator[FoundOnNodes]:
    """Yield nodes whose HPL computed a wrong result, and all that only together did."""
    together = {name: line for name, line in run.wrong.items() if line.startswith(TOGETHER)}
    if together:
        yield (
            ARITHMETIC,
            tuple(together),
            Spotted(
                next(iter(together.values())),
                "a scaled residual below the threshold of HPL",
                "HPL of all nodes together is wrong, and each of them alone computes right "
                "results: a node at times, or messages between them",
                "nearmetal check performance SPEC --measure hpl  # again; nearmetal doctor SPEC",
                "together",
            ),
        )
    for name, line in run.wrong.items():
        if name in together:
            continue
        yield (
            ARITHMETIC,
            (name,),
            Spotted(
                line,
                "a scaled residual below the threshold of HPL",
                "the node computes wrong results: its processor, its memory or its BLAS is broken",
                "nearmetal check --profile health_extended  # memory.*; memtester 1024M 3",
            ),
        )


def missing(run: PerformanceRun) -> Iterator[FoundOnNodes]:
    """Yield quantities that were not measured, or in part: a warning; or by other means: a note."""
    turns = (*run.screening, *run.retests)
    measured = {turn.quantity for turn in turns if turn.values}
    in_part = measured & {turn.quantity for turn in turns if not turn.values}
    for quantity, words in run.lacking.items():
        why, _, remedy = words.partition("|")
        by_others = quantity in measured - in_part
        nothing = is_without_noise(words)
        yield (
            MISSING,
            run.names,
            Spotted(
                why,
                QUANTITIES[quantity].title,
                "values are compared, but they are not those of the stock program"
                if by_others
                else "a node without neighbours loses nothing to them"
                if nothing
                else "what is not measured is neither slow nor healthy",
                remedy or "nearmetal status SPEC",
                quantity,
                grade=Gravity.NOTE if by_others or nothing else None,
            ),
        )


def _unreached(nodes: tuple[str, ...], about: str, why: str) -> FoundOnNodes:
    return (
        ANSWER,
        nodes,
        Spotted(
            why,
            "a result of each measurement",
            "nodes could not exchange messages",
            "nft list ruleset; ip link show INTERFACE; ping ADDRESS",
            about,
        ),
    )


def slow_parts(named: Named) -> Iterator[FoundOnNodes]:
    """Yield the findings of slow parts, each with its check and its nodes."""
    for part in named.parts:
        yield OF_QUANTITY[part.quantity], part.nodes, _spotted(part)


def _spotted(part: SlowPart) -> Spotted:
    unit = QUANTITIES[part.quantity].unit
    percent = round(100 * (exp(part.slow) - 1))
    return Spotted(
        f"{part.value:.4g} {unit}".strip() + f", {percent} % slower",
        f"{part.expected:.4g} {unit}".strip() + f", and at most {100 * FLOOR:g} % slower",
        f"{_REASONS[part.culprit]}{_neighbours(part)}; slow in {part.slow_retests} of {part.retests} retests, "
        f"with {100 * FALSE_ALARM:g} % as the chance of any false finding in the run",
        _REMEDIES[part.quantity],
        _about(part),
        grade=Gravity.NOTE if part.culprit is Culprit.FOLLOWS else None,
    )


def _neighbours(part: SlowPart) -> str:
    """Return the nodes whose work was the noise; the nodes of the finding are in front of it."""
    others = [name for name in part.beside if name not in part.nodes]
    if not part.beside:
        return ""
    more = f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
    named = ", ".join(others[:_MOST_NAMES]) + more
    return f": {part.noise}, {f'beside {named}' if named else 'beside each other'}"


def _about(part: SlowPart) -> str:
    if part.culprit is Culprit.NODE:
        return ""
    if part.culprit is Culprit.NOISE:
        return part.noise
    if part.culprit is Culprit.PAIR:
        return (" to " if part.one_way else " and ").join(part.nodes)
    if len(part.sides) == 1 and part.sides[0] in (Side.SENDS, Side.RECEIVES):
        return f"{part.culprit.value}, {part.sides[0].value}"
    return str(part.culprit.value)
