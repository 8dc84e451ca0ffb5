# SPDX-License-Identifier: Apache-2.0
"""Somebody at the meeting socket does not keep to the protocol, or keeps to another one.

Every such meeting is refused in words that both sides get to see, nobody crashes, and the messages
that were to go that way take the network.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from tests.system.faults.arena import Arena, exchange, open_all
from tests.system.faults.hello import (
    BYE,
    GO,
    LANE_READER_PROOF,
    MET,
    WELCOME,
    Greeting,
    Identity,
    Line,
    Window,
    impersonate,
    rundir_number,
    visit,
)
from tests.system.faults.peer import Peer

pytestmark = pytest.mark.system

LONG_MS = "60000"
"""Lease of an endpoint that does not notice that its socket was replaced."""


@contextmanager
def descriptor(kind: str) -> Iterator[int]:
    """Something that is no window."""
    fds: tuple[int, ...]
    if kind == "pipe":
        fds = os.pipe()
    elif kind == "file":
        with tempfile.TemporaryFile() as file:
            file.truncate(1 << 20)
            fds = (os.dup(file.fileno()),)
    else:
        fds = (os.open(kind, os.O_RDONLY),)
    try:
        yield fds[0]
    finally:
        for fd in fds:
            os.close(fd)


@dataclass(frozen=True)
class Wrong:
    """One way to get it wrong, and what must be said about it."""

    words: str
    greeting: Callable[[Greeting], Greeting] = lambda greeting: greeting
    window: Callable[[Identity], Window] = Window


GREETINGS = {
    "version": Wrong("layout version 5, not 4", lambda g: replace(g, version=5)),
    "magic": Wrong("not a nearmetal message", lambda g: replace(g, magic=1)),
    "features": Wrong("features 0x4", lambda g: replace(g, features=4)),
    "lane": Wrong("named lane 1 of 1", lambda g: replace(g, lane=1)),
    "unsealed": Wrong("not sealed", window=lambda who: Window(who, seals=0)),
    "half sealed": Wrong("not sealed", window=lambda who: Window(who, seals=0x1 | 0x2 | 0x4)),
    "truncated": Wrong("truncated", window=lambda who: Window(who, real_size=100)),
    "window version": Wrong("layout version 7", window=lambda who: Window(who, version=7)),
    "window features": Wrong("features 0x2", window=lambda who: Window(who, features=2)),
    "window magic": Wrong("no magic", window=lambda who: Window(who, magic=0)),
    "too short": Wrong("as long as", window=lambda who: Window(who, claimed_size=1 << 30)),
    "too many lanes": Wrong("number of lanes", window=lambda who: Window(who, nr_lanes=1 << 20)),
    "holes": Wrong("holes in its ring", window=lambda who: Window(who, sparse=True)),
    "overlap": Wrong("overlap", window=lambda who: Window(who, nr_lanes=4000)),
    "foreign": Wrong("belongs to another endpoint", lambda g: replace(g, who=Identity.random())),
    "place": Wrong(
        "belongs to another endpoint",
        lambda g: replace(g, who=replace(g.who, place=os.urandom(8))),
    ),
}


def test_wrong_visitors_are_turned_away_in_words(arena: Arena) -> None:
    a, b = arena.pair(LOG="info")
    exchange(a, b)
    before = b.fds()
    for name, wrong in GREETINGS.items():
        window = wrong.window(Identity.random()).at(rundir_number(b))
        hello = wrong.greeting(Greeting(window.who, Identity.of(b)))
        with visit(arena.segment, b) as line:
            line.send(hello.pack(), window.seal())
            assert wrong.words in line.farewell(), name
        window.close()
        assert wrong.words in b.log, name
    exchange(a, b, tag=20)
    assert b.fds() == before


@pytest.mark.parametrize("kind", ["pipe", "file", "/dev/null", "/proc/self/mem"])
def test_a_descriptor_that_is_no_window_is_refused(arena: Arena, kind: str) -> None:
    b = arena.peer("b")
    hello = Greeting(Identity.random(), Identity.of(b))
    with visit(arena.segment, b) as line, descriptor(kind) as fd:
        line.send(hello.pack(), fd)
        assert "not a memfd" in line.farewell()
    assert b.fds() > 0


def test_a_visitor_must_ask_for_the_right_endpoint(arena: Arena) -> None:
    b = arena.peer("b")
    window = Window(Identity.random()).at(rundir_number(b))
    window.seal()
    who = Identity.of(b)
    for wrong in (replace(who, place=os.urandom(8)), replace(who, ident=os.urandom(6)), window.who):
        with visit(arena.segment, b) as line:
            line.send(Greeting(window.who, wrong).pack(), window.fd)
            assert "it asked for another endpoint" in line.farewell()
    with visit(arena.segment, b) as line:
        line.send(Greeting(who, who).pack(), window.fd)
        assert "it has the identity of this endpoint" in line.farewell()
    window.close()


def test_messages_that_are_none_are_refused(arena: Arena) -> None:
    b = arena.peer("b")
    window = Window(Identity.random()).at(rundir_number(b))
    hello = Greeting(window.who, Identity.of(b)).pack()
    before = b.fds()
    wrong: list[tuple[bytes, tuple[int, ...]]] = [
        (b"x", ()),
        (os.urandom(300), ()),
        (hello[:-1], (window.fd,)),
        (hello + b"x", (window.fd,)),
        (hello, ()),
        (hello, (window.fd, window.fd)),
        (Greeting(window.who, kind=WELCOME).pack(), (window.fd,)),
        (Greeting(window.who, kind=MET).pack()[:8], ()),
    ]
    for data, fds in wrong:
        with visit(arena.segment, b) as line:
            line.send(data, *fds)
            assert line.farewell() != "(hung up without a word)"
    window.close()
    assert b.fds() == before


def test_a_visitor_that_shows_nothing_in_its_window_has_not_met(arena: Arena) -> None:
    b = arena.peer("b")
    window = Window(Identity.random()).at(rundir_number(b))
    with visit(arena.segment, b) as line:
        line.send(Greeting(window.who, Identity.of(b)).pack(), window.seal())
        welcome, fd = line.receive()
        assert Greeting.parse(welcome).kind == WELCOME
        os.close(fd)
        line.send_kind(MET)
        assert "only one side maps it" in line.farewell()
    window.close()


def test_a_visitor_that_jumps_a_step_is_turned_away(arena: Arena) -> None:
    b = arena.peer("b")
    window = Window(Identity.random()).at(rundir_number(b))
    with visit(arena.segment, b) as line:
        line.send(Greeting(window.who, Identity.of(b)).pack(), window.seal())
        line.receive()
        line.send_kind(GO)
        assert "out of turn" in line.farewell()
    window.close()


def test_visitors_that_say_nothing_keep_nobody_from_meeting(arena: Arena) -> None:
    a, b = arena.pair(CONNECT_MS="1000")
    with visit(arena.segment, b) as silent, visit(arena.segment, b):
        exchange(a, b)
        assert "NEARMETAL_CONNECT_MS" in silent.farewell()
    assert a.finish() == 0
    assert a.way_to(b)["channel"] == "shm"


def test_silent_visitors_leave_descriptors_to_the_program(arena: Arena) -> None:
    limit = 96
    b = arena.start("b", {}, prefix=("prlimit", f"--nofile={limit}:{limit}")).open()
    a = arena.peer("a").knows(b)
    b.knows(a)
    with contextlib.ExitStack() as silent:
        first = silent.enter_context(visit(arena.segment, b))
        for _ in range(2 * limit):
            silent.enter_context(visit(arena.segment, b))
        assert "no hello" in first.farewell()
        assert b.fds() < limit // 2
        exchange(a, b)
    assert a.finish() == 0
    assert a.way_to(b)["channel"] == "shm"


def test_silent_listeners_hold_up_no_send(arena: Arena) -> None:
    a = arena.peer("a", CONNECT_MS="4000")
    sound = arena.peer("sound").knows(a)
    silent = [arena.peer(f"b{number}", LEASE_MS=LONG_MS).knows(a) for number in range(6)]
    a.knows(sound, *silent)
    with contextlib.ExitStack() as listeners:
        for peer in silent:
            listeners.enter_context(impersonate(arena.segment, peer))
            a.tell("send", f"to-{peer.name}", peer.name, 1000, 1)
        exchange(a, sound)
        # Each of the silent ones still has time to answer.
        assert "no answer within" not in a.log
        for peer in silent:
            peer.post("recv", "r", "a", 1000, 1)
            assert peer.expect("done", "r", "recv")[2] == "good"
    assert a.finish() == 0
    assert a.way_to(sound)["channel"] == "shm"
    for peer in silent:
        assert a.way_to(peer)["channel"] == "net"
        assert "no answer within 4000 ms" in a.way_to(peer)["reason"]


# What somebody does who listens in the place of an endpoint: the visitor's hello, the line.
Impostor = Callable[[Greeting, Line, Window], None]


def answer(change: Callable[[Greeting], Greeting]) -> Impostor:
    def play(_hello: Greeting, line: Line, window: Window) -> None:
        line.send(change(Greeting(window.who, kind=WELCOME)).pack(), window.seal())

    return play


def answer_with_proof(hello: Greeting, line: Line, window: Window) -> None:
    window.prove(LANE_READER_PROOF, hello.challenge)  # in a window of its own
    line.send(Greeting(window.who, kind=WELCOME).pack(), window.seal())


def answer_without_window(_hello: Greeting, line: Line, window: Window) -> None:
    line.send(Greeting(window.who, kind=WELCOME).pack())


def answer_unsealed(hello: Greeting, line: Line, window: Window) -> None:
    window.prove(LANE_READER_PROOF, hello.challenge)
    line.send(Greeting(window.who, kind=WELCOME).pack(), window.fd)


def answer_as_somebody_else(_hello: Greeting, line: Line, window: Window) -> None:
    line.send(Greeting(Identity.random(), kind=WELCOME).pack(), window.seal())


def answer_with_noise(_hello: Greeting, line: Line, _window: Window) -> None:
    line.send(b"noise")


def hang_up(_hello: Greeting, line: Line, _window: Window) -> None:
    line.close()


def say_nothing(_hello: Greeting, _line: Line, _window: Window) -> None:
    pass


IMPOSTORS: dict[str, tuple[Impostor, str]] = {
    "version": (answer(lambda g: replace(g, version=9)), "layout version 9, not 4"),
    "features": (answer(lambda g: replace(g, features=2)), "features 0x2"),
    "window": (answer(lambda g: g), "belongs to another endpoint"),
    "proof": (answer_with_proof, "belongs to another endpoint"),
    "nothing": (answer_without_window, "no window came"),
    "seals": (answer_unsealed, "not sealed"),
    "identity": (answer_as_somebody_else, "another endpoint answers"),
    "noise": (answer_with_noise, "not a nearmetal message"),
    "silence": (say_nothing, "no answer within"),
    "hangup": (hang_up, "hung up during the handshake"),
}


def test_an_impostor_is_left_for_the_network(arena: Arena) -> None:
    b = arena.peer("b", LEASE_MS=LONG_MS)
    # Only one is to wait in vain; the others wait for us, and a busy machine takes its time.
    limits = dict.fromkeys(IMPOSTORS, "30000") | {"silence": "1000"}
    visitors = {name: arena.start(name, {"CONNECT_MS": limits[name]}) for name in IMPOSTORS}
    open_all(*visitors.values())
    b.knows(*visitors.values())
    with impersonate(arena.segment, b) as listener:
        for name, (impostor, words) in IMPOSTORS.items():
            a = visitors[name].knows(b)
            a.tell("send", "s", "b", 1000, 1)
            line = Line(listener.accept()[0])
            data, fd = line.receive()
            os.close(fd)
            window = Window(Identity.of(b))
            impostor(Greeting.parse(data), line, window)
            if impostor is not hang_up:
                assert words in line.farewell(), name
            window.close()
            line.close()
            b.post("recv", name, name, 1000, 1)
            assert b.expect("done", name, "recv")[2] == "good"
            expect_explained(a, b, words)


def expect_explained(a: Peer, b: Peer, words: str) -> None:
    assert a.finish() == 0
    assert a.way_to(b)["channel"] == "net"
    assert words in a.way_to(b)["reason"]
    warnings = [line for line in a.log_lines if "cannot be reached" in line]
    assert len(warnings) == 1, a.log
    assert words in warnings[0]


def test_a_refusal_is_passed_on_in_the_words_of_who_refused(arena: Arena) -> None:
    a, b = arena.pair(LEASE_MS=LONG_MS)
    with impersonate(arena.segment, b) as listener:
        a.tell("send", "s", "b", 1000, 1)
        line = Line(listener.accept()[0])
        os.close(line.receive()[1])
        words = b"I speak layout version 5\x1b[31m only"
        line.send(
            Greeting(Identity.of(b), version=5, kind=BYE).pack()[:8]
            + bytes(4)
            + words.ljust(180, b"\0")
        )
        line.close()
        b.post("recv", "r", "a", 1000, 1)
        assert b.expect("done", "r", "recv")[2] == "good"
    expect_explained(a, b, "it refused: I speak layout version 5?[31m only")
