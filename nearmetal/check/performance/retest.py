# SPDX-License-Identifier: Apache-2.0
"""Retests: what to measure again, and what that proves. Pure.

A retest compares the suspect with others of its class that are measured at the same time. Each
retest of a node has another partner, so the partner is exchanged each time. A pair is measured
by turns as it is, and with either of its nodes exchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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


class Retests:
    """The turns of retests so far, and what they prove.

    All suspicions, of all quantities, share one bound on errors.
    """

    def __init__(self, screening: Screening) -> None:
        self._screening = screening
        self._needed = retests_needed(len(screening.suspicions))
        self._suspects: dict[str, set[Item]] = defaultdict(set)
        self._open: dict[str, list[Suspicion]] = defaultdict(list)
        """What is not decided yet, by quantity."""
        for one in screening.suspicions:
            self._suspects[one.quantity].add(one.item)
            self._open[one.quantity].append(one)
        self._seen: dict[Suspicion, list[float]] = defaultdict(list)
        """How much slower than the others of its turn each suspect was, turn by turn."""
        self._turns: dict[str, list[dict[Item, float]]] = defaultdict(list)

    def add(self, turn: MeasuredTurn) -> None:
        """Take a turn. A turn of which nothing but suspects could be measured says nothing."""
        model, suspects = self._screening.models.get(turn.quantity), self._suspects[turn.quantity]
        if model is None:
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
            self._take(turn.quantity, {item: own - norm for item, own in slow.items()})

    def _take(self, quantity: str, turn: dict[Item, float]) -> None:
        self._turns[quantity].append(turn)
        for one in self._open[quantity]:
            self._seen[one] += self._seen_in(one, turn)
        self._open[quantity] = [
            one
            for one in self._open[quantity]
            if _decided(self._seen[one], *self._needed)[1] is None
        ]

    def decided(self, quantity: str) -> bool:
        """Whether all suspicions of a quantity are decided."""
        return not self._open[quantity]

    def results(self) -> list[Confirmation]:
        """Return all suspicions with what was proven."""
        return [self._confirmation(one) for one in self._screening.suspicions]

    def _confirmation(self, suspicion: Suspicion) -> Confirmation:
        found, proven = _decided(self._seen[suspicion], *self._needed)
        exchanged = (0.0, 0.0)
        if suspicion.side is Side.PAIR:
            sender, receiver = suspicion.item
            exchanged = (
                self._exchanged(suspicion, Side.SENDS, sender),
                self._exchanged(suspicion, Side.RECEIVES, receiver),
            )
        return Confirmation(
            suspicion,
            len(found),
            sum(value > FLOOR for value in found),
            proven,
            median(found) if found else 0.0,
            exchanged,
        )

    def _seen_in(self, suspicion: Suspicion, turn: Mapping[Item, float]) -> list[float]:
        """Return how much slower than the others of a turn the suspect was, if it was measured."""
        if suspicion.side not in (Side.WHOLE, Side.PAIR):
            return self._with_others(suspicion, suspicion.item[0], suspicion.side, turn, set())
        if suspicion.item not in turn:
            return []
        known = 0.0
        if suspicion.side is Side.PAIR:
            known = self._screening.models[suspicion.quantity].explained(suspicion.item)
        return [turn[suspicion.item] - known]

    def _with_others(
        self,
        suspicion: Suspicion,
        node: str,
        side: Side,
        turn: Mapping[Item, float],
        suspect_pairs: set[Item],
    ) -> list[float]:
        """Return the slowness of a node in a turn with each partner that is no suspect."""
        suspects, at = self._suspects[suspicion.quantity], 0 if side is Side.SENDS else 1
        return [
            slow
            for item, slow in turn.items()
            if item[at] == node and (item[1 - at],) not in suspects and item not in suspect_pairs
        ]

    def _exchanged(self, pair: Suspicion, side: Side, node: str) -> float:
        """Return how slow a node of a pair is with partners with which it is no suspect."""
        suspects = self._suspects[pair.quantity]
        known = suspects | {item[::-1] for item in suspects}
        found = [
            slow
            for turn in self._turns[pair.quantity]
            for slow in self._with_others(pair, node, side, turn, known)
        ]
        return median(found) if found else 0.0


def confirm(turns: Sequence[MeasuredTurn], screening: Screening) -> list[Confirmation]:
    """Return what retests prove."""
    retests = Retests(screening)
    for turn in turns:
        retests.add(turn)
    return retests.results()


def _decided(values: Sequence[float], most: int, least: int) -> tuple[Sequence[float], bool | None]:
    """Return the values up to the decision, and the decision.

    The result is that of all `most` retests: later ones could not change it.
    """
    slow = 0
    for count, value in enumerate(values[:most], 1):
        slow += value > FLOOR
        if slow >= least:
            return values[:count], True
        if count - slow > most - least:
            return values[:count], False
    return values[:most], None
