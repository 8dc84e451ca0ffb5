# SPDX-License-Identifier: Apache-2.0
"""The protocol of a move: no interleaving loses, doubles or reorders a packet, or gets stuck.

The model is in `moving_tables.py` (what may follow what), `moving_model.py` (states) and
`moving_steps.py`; docs/design/migration.md explains it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.python.moving_explorer import _stuck, explore
from tests.python.moving_model import Fault, Scenario
from tests.python.moving_tables import (
    PLACES,
    WAYS,
    Event,
    Order,
    Place,
    Way,
    as_names,
)

MESSAGE = ("message",)

THERE_AND_BACK = Scenario(
    hosts=(1, 1, 2),
    moves=((2, 1), (), ()),
    programs={(0, 1): ("put", "atomic"), (2, 1): MESSAGE},
    receives=(None,),
)
ALONE = replace(THERE_AND_BACK, programs={(0, 1): ("atomic",)}, receives=())
FAR_TO_NEAR = Scenario(
    hosts=(1, 2, 2),
    moves=((2,), (), ()),
    programs={(0, 1): ("message", "message")},
    receives=(None,),
    late_receives=(0,),
)
ANSWERED = Scenario(
    hosts=(1, 1, 2),
    moves=((2,), (), ()),
    programs={(0, 1): MESSAGE, (1, 0): MESSAGE},
    receives=(None,),
)
BOTH_LEAVE = Scenario(
    hosts=(1, 1, 2), moves=((2,), (2,), ()), programs={(0, 1): MESSAGE}, receives=(0,)
)
APART = Scenario(
    hosts=(1, 1, 2),
    moves=((2,), (3,), ()),
    programs={(0, 1): ("atomic",), (2, 1): MESSAGE},
    receives=(None,),
)
GIVEN_UP = Scenario(
    hosts=(1, 1, 2),
    moves=((2,), (), ()),
    programs={(0, 1): ("put", "message"), (2, 1): MESSAGE},
    receives=(None,),
    late_receives=(None,),
    gives_up=True,
)
DIES = Scenario(
    hosts=(1, 1, 2),
    moves=((2,), (), ()),
    programs={(0, 1): ("atomic",), (2, 1): MESSAGE, (1, 2): MESSAGE},
    receives=(None,),
    deaths=1,
)
FORCED = Scenario(
    hosts=(1, 1, 2),
    moves=((2,), (), ()),
    programs={(0, 1): ("atomic",), (2, 1): MESSAGE},
    receives=(None,),
    stops=1,
    keeps=True,
)
FORCED_BOTH_WAYS = replace(
    FORCED, programs={(0, 1): ("message", "message"), (1, 0): MESSAGE}, receives=(None, 0)
)
WITHOUT_COPIES = replace(FORCED, keeps=False, may_fail=True)
HOME_AND_BACK = replace(ALONE, homes=True)
NEW_HOME = replace(FAR_TO_NEAR, homes=True)
TWO_HOMES = replace(BOTH_LEAVE, homes=True)
HOME_GIVEN_UP = replace(GIVEN_UP, homes=True, programs={(0, 1): MESSAGE}, late_receives=())
MOVER_DIES = replace(DIES, homes=True)

SMALL = {
    "there and back": THERE_AND_BACK,
    "there and back, alone": ALONE,
    "far to near": FAR_TO_NEAR,
    "near to far": ANSWERED,
    "both leave for one host": BOTH_LEAVE,
    "both leave for two hosts": APART,
    "given up at any phase": GIVEN_UP,
    "the mover dies at any step": DIES,
    "forced": FORCED,
    "forced, in both directions": FORCED_BOTH_WAYS,
    "forced, and the network kept no copies": WITHOUT_COPIES,
    "another segment, there and back": HOME_AND_BACK,
    "another segment, far to near": NEW_HOME,
    "another segment, both leave for one host": TWO_HOMES,
    "another segment, given up at any phase": HOME_GIVEN_UP,
    "another segment, the mover dies at any step": MOVER_DIES,
}
MORE = ("message", "atomic")
LARGE = {
    "far to near and back": replace(
        FAR_TO_NEAR, moves=((2, 1), (), ()), programs={(0, 1): MESSAGE}, late_receives=()
    ),
    "both are stopped": replace(
        BOTH_LEAVE, stops=2, keeps=True, may_fail=True, programs={}, receives=()
    ),
    "there and back": replace(
        THERE_AND_BACK,
        programs={(0, 1): ("put", "atomic", "message"), (2, 1): MESSAGE},
        late_receives=(None,),
    ),
    "both leave for one host": replace(
        BOTH_LEAVE, programs={(0, 1): ("atomic",), (2, 1): MESSAGE}, receives=(None,)
    ),
    "given up twice": replace(
        GIVEN_UP,
        moves=((2, 2), (), ()),
        programs={(0, 1): ("atomic",), (2, 1): MESSAGE},
        late_receives=(),
    ),
    "the mover dies at any step": replace(
        DIES, programs={(0, 1): MORE, (2, 1): MESSAGE, (1, 2): MESSAGE}, late_receives=(None,)
    ),
    "another segment, far to near and back": replace(
        NEW_HOME, moves=((2, 1), (), ()), programs={(0, 1): MESSAGE}, late_receives=()
    ),
    "another segment, two change hosts": Scenario(
        hosts=(1, 2, 2),
        moves=((2,), (1,), ()),
        programs={},
        homes=True,
    ),
    "another segment, given up": replace(GIVEN_UP, homes=True),
    "another segment, forced": replace(FORCED, homes=True),
    "forced": replace(FORCED, programs={(0, 1): MORE, (2, 1): MESSAGE}, late_receives=(None,)),
}

FLAWS = {
    Fault.UNCOUNTED: (FORCED_BOTH_WAYS, "lost"),
    Fault.EARLY_LEAVE: (ALONE, "writes into its window after FROZEN"),
    Fault.EARLY_ACKNOWLEDGE: (ALONE, "writes into its window after FROZEN"),
    Fault.UNDRAINED_NETWORK: (FAR_TO_NEAR, "too early"),
    Fault.STALE_GENERATION: (ALONE, "twice"),
    Fault.DOUBLE_REPLAY: (FORCED_BOTH_WAYS, "twice"),
    Fault.OLD_OWNER: (FORCED_BOTH_WAYS, "never"),
    Fault.NO_REPLAY: (FORCED_BOTH_WAYS, "too early, or one before it is lost"),
    Fault.IMPATIENT: (FORCED_BOTH_WAYS, "too early"),
    Fault.UNANSWERED_PAUSE: (ALONE, "are lost"),
    Fault.DEAF_PAUSE: (ANSWERED, "are lost"),
    Fault.FORGOTTEN_JOINER: (ALONE, "pause in state joining"),
    Fault.NO_RETURN: (GIVEN_UP, "the move of A does not end"),
    Fault.HASTY_LEASE: (FORCED_BOTH_WAYS, "are lost"),
    Fault.LOST_ANSWERS: (ALONE, "1 atomics, 1 done, 0 known"),
    Fault.KEPT_SEGMENT: (HOME_AND_BACK, "A has a segment mapped whose device goes"),
    Fault.HASTY_GIVE_UP: (HOME_GIVEN_UP, "A gives its segment up amid a session"),
    Fault.UNTOLD_HOME: (NEW_HOME, "never finds its best way"),
    Fault.ONE_HOME: (HOME_AND_BACK, "never finds its best way"),
    Fault.FINAL_REFUSAL: (NEW_HOME, "A never finds its best way"),
    Fault.LATE_HOME: (TWO_HOMES, "are lost"),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_interleaving(name: str) -> None:
    found = explore(SMALL[name])
    assert not found.problem, "\n".join((found.problem, *found.trace))
    assert found.nr_states > 500
    assert found.nr_ends


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE)
def test_more_packets(name: str) -> None:
    found = explore(LARGE[name])
    assert not found.problem, "\n".join((found.problem, *found.trace))


@pytest.mark.parametrize("fault", FLAWS, ids=lambda fault: fault.name.lower())
def test_a_broken_rule_is_found(fault: Fault) -> None:
    scenario, words = FLAWS[fault]
    assert scenario in SMALL.values()
    found = explore(replace(scenario, faults=frozenset({fault})))
    # `pytest -rP` shows the shortest way to the damage.
    print(f"If {fault.value}:", *found.trace, found.problem, sep="\n  ")  # noqa: T201 - as above
    assert words in found.problem
    assert found.trace


def test_every_rule_is_broken_by_a_test() -> None:
    assert set(FLAWS) == set(Fault)


def test_two_new_addresses_in_one_wave_get_lost() -> None:
    found = explore(replace(BOTH_LEAVE, new_addresses=True))
    assert "never" in found.problem
    one = replace(BOTH_LEAVE, new_addresses=True, moves=((2,), (), ()))
    assert not explore(one).problem


def test_a_pair_that_lost_bytes_ends_with_an_error() -> None:
    assert "are lost" in explore(replace(WITHOUT_COPIES, may_fail=False)).problem


def reachable(table: dict[tuple[Way, Event], Way]) -> set[Way]:
    seen = {Way.NETWORK}
    while more := {after for (way, _), after in table.items() if way in seen} - seen:
        seen |= more
    return seen


def test_tables() -> None:
    assert reachable(dict(WAYS)) == set(Way)
    assert {event for _, event in WAYS} == set(Event)
    assert {place for place, _ in PLACES} == set(Place)
    assert {order for _, order in PLACES} == set(Order)
    assert not [key for key in WAYS if key[0] is Way.ENDED]


def test_tables_as_names() -> None:
    assert ("memory", "quiesced", "leaving") in as_names(WAYS)
    assert ("away", "arrive", "run") in as_names(PLACES)


def test_an_end_that_cannot_be_reached_is_found() -> None:
    """Otherwise a model whose steps turn in circles would pass."""
    assert _stuck([[1], [2], [1], []], [3]) == 0
    assert _stuck([[1, 3], [2], [1], []], [3]) == 1
    assert _stuck([[1, 3], [0], [], []], [2, 3]) == -1
