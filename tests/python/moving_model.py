# SPDX-License-Identifier: Apache-2.0
"""A model of endpoints whose machines move (docs/design/migration.md): its states.

Each machine has one endpoint. A step is what the C code does under one lock, or one store that
others see. The network keeps the order of a pair, or loses what is under way when it is cut. The
handshake in memory and the one that opens the network again are one step each: what they say cannot
change while they run. The steps are in `moving_steps.py`; `moving_explorer.py` takes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.python.moving_tables import PLACES, WAYS, Event, Order, Place, Way

NAMES = "ABC"
NR = len(NAMES)
PEERS = tuple(tuple(y for y in range(NR) if y != x) for x in range(NR))
RING = 2
"""Packets that a ring holds."""


class Fault(Enum):
    """Rules of the protocol, each broken on purpose."""

    UNCOUNTED = "the reader leaves the memory without taking the rest, and nothing is replayed"
    EARLY_LEAVE = "the endpoint leaves its window before its readers have taken all"
    EARLY_ACKNOWLEDGE = "the guest unit says FROZEN before the endpoint has left"
    UNDRAINED_NETWORK = "the reader takes from memory before the network is drained"
    STALE_GENERATION = "the reader accepts the window of an earlier generation"
    DOUBLE_REPLAY = "the network replays what had arrived, and the receiver does not look"
    OLD_OWNER = "the writer goes on in memory although the lease ended and it heard so"
    NO_REPLAY = "the writer does not replay what the reader left in the ring"
    IMPATIENT = "the writer sends over the network before it replays what the reader left"
    UNANSWERED_PAUSE = "the mover cuts the network before the answer to its PAUSE"
    DEAF_PAUSE = "the peer answers PAUSE and goes on sending"
    FORGOTTEN_JOINER = "the endpoint leaves although a peer has a session to it"
    NO_RETURN = "an endpoint that had left stays without memory after the move is given up"
    HASTY_LEASE = "the reader ends the lease without taking the rest"
    LOST_ANSWERS = "an answer that waits for a channel is dropped when the channel changes"
    KEPT_SEGMENT = "the devices go although the endpoint has not given up the segment"
    HASTY_GIVE_UP = "the endpoint gives up the segment without a look whether it came back to it"
    UNTOLD_HOME = "the endpoint does not say its new home"
    ONE_HOME = "the endpoint says its home after its first move only"
    FINAL_REFUSAL = "a call that was refused is not repeated when the peer has heard the home"
    LATE_HOME = "HOME is said behind the answer to PAUSE"


class BrokenError(Exception):
    """A promise of the protocol does not hold."""


class Packet(NamedTuple):
    number: int
    """In the stream from one endpoint to another, over all channels."""
    kind: str


class Move(NamedTuple):
    session: int
    to_memory: bool


class Moved(NamedTuple):
    session: int


class Pause(NamedTuple):
    is_answer: bool


class Home(NamedTuple):
    host: int
    """Whose segment has the endpoint since its last move."""


Item = Packet | Move | Moved | Pause | Home


class Stream(NamedTuple):
    """From one endpoint to another."""

    way: Way = Way.NETWORK
    from_memory: bool = False
    """The reader takes from memory; otherwise from the network."""
    session: int = 0
    """Number of sessions in memory so far."""
    is_open: bool = False
    """The last session stands: the reader has not reported its end."""
    ring: tuple[Packet, ...] = ()
    """Published in memory and not taken."""
    is_gone: bool = False
    """The writer's memory stayed behind: it cannot replay."""
    wire: tuple[Item, ...] = ()
    """Under way on the network."""
    kept: tuple[Item, ...] = ()
    """Cut off, and to be replayed."""
    owed: tuple[Item, ...] = ()
    """To be said when the network is open again."""
    is_lost: bool = False
    """Something was cut off that its sender had not kept."""
    asked: bool = False
    answered: bool = False
    answers: tuple[str, ...] = ()
    programmed: int = 0
    sent: int = 0
    taken: int = 0
    home: int = 0
    """Where the receiver looks for the sender in memory; only with `Scenario.homes`, as the next."""
    is_home_due: bool = False
    is_refused: bool = False
    """For good; only for FINAL_REFUSAL."""
    past: tuple[Packet, ...] = ()
    """What lies in the bytes of the window; only for STALE_GENERATION."""
    last: Packet | None = None
    """The packet taken last from the network; only for DOUBLE_REPLAY."""


class Machine(NamedTuple):
    host: int
    place: Place = Place.RUN
    mapped: bool = True
    """It may use the memory: its slot is in RUN."""
    holds: bool = True
    """Its process has the segment; only with `Scenario.homes`, as the next four."""
    is_described: bool = True
    """The description of the segment is in its place."""
    is_deciding: bool = False
    """The endpoint saw no description, and is about to give up the segment."""
    home: int = 0
    """The host whose segment it had last."""
    nr_homes: int = 0
    """Segments found; only for ONE_HOME."""
    alive: bool = True
    moves: tuple[int, ...] = ()
    """Hosts to move to."""
    can_give_up: bool = False
    is_stranger: bool = False
    """It has an address that its peers do not know."""


class Inbox(NamedTuple):
    """Receives of B, by the endpoint that they name; None: any."""

    posted: tuple[int | None, ...] = ()
    unposted: tuple[int | None, ...] = ()
    unexpected: tuple[tuple[int, int], ...] = ()
    results: int = 0
    """Atomics that A knows to be done."""
    added: int = 0
    """Atomics that were done."""


class State(NamedTuple):
    machines: tuple[Machine, ...]
    streams: tuple[Stream, ...]
    """By sender, then by receiver."""
    links: tuple[str, ...]
    """Of each pair, by `link_of`: "up", "cut", "ended" (in order: one died), "error"."""
    inbox: Inbox
    deaths: int = 0
    """That may still happen."""
    stops: int = 0


@dataclass(frozen=True)
class Scenario:
    """What may happen."""

    hosts: tuple[int, int, int]
    moves: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    programs: dict[tuple[int, int], tuple[str, ...]]
    receives: tuple[int | None, ...] = ()
    late_receives: tuple[int | None, ...] = ()
    gives_up: bool = False
    deaths: int = 0
    stops: int = 0
    keeps: bool = False
    """Senders keep what the network has not delivered."""
    may_fail: bool = False
    """A pair may end with an error."""
    new_addresses: bool = False
    homes: bool = False
    """An endpoint gives its segment up, attaches in another one, and says so to its peers. Without:
    it keeps its segment until the devices go, and each peer knows where it is."""
    faults: frozenset[Fault] = frozenset()

    def start(self) -> State:
        machines = tuple(
            Machine(
                host,
                moves=moves,
                can_give_up=self.gives_up and bool(moves),
                home=host if self.homes else 0,
            )
            for host, moves in zip(self.hosts, self.moves, strict=True)
        )
        near = [(x, y) for x in range(NR) for y in PEERS[x] if self.hosts[x] == self.hosts[y]]
        memory = Stream(Way.MEMORY, from_memory=True, session=1, is_open=True)
        streams = tuple(
            (memory if divmod(i, NR) in near else Stream())._replace(home=machines[i // NR].home)
            for i in range(NR * NR)
        )
        inbox = Inbox(self.receives, self.late_receives)
        return State(machines, streams, ("up",) * NR, inbox, self.deaths, self.stops)


def link_of(x: int, y: int) -> int:
    """The place of a pair: that of the endpoint that is not in it."""
    return NR - x - y


def runs(state: State, x: int) -> bool:
    machine = state.machines[x]
    return machine.alive and machine.place not in {Place.AWAY, Place.STOPPED}


def is_up(state: State, x: int, y: int) -> bool:
    return state.links[link_of(x, y)] == "up"


def is_quiet(state: State, *endpoints: int) -> bool:
    """No machine of these is to leave its memory."""
    return all(state.machines[x].place is Place.RUN for x in endpoints)


class World:
    """A state that a step changes."""

    def __init__(self, state: State, scenario: Scenario) -> None:
        self.scenario = scenario
        self.machines = list(state.machines)
        self.streams = list(state.streams)
        self.links = list(state.links)
        self.inbox, self.deaths, self.stops = state.inbox, state.deaths, state.stops

    def state(self) -> State:
        return State(
            tuple(self.machines),
            tuple(self.streams),
            tuple(self.links),
            self.inbox,
            self.deaths,
            self.stops,
        )

    def breaks(self, fault: Fault) -> bool:
        return fault in self.scenario.faults

    def stream(self, x: int, y: int) -> Stream:
        return self.streams[x * NR + y]

    def change(self, x: int, y: int, **fields: object) -> None:
        self.streams[x * NR + y] = self.stream(x, y)._replace(**fields)  # type: ignore[arg-type]

    def on_way(self, x: int, y: int, event: Event) -> None:
        way = self.stream(x, y).way
        if (way, event) not in WAYS:
            raise BrokenError(f"{NAMES[x]} to {NAMES[y]}: {event.value} in state {way.value}")
        self.change(x, y, way=WAYS[way, event])

    def order(self, x: int, order: Order, **fields: object) -> None:
        machine = self.machines[x]
        after = PLACES[machine.place, order]
        self.machines[x] = machine._replace(place=after, **fields)  # type: ignore[arg-type]

    def put_on_wire(self, x: int, y: int, *items: Item) -> None:
        """Send, or note what is to be sent when the network is open again."""
        stream = self.stream(x, y)
        if self.links[link_of(x, y)] == "up":
            self.change(x, y, wire=stream.wire + items)
        else:
            self.change(x, y, owed=stream.owed + items)

    def deliver(self, x: int, y: int, packet: Packet) -> None:
        stream = self.stream(x, y)
        if packet.number != stream.taken:
            how = "twice" if packet.number < stream.taken else "too early, or one before it is lost"
            raise BrokenError(f"packet {packet.number} from {NAMES[x]} arrives at {NAMES[y]} {how}")
        self.change(x, y, taken=stream.taken + 1)
        back = self.stream(y, x)
        if packet.kind == "put":
            self.change(y, x, answers=(*back.answers, "ack"))
        elif packet.kind == "atomic":
            self.inbox = self.inbox._replace(added=self.inbox.added + 1)
            self.change(y, x, answers=(*back.answers, "result"))
        elif packet.kind == "result":
            self.inbox = self.inbox._replace(results=self.inbox.results + 1)
        elif packet.kind == "message" and y == 1:
            self.match((x, packet.number))

    def match(self, message: tuple[int, int]) -> None:
        inbox, (source, _) = self.inbox, message
        if any(waiting[0] == source for waiting in inbox.unexpected):
            fits = False
        else:
            fits = any(named in {None, source} for named in inbox.posted)
        if not fits:
            self.inbox = inbox._replace(unexpected=(*inbox.unexpected, message))
            return
        at = next(i for i, named in enumerate(inbox.posted) if named in {None, source})
        self.inbox = inbox._replace(posted=inbox.posted[:at] + inbox.posted[at + 1 :])

    def take_rest(self, x: int, y: int) -> None:
        """Y takes what X has published in memory."""
        for packet in self.stream(x, y).ring:
            self.deliver(x, y, packet)
        self.change(x, y, ring=())

    def report(self, x: int, y: int) -> None:
        """Y leaves the window of X, and says how much it took."""
        stream = self.stream(x, y)
        self.change(x, y, from_memory=False, is_open=False)
        self.put_on_wire(y, x, Moved(stream.session))

    def end(self, x: int, y: int, how: str) -> None:
        self.links[link_of(x, y)] = how
        for a, b in ((x, y), (y, x)):
            sent = self.stream(a, b).sent
            self.streams[a * NR + b] = Stream(Way.ENDED, session=0, sent=sent)
