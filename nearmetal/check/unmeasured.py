# SPDX-License-Identifier: Apache-2.0
"""What a run could not measure, and why, and what it does not try again. Pure.

Each measurement that takes its whole limit costs all nodes that time. Packets may be lost without a
word between many nodes, and a run has thousands of measurements: so time-outs are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from nearmetal.check.performance.run import MAX_TEXT, QUANTITIES, Item
from nearmetal.core.text import printable

_ALL = ""
"""In place of a quantity: the node was given up."""

_MOST_LATE = 2
"""Time-outs of one quantity of an item, after which it is left out."""

_MOST_SILENT = 8
"""Partners with which a node has time-outs before its pairs are left out, in a large cluster."""


@dataclass
class Unmeasured:
    """Nodes and pairs without a value. A value of one quantity says nothing about the others.

    `count`: the number of nodes.
    """

    count: int
    _why: dict[tuple[str, Item], str] = field(default_factory=dict)
    _late: Counter[tuple[str, frozenset[str]]] = field(default_factory=Counter)
    _silent: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The partners with which each node had a time-out."""
    _met: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The partners with which each node had a value."""
    _alone: set[str] = field(default_factory=set)
    """Nodes whose pairs are left out."""

    def give_up(self, name: str, why: str) -> None:
        """No quantity of a node can be measured any more."""
        self._why[_ALL, (name,)] = why

    @property
    def any_given_up(self) -> bool:
        """Whether a node was given up."""
        return any(quantity == _ALL for quantity, _ in self._why)

    def fail(self, quantity: str, item: Item, why: str) -> None:
        """A quantity of a node, or of the way from one node to another, has no value."""
        self._why[quantity, item] = why

    def succeed(self, quantity: str, item: Item) -> None:
        """It has a value now."""
        self._why.pop((quantity, item), None)
        if len(item) == 1:
            return
        for name, partner in zip(item, item[::-1], strict=True):
            self._met[name].add(partner)

    def was_late(self, quantity: str, item: Item) -> None:
        """A node or a pair failed, and took all the time that it had."""
        self._late[quantity, frozenset(item)] += 1
        if len(item) == 1:
            return
        for name, partner in zip(item, item[::-1], strict=True):
            self._silent[name].add(partner)
            silent = len(self._silent[name])
            enough = min((self.count - 1) // 2 + 1, _MOST_SILENT)
            if name not in self._alone and silent >= enough and silent > len(self._met[name]):
                self._alone.add(name)
                why = f"no result in time with {silent} other nodes, so its pairs were left out"
                self.fail(quantity, (name,), why)

    def is_left_out(self, quantity: str, item: Item) -> bool:
        """Whether an item has had so many time-outs that it is not measured again."""
        if len(item) > 1 and not self._alone.isdisjoint(item):
            return True
        return self._late[quantity, frozenset(item)] >= _MOST_LATE

    def reasons(self) -> dict[Item, str]:
        """Return why each item has no value, with the quantities that it lacks."""
        lacks: dict[Item, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for (quantity, item), why in self._why.items():
            if quantity == _ALL or (_ALL, item) not in self._why:
                lacks[item][why].append(quantity)
        return {
            item: printable("; ".join(_words(why, names) for why, names in reasons.items()))[
                :MAX_TEXT
            ]
            for item, reasons in lacks.items()
        }


def _words(why: str, quantities: list[str]) -> str:
    titles = [QUANTITIES[name].title for name in quantities if name != _ALL]
    return f"{', '.join(titles)}: {why}" if titles else why
