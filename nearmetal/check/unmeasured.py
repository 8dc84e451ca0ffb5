# SPDX-License-Identifier: Apache-2.0
"""What a run could not measure, and why. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from nearmetal.check.performance.run import MAX_TEXT, QUANTITIES, Item
from nearmetal.core.text import printable

_ALL = ""
"""In place of a quantity: the node was given up."""


@dataclass
class Unmeasured:
    """Nodes and pairs without a value. A value of one quantity says nothing about the others."""

    _why: dict[tuple[str, Item], str] = field(default_factory=dict)

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
