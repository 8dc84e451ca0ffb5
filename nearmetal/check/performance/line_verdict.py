# SPDX-License-Identifier: Apache-2.0
"""The line-rate verdict: which share of its line each pair reached, and what limits it. Pure.

One TCP connection does not fill a fast line, so the bandwidth of agents is not judged. Pairs of one
host do not need their line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import floor
from statistics import median

from nearmetal.check.model import Gravity, Spotted
from nearmetal.check.performance.checks import LINE, FoundOnNodes
from nearmetal.check.performance.classes import WITHIN_A_HOST, NodeClasses
from nearmetal.check.performance.line import LineShare, PortCapacity, capacity_of, weaker
from nearmetal.check.performance.run import QUANTITIES, Item, PerformanceRun
from nearmetal.check.snapshot import Snapshot
from nearmetal.evidence.line_rate import BEYOND, FULL

_TO_GBIT = {"MB/s": 8 / 1000, "Gbit/s": 1.0}

JUDGED = tuple(
    name
    for name, quantity in QUANTITIES.items()
    if quantity.of_pairs and quantity.unit in _TO_GBIT and name != "bandwidth"
)
"""The quantities that fill a sound line."""

NO_LINE = "no two hosts with RDMA ports of known rates: only such pairs have a line"


@dataclass(frozen=True)
class MeasuredLine:
    """What a pair reached of its line: the median of its turns."""

    quantity: str
    item: Item
    found: LineShare


def measured_lines(
    run: PerformanceRun, snapshots: Iterable[Snapshot], classes: NodeClasses
) -> list[MeasuredLine]:
    """Return the shares of all pairs whose lines are known."""
    values: dict[tuple[str, Item], list[float]] = defaultdict(list)
    for turn in run.screening:
        for item, value in turn.values.items() if turn.quantity in JUDGED else ():
            if classes.hop(item[0], item[1]) not in WITHIN_A_HOST:
                values[turn.quantity, item].append(value)
    known: dict[str, PortCapacity] = {}
    for node in snapshots if values else ():
        capacity = capacity_of(node)
        if capacity is not None:
            known[node.name] = capacity
    return [
        MeasuredLine(
            quantity,
            item,
            LineShare(
                weaker([known[name] for name in item]),
                median(found) * _TO_GBIT[QUANTITIES[quantity].unit],
            ),
        )
        for (quantity, item), found in values.items()
        if all(name in known for name in item)
    ]


def line_findings(lines: Sequence[MeasuredLine]) -> Iterator[FoundOnNodes]:
    """Yield a finding for the nodes whose sends do not fill the same kind of line.

    A share above 1 is no speed: another part carried the messages, or a fact is wrong.
    """
    shares: dict[tuple[str, str], list[LineShare]] = defaultdict(list)
    for line in lines:
        shares[line.quantity, line.item[0]].append(line.found)
    alike: dict[tuple[str, int, str, float], list[str]] = defaultdict(list)
    for (quantity, name), ours in shares.items():
        share = median(one.share for one in ours)
        if not FULL <= share <= BEYOND:
            capacity = weaker([one.capacity for one in ours])
            tenth = floor(10 * share) if share < FULL else -1
            alike[quantity, tenth, capacity.limit, round(capacity.gbit, 1)].append(name)
    for (quantity, tenth, limit, gbit), names in sorted(alike.items()):
        yield LINE, tuple(sorted(names)), _spotted(quantity, tenth, limit, gbit)


def _spotted(quantity: str, tenth: int, limit: str, gbit: float) -> Spotted:
    title = QUANTITIES[quantity].title
    if tenth < 0:
        return Spotted(
            f"more than {gbit:g} Gbit/s",
            f"at most {100 * BEYOND:g} %",
            f"the {title} is above what the weakest part can carry: {limit}; several ports "
            "carried the messages, or a fact of the port is wrong",
            "nearmetal check collect; ibstat",
            f"{title}: {limit}",
            grade=Gravity.NOTE,
        )
    return Spotted(
        f"{10 * tenth} to {10 * tenth + 10} % of {gbit:g} Gbit/s",
        f"at least {100 * FULL:g} %",
        f"the {title} does not fill the weakest part of the line: {limit}",
        "lspci -vv -s ADDRESS; ip link show INTERFACE; ibstat",
        f"{title}: {limit}",
    )
