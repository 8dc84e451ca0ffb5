# SPDX-License-Identifier: Apache-2.0
"""Retests: what to measure again, and what that proves. Pure.

A retest compares the suspect with others of its class that are measured at the same time. Each
retest of a node has another partner, so the partner is exchanged each time. A pair is measured
by turns as it is, and with either of its nodes exchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from nearmetal.check.performance.robust import FLOOR, retests_needed
from nearmetal.check.performance.run import QUANTITIES, Item, MeasuredTurn, Order
from nearmetal.check.performance.screen import Screening, Side, Suspicion
from nearmetal.check.performance.tournament import Round, completed, packed, tournament

_MOST_ROUNDS = 6
"""Limit of the rounds, as a multiple of the number of retests."""


@dataclass(frozen=True)
class Confirmation:
    """A suspicion with its retests, up to the decision. `typical`: the median slowness of them.

    `proven` None: the retests decide nothing.
    """

    suspicion: Suspicion
    retests: int
    slow: int
    proven: bool | None
    typical: float
    exchanged: tuple[float, float] = (0.0, 0.0)
    """Of a pair: the median slowness of its sender and of its receiver with other partners."""


def orders(names: Sequence[str], screening: Screening, quantity: str) -> Iterator[Order]:
    """Yield what to measure again of one quantity. The caller stops when all is decided."""
    ours = [one for one in screening.suspicions if one.quantity == quantity]
    if not ours:
        return
    needed, _ = retests_needed(len(screening.suspicions))
    if QUANTITIES[quantity].of_pairs:
        yield from _of_pairs(quantity, names, ours, needed)
    else:
        for _ in range(needed):
            yield Order(quantity, tuple((name,) for name in names))


def _of_pairs(
    quantity: str, names: Sequence[str], ours: Sequence[Suspicion], needed: int
) -> Iterator[Order]:
    nodes = {one.item[0] for one in ours if one.side is not Side.PAIR}
    pairs = {frozenset(one.item) for one in ours if one.side is Side.PAIR}
    # A group leaves room for another pair, with which it is compared.
    room = max(1, len(names) // 2 - 1)
    groups = packed([(a, b) for a, b in sorted(sorted(pair) for pair in pairs)], room)
    rounds = tournament(names)
    had = dict.fromkeys(nodes, 0)
    tested = [0] * len(groups)

    def says_something(round_: Round) -> bool:
        return any(nodes.isdisjoint(pair) and frozenset(pair) not in pairs for pair in round_)

    for turn in range(needed * _MOST_ROUNDS):
        round_ = rounds[turn % len(rounds)]
        if says_something(round_):
            for a, b in round_:
                for node, partner in ((a, b), (b, a)):
                    if node in nodes and partner not in nodes:
                        had[node] += 1
            yield Order(quantity, round_)
        for index, group in enumerate(groups):
            round_ = completed(names, group, turn)
            if tested[index] < needed and says_something(round_):
                tested[index] += 1
                yield Order(quantity, round_)
        if min(turn + 1, *had.values(), *tested) >= needed:
            return


@dataclass
class _Case:
    """What the retests of a suspicion show, up to the decision: later ones could not change it.

    `known`: the part of its slowness that other suspicions explain.
    """

    suspicion: Suspicion
    most: int
    least: int
    known: float = 0.0
    found: list[float] = field(default_factory=list)
    """How much slower than the others of its turn the suspect was, turn by turn."""
    slow: int = 0
    proven: bool | None = None

    def add(self, slowness: float) -> None:
        if self.proven is not None:
            return
        value = slowness - self.known
        self.found.append(value)
        self.slow += value > FLOOR
        if self.slow >= self.least:
            self.proven = True
        elif len(self.found) - self.slow > self.most - self.least:
            self.proven = False


class Retests:
    """The turns of retests so far, and what they prove.

    All suspicions, of all quantities, share one bound on errors. The work is in proportion to the
    values of the turns, whatever the number of suspicions: a file may have very many of both.
    """

    def __init__(self, screening: Screening) -> None:
        self._screening = screening
        most, least = retests_needed(len(screening.suspicions))
        self._suspects: dict[str, set[Item]] = defaultdict(set)
        self._cases: dict[str, dict[tuple[Side, Item], _Case]] = defaultdict(dict)
        self._open: dict[str, set[tuple[Side, Item]]] = defaultdict(set)
        """What is not decided yet, by quantity."""
        for one in screening.suspicions:
            known = 0.0
            if one.side is Side.PAIR:
                known = screening.models[one.quantity].explained(one.item)
            self._suspects[one.quantity].add(one.item)
            self._cases[one.quantity][one.side, one.item] = _Case(one, most, least, known)
            self._open[one.quantity].add((one.side, one.item))
        self._others: dict[str, dict[tuple[Side, str], list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        """How slow each node is with partners with which it is no suspect, by quantity."""

    def add(self, turn: MeasuredTurn) -> None:
        """Take a turn. A turn of which nothing but suspects could be measured says nothing."""
        model, suspects = self._screening.models.get(turn.quantity), self._suspects[turn.quantity]
        if model is None or not suspects:
            return
        slow = {
            item: own
            for item, value in turn.values.items()
            if (own := model.slowness(item, value)) is not None
        }
        others = [
            own
            for item, own in slow.items()
            if suspects.isdisjoint((item, item[::-1], *((node,) for node in item)))
        ]
        if others:
            norm = median(others)
            for item, own in slow.items():
                self._take(turn.quantity, item, own - norm)

    def _take(self, quantity: str, item: Item, slowness: float) -> None:
        """Take how much slower than the others of its turn an item was."""
        if not QUANTITIES[quantity].of_pairs:
            self._tell(quantity, Side.WHOLE, item, slowness)
            return
        suspects = self._suspects[quantity]
        self._tell(quantity, Side.PAIR, item, slowness)
        usual = item not in suspects and item[::-1] not in suspects
        for side, node, partner in (
            (Side.SENDS, item[0], item[1]),
            (Side.RECEIVES, item[1], item[0]),
        ):
            if (partner,) not in suspects:
                self._tell(quantity, side, (node,), slowness)
                if usual:
                    self._others[quantity][side, node].append(slowness)

    def _tell(self, quantity: str, side: Side, item: Item, slowness: float) -> None:
        case = self._cases[quantity].get((side, item))
        if case is not None:
            case.add(slowness)
            if case.proven is not None:
                self._open[quantity].discard((side, item))

    def decided(self, quantity: str) -> bool:
        """Whether all suspicions of a quantity are decided."""
        return not self._open[quantity]

    def results(self) -> list[Confirmation]:
        """Return all suspicions with what was proven."""
        exchanged = {
            quantity: {place: median(found) for place, found in places.items()}
            for quantity, places in self._others.items()
        }
        return [
            _confirmation(
                self._cases[one.quantity][one.side, one.item], exchanged.get(one.quantity, {})
            )
            for one in self._screening.suspicions
        ]


def _confirmation(case: _Case, others: Mapping[tuple[Side, str], float]) -> Confirmation:
    """Return what was proven. `others`: how slow nodes are with other partners."""
    exchanged, item = (0.0, 0.0), case.suspicion.item
    if case.suspicion.side is Side.PAIR:
        exchanged = (
            others.get((Side.SENDS, item[0]), 0.0),
            others.get((Side.RECEIVES, item[1]), 0.0),
        )
    return Confirmation(
        case.suspicion,
        len(case.found),
        case.slow,
        case.proven,
        median(case.found) if case.found else 0.0,
        exchanged,
    )


def confirm(turns: Sequence[MeasuredTurn], screening: Screening) -> list[Confirmation]:
    """Return what retests prove."""
    retests = Retests(screening)
    for turn in turns:
        retests.add(turn)
    return retests.results()
