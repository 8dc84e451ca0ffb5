# SPDX-License-Identifier: Apache-2.0
"""The findings of a run: slow parts, and lines that are not full. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import exp, floor
from statistics import median

from nearmetal.check.model import Gravity, HealthCheck, Spotted
from nearmetal.check.performance.line import PortCapacity, line_share
from nearmetal.check.performance.naming import Culprit, Named, SlowPart
from nearmetal.check.performance.robust import FALSE_ALARM, FLOOR
from nearmetal.check.performance.run import QUANTITIES, PerformanceRun
from nearmetal.check.performance.screen import Side
from nearmetal.check.snapshot import Snapshot
from nearmetal.evidence.line_rate import FULL

CLASS = "the other nodes of this run with the same hardware and the same kind of hop"
_MEGABYTES_TO_GBIT = 8 / 1000

CHECKS: Mapping[str, HealthCheck] = {
    name: HealthCheck(
        f"performance.{name}", Gravity.WARNING, f"{quantity.title} as in its class", CLASS
    )
    for name, quantity in QUANTITIES.items()
}
"""The check of each quantity."""

LINE = HealthCheck(
    "performance.line_rate",
    Gravity.WARNING,
    "the bandwidth fills the line",
    "kernel, drivers/pci/pci.h, and the packets of the fabric",
)

_REASONS = {
    Culprit.NODE: "the node is slower than its class",
    Culprit.FOLLOWS: "the node itself is slow, and so is its traffic",
    Culprit.LINK: "the node is slow with every partner, and its partners are not: its link",
    Culprit.HOST_LINK: "the node is slow only outside its host: the link of the host",
    Culprit.BETWEEN: "only pairs between these two hosts are slow: the link between the hosts",
    Culprit.PAIR: "only this pair is slow: each of its nodes is fast with other partners",
}
_REMEDIES = {
    "memory": "nearmetal check --profile health_extended  # memory.*, uniformity.memory",
    "flops": "cat /sys/fs/cgroup/cpu.max; cpupower frequency-info",
    "neighbours": "numastat -v; taskset -acp PID",
    "latency": "ethtool -S INTERFACE; tc qdisc show dev INTERFACE",
    "bandwidth": "ethtool INTERFACE; tc qdisc show dev INTERFACE; ibportstate LID PORT",
}


def slow_parts(named: Named) -> Iterator[tuple[HealthCheck, tuple[str, ...], Spotted]]:
    """Yield the findings of slow parts, each with its check and its nodes."""
    for part in named.parts:
        yield CHECKS[part.quantity], part.nodes, _spotted(part)


def _spotted(part: SlowPart) -> Spotted:
    unit = QUANTITIES[part.quantity].unit
    percent = round(100 * (exp(part.slow) - 1))
    return Spotted(
        f"{part.value:.4g} {unit}".strip() + f", {percent} % slower",
        f"{part.expected:.4g} {unit}".strip() + f", and at most {100 * FLOOR:g} % slower",
        f"{_REASONS[part.culprit]}; slow in {part.slow_retests} of {part.retests} retests, "
        f"with {100 * FALSE_ALARM:g} % as the chance of any false finding in the run",
        _REMEDIES[part.quantity],
        _about(part),
        grade=Gravity.NOTE if part.culprit is Culprit.FOLLOWS else None,
    )


def _about(part: SlowPart) -> str:
    if part.culprit is Culprit.NODE:
        return ""
    if part.culprit is Culprit.PAIR:
        return (" to " if part.one_way else " and ").join(part.nodes)
    if len(part.sides) == 1 and part.sides[0] in (Side.SENDS, Side.RECEIVES):
        return f"{part.culprit.value}, {part.sides[0].value}"
    return str(part.culprit.value)


def line_findings(
    run: PerformanceRun, snapshots: Iterable[Snapshot]
) -> Iterator[tuple[HealthCheck, tuple[str, ...], Spotted]]:
    """Yield a finding for the nodes whose sends do not fill the same kind of line."""
    nodes = {node.name: node for node in snapshots}
    shares: dict[str, list[tuple[float, PortCapacity]]] = defaultdict(list)
    for turn in run.screening:
        if turn.quantity != "bandwidth":
            continue
        for item, value in turn.values.items():
            if not all(name in nodes for name in item):
                continue
            found = line_share([nodes[name] for name in item], value * _MEGABYTES_TO_GBIT)
            if found is not None:
                shares[item[0]].append((found.share, found.capacity))
    weak: dict[tuple[int, str, float], list[str]] = defaultdict(list)
    for name, ours in shares.items():
        share = median(share for share, _ in ours)
        if share < FULL:
            capacity = min((capacity for _, capacity in ours), key=lambda c: c.gbit)
            weak[floor(10 * share), capacity.limit, round(capacity.gbit, 1)].append(name)
    for (tenth, limit, gbit), names in sorted(weak.items()):
        yield (
            LINE,
            tuple(names),
            Spotted(
                f"{10 * tenth} to {10 * tenth + 10} % of {gbit:g} Gbit/s",
                f"at least {100 * FULL:g} %",
                f"the bandwidth of large messages is below that of the weakest part: {limit}",
                "lspci -vv -s ADDRESS; ip link show INTERFACE; ibstat",
                limit,
            ),
        )
