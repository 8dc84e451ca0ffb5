# SPDX-License-Identifier: Apache-2.0
"""The tables of a move (docs/design/migration.md): states, events, and what may follow.

They are data, so that the C code can be compared with them: `as_names` gives a table in the form
that a program prints, with the names of the page in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class Word(Enum):
    """A word of a table; a set finds it quicker than other members of an Enum."""

    __hash__ = object.__hash__


_Row = TypeVar("_Row", bound=Word)
_Column = TypeVar("_Column", bound=Word)


class Way(Word):
    """How the packets of one direction go, as its sender sees it."""

    NETWORK = "network"
    JOINING = "joining"
    """There is a session in memory; packets still go over the network."""
    MEMORY = "memory"
    LEAVING = "leaving"
    """No packet enters the memory any more; MOVE is not sent yet."""
    COUNTING = "counting"
    """MOVE is sent; the reader's count is awaited, and nothing else is sent."""
    PAUSED = "paused"
    """The network is about to end, or has ended, for a while."""
    ENDED = "ended"


class Event(Word):
    """What changes a way."""

    MET = "met"
    """A handshake made a session in memory."""
    SAID = "said"
    """The packet MOVE was sent."""
    QUIESCED = "quiesced"
    """One of the two machines is asked to leave the memory."""
    LOST = "lost"
    """The lease of the reader's machine ended, or the own memory is not there any more."""
    COUNTED = "counted"
    """MOVED came: the reader left the memory and said how much it took."""
    PAUSE = "pause"
    """This side, or the other one, ends the use of the network for a while."""
    RESUMED = "resumed"
    """The network was opened again, and both sides know what arrived."""
    DOWN = "down"


WAYS: Mapping[tuple[Way, Event], Way] = {
    (Way.NETWORK, Event.MET): Way.JOINING,
    (Way.NETWORK, Event.PAUSE): Way.PAUSED,
    (Way.JOINING, Event.SAID): Way.MEMORY,
    (Way.JOINING, Event.QUIESCED): Way.NETWORK,
    (Way.JOINING, Event.LOST): Way.LEAVING,
    (Way.JOINING, Event.COUNTED): Way.NETWORK,
    (Way.MEMORY, Event.QUIESCED): Way.LEAVING,
    (Way.MEMORY, Event.LOST): Way.LEAVING,
    (Way.MEMORY, Event.COUNTED): Way.NETWORK,
    (Way.LEAVING, Event.SAID): Way.COUNTING,
    (Way.LEAVING, Event.COUNTED): Way.NETWORK,
    (Way.COUNTING, Event.COUNTED): Way.NETWORK,
    (Way.PAUSED, Event.RESUMED): Way.NETWORK,
    **{(way, Event.DOWN): Way.ENDED for way in Way if way is not Way.ENDED},
}


class Place(Word):
    """A machine in a move: the state of its part of the segment, and what follows it."""

    RUN = "run"
    QUIESCE = "quiesce"
    """The guest unit asks all endpoints to leave the memory."""
    FROZEN = "frozen"
    """All endpoints left it; the guest unit said so, and the devices may go."""
    PAUSING = "pausing"
    """The guest unit asks all endpoints to pause the network, whose device is to go."""
    AWAY = "away"
    """No memory, no network: the machine is under way."""
    STOPPED = "stopped"
    """Likewise, but nobody was asked: forced mode."""


class Order(Word):
    """What changes the place of a machine."""

    ASK = "ask"
    ACKNOWLEDGE = "acknowledge"
    PAUSE = "pause"
    CUT = "cut"
    ARRIVE = "arrive"
    GIVE_UP = "give up"
    STOP = "stop"


PLACES: Mapping[tuple[Place, Order], Place] = {
    (Place.RUN, Order.ASK): Place.QUIESCE,
    (Place.QUIESCE, Order.ACKNOWLEDGE): Place.FROZEN,
    (Place.QUIESCE, Order.GIVE_UP): Place.RUN,
    (Place.FROZEN, Order.PAUSE): Place.PAUSING,
    (Place.FROZEN, Order.GIVE_UP): Place.RUN,
    (Place.PAUSING, Order.CUT): Place.AWAY,
    (Place.AWAY, Order.ARRIVE): Place.RUN,
    (Place.RUN, Order.STOP): Place.STOPPED,
    (Place.QUIESCE, Order.STOP): Place.STOPPED,
    (Place.STOPPED, Order.ARRIVE): Place.RUN,
}


def as_names(table: Mapping[tuple[_Row, _Column], _Row]) -> list[tuple[str, str, str]]:
    """Return the table as sorted rows: state, event, next state."""
    return sorted(
        (state.value, event.value, after.value) for (state, event), after in table.items()
    )
