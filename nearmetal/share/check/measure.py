# SPDX-License-Identifier: Apache-2.0
"""The agent of `nearmetal check performance`: measures its node, and traffic with other agents.

One file, the standard library, Python 3.6 or later, as any user. It gets its text and then one
order per line on standard input, and answers each with one line of JSON and its number. At the end
of the input it ends at once, whatever it does. It opens no file to write. Each order has a limit of
time.

The first order has the node's address, on which the agent listens. If it is empty, or translated
on the way, the agent takes the address to which ssh has connected, and says so. Who connects must
first show the key of the order, which only the two agents of a pair get, and is answered with its
digest. Without it nothing else is sent: an agent may have named the address of another program.
"""

import hashlib
import hmac
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import contextmanager, suppress
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

VERSION = 1
COPIED = 16 << 20
"""Bytes of each buffer of a core: together they are larger than the caches that cores share."""

HASHED = 64 << 10
SMALL = 8
LARGE = 128 << 10
LEAST_MESSAGES = 3
WARM_UP = 10
LOOK_S = 0.1
"""Time between two looks at the clock and the input, while an order runs."""

STRANGER_S = 1.0
"""Time in which a caller must show the key."""

CALLERS = 64
"""Most callers that are heard at once. One more takes the place of the oldest."""

QUEUED = 1024
PING, LAST = b"\0" * SMALL, b"\1" * SMALL


class LateError(Exception):
    """The limit of an order is over."""


@contextmanager
def watched(seconds: float) -> Iterator[None]:
    """Bound what runs by a limit of time, and by the end of the input, which ends this program."""
    end = time.monotonic() + seconds

    def look(_number: int, _frame: Any) -> None:
        late = time.monotonic() >= end
        if late or input_has_ended():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise LateError if late else SystemExit

    signal.signal(signal.SIGALRM, look)
    try:
        signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def input_has_ended() -> bool:
    """Return whether no order follows, without a wait."""
    ready, _, _ = select.select([0], [], [], 0)
    buffer: Any = sys.stdin.buffer
    return bool(ready) and not buffer.peek(1)


def copies(seconds: float) -> Callable[[], float]:
    """Return a measurement of the GB/s that this core reads and writes."""
    source, target = memoryview(b"\1" * COPIED), memoryview(bytearray(COPIED))
    target[:] = source

    def measured() -> float:
        count, begin = 0, time.monotonic()
        while time.monotonic() - begin < seconds:
            target[:] = source
            count += 1
        return 2e-9 * COPIED * count / (time.monotonic() - begin)

    return measured


def hashes(seconds: float) -> Callable[[], float]:
    """Return a measurement of the MB/s of SHA-256 on data in the nearest cache."""
    data = b"\1" * HASHED

    def measured() -> float:
        count, begin = 0, time.monotonic()
        while time.monotonic() - begin < seconds:
            hashlib.sha256(data).digest()
            count += 1
        return 1e-6 * HASHED * count / (time.monotonic() - begin)

    return measured


def on_all_cores(prepare: Callable[[float], Callable[[], float]], seconds: float) -> float:
    """Return the sum of what one process for each core measures, all at the same time."""
    results, children = os.pipe(), []  # type: Any, Any
    start = os.pipe()
    try:
        for _ in os.sched_getaffinity(0):
            child = os.fork()
            if child == 0:
                one_core(prepare, seconds, results[1], start)
            children.append(child)
        os.close(start[1])
        os.close(results[1])
        start, results = (start[0], -1), (results[0], -1)
        rows = b""
        while True:
            piece = os.read(results[0], 1 << 16)
            if not piece:
                break
            rows += piece
        values = [float(row) for row in rows.split()]
        if len(values) != len(children):
            raise OSError("{} of {} cores measured".format(len(values), len(children)))
        return sum(values)
    finally:
        for number in (*start, *results):
            if number >= 0:
                os.close(number)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def one_core(
    prepare: Callable[[float], Callable[[], float]], seconds: float, result: int, start: Any
) -> None:
    """Measure in a process of its own, which ends here."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(seconds) + 10)
        measured = prepare(seconds)
        os.close(start[1])
        os.read(start[0], 1)  # its end: all are prepared
        os.write(result, "{!r}\n".format(measured()).encode())
    finally:
        os._exit(0)


def receive(link: socket.socket, view: memoryview) -> None:
    """Fill a buffer."""
    while view:
        count = link.recv_into(view)
        if not count:
            raise OSError("the other node has ended the connection")
        view = view[count:]


def ask(link: socket.socket, seconds: float) -> float:
    """Return the µs of half a round trip: the median of messages that this side begins."""
    answer = memoryview(bytearray(SMALL))
    times: List[float] = []
    end = time.monotonic() + seconds
    while len(times) < 2 * WARM_UP or time.monotonic() < end:
        begin = time.perf_counter()
        link.sendall(PING)
        receive(link, answer)
        times.append(time.perf_counter() - begin)
    link.sendall(LAST)
    return 5e5 * median(times[WARM_UP:])


def echo(link: socket.socket) -> None:
    """Answer each message, up to the last one."""
    buffer = memoryview(bytearray(SMALL))
    while True:
        receive(link, buffer)
        if buffer == LAST:
            return
        link.sendall(buffer)


def send(link: socket.socket, seconds: float) -> None:
    """Send large messages; the last one is marked."""
    message, sent, end = bytes(LARGE), 0, time.monotonic() + seconds
    while sent < LEAST_MESSAGES or time.monotonic() < end:
        link.sendall(message)
        sent += 1
    link.sendall(b"\1" + message[1:])
    receive(link, memoryview(bytearray(1)))


def take(link: socket.socket) -> float:
    """Return the MB/s of the messages after the first one."""
    buffer, count = memoryview(bytearray(LARGE)), 0
    receive(link, buffer)
    begin = time.monotonic()
    while not buffer[0]:
        receive(link, buffer)
        count += 1
    took = time.monotonic() - begin
    link.sendall(b"\1")
    return 1e-6 * LARGE * count / took


def latency(link: socket.socket, seconds: float, *, first: bool) -> float:
    """Return the latency of the messages that this side begins."""
    if not first:
        echo(link)
    value = ask(link, seconds)
    if first:
        echo(link)
    return value


def bandwidth(link: socket.socket, seconds: float, *, first: bool) -> float:
    """Return the bandwidth of the messages that this side receives."""
    if first:
        send(link, seconds)
    value = take(link)
    if not first:
        send(link, seconds)
    return value


OF_NODE = {"memory": copies, "processor": hashes}
OF_PAIR = {"latency": latency, "bandwidth": bandwidth}


def joined(order: Dict[str, Any], listener: socket.socket) -> socket.socket:
    """Return the connection with the other node of a pair."""
    key = str(order["key"]).encode()
    digest = hashlib.sha256(key).hexdigest().encode()
    if order.get("peer"):
        link = socket.create_connection((order["peer"][0], order["peer"][1]), order["limit"])
        link.sendall(key)
        answered = bytearray(len(digest))
        receive(link, memoryview(answered))
        if not hmac.compare_digest(answered, digest):
            raise OSError("another program listens at the address of the other node")
        return link
    link = caller_with(key, listener)
    link.setblocking(True)
    link.sendall(digest)
    return link


def caller_with(key: bytes, listener: socket.socket) -> socket.socket:
    """Return the connection of the caller that shows the key. No caller makes another one wait."""
    callers: Dict[socket.socket, Tuple[float, bytes]] = {}
    try:
        while True:
            first = min((end for end, _ in callers.values()), default=None)
            wait = None if first is None else max(0.0, first - time.monotonic())
            ready, _, _ = select.select([listener, *callers], [], [], wait)
            now = time.monotonic()
            for link, (end, before) in list(callers.items()):
                shown = before + (
                    next_piece(link, len(key) - len(before)) if link in ready else b""
                )
                callers[link] = (end, shown)
                if hmac.compare_digest(shown, key):
                    del callers[link]
                    return link
                has_ended = link in ready and shown == before
                if has_ended or len(shown) == len(key) or end <= now:
                    del callers[link]
                    link.close()
            if listener in ready:
                with suppress(BlockingIOError):  # it has gone already
                    callers[listener.accept()[0]] = (now + STRANGER_S, b"")
            if len(callers) > CALLERS:
                oldest = min(callers, key=lambda link: callers[link][0])
                del callers[oldest]
                oldest.close()
    finally:
        for link in callers:
            link.close()


def next_piece(link: socket.socket, most: int) -> bytes:
    """Return bytes of a connection that has some; none if it has ended."""
    try:
        return link.recv(most)
    except OSError:
        return b""


def measured(order: Dict[str, Any], listener: socket.socket) -> float:
    """Carry out an order."""
    seconds = float(order["seconds"])
    if order["measure"] in OF_NODE:
        return on_all_cores(OF_NODE[order["measure"]], seconds)
    with joined(order, listener) as link:
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return OF_PAIR[order["measure"]](link, seconds, first=bool(order.get("peer")))


def outcome(order: Dict[str, Any], listener: socket.socket) -> Dict[str, Any]:
    """Carry out an order within its limit; return its value, or why there is none."""
    try:
        with watched(float(order["limit"])):
            return {"value": measured(order, listener)}
    except LateError:
        return {"why": "no result in {:g} s".format(float(order["limit"]))}
    except OSError as error:
        return {"why": str(error.strerror or error)}


def answer(words: Dict[str, Any]) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def next_order() -> Optional[Dict[str, Any]]:
    """Return the next order; None at the end of the input."""
    line = sys.stdin.buffer.readline()
    return json.loads(line.decode()) if line else None


def listening(address: str) -> socket.socket:
    """Return a socket that listens on an address of this node, or on that of our login by ssh."""
    login = os.environ.get("SSH_CONNECTION", "").split()[2:3]
    places = [address, *login] if address else login
    if not places:
        raise OSError("the address of this node is not known")
    try:
        listener = bound(places[0])
    except OSError:
        if places[0] == places[-1]:
            raise
        listener = bound(places[-1])
    listener.listen(QUEUED)
    listener.setblocking(False)
    return listener


def bound(address: str) -> socket.socket:
    """Return a socket with an address of this node, and any port."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    return listener


def main() -> None:
    """Serve orders until the input ends."""
    order = next_order()
    if order is None:
        return
    with listening(str(order["address"])) as listener:
        address, port = listener.getsockname()[:2]
        software = "Python {}.{}.{}".format(*sys.version_info[:3])
        answer({"version": VERSION, "address": address, "port": port, "software": software})
        while True:
            order = next_order()
            if order is None:
                return
            answer(dict(outcome(order, listener), number=order.get("number")))


if __name__ == "__main__":
    main()
