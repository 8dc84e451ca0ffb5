# SPDX-License-Identifier: Apache-2.0
"""Attacks that write into the parts of others, as machines over one DAX region can.

Over two ivshmem devices the hypervisor drops these writes. Here integrity is by convention only.
"""

import mmap
import os
import random

from tests.system.faults.segment_machine import SLOTS_OFF, Machine
from tests.system.faults.segment_play import Turns, attack

WORDS_PER_TURN = 8
SPACE_OFF = 1 << 20


def whole(m: Machine) -> memoryview:
    """Return all words of the segment, to be written."""
    fd = os.open(m.path, os.O_RDWR)
    words = memoryview(mmap.mmap(fd, 0)).cast("Q")
    os.close(fd)
    return words


def scribble(words: memoryview, start: int, end: int) -> None:
    for _ in range(WORDS_PER_TURN):
        words[random.randrange(start, end) // 8] = random.choice((0, 1, random.getrandbits(64)))


@attack
def writes_tables_of_others(m: Machine) -> Turns:
    """Random words in the headers, slots and mailboxes of the machines of the job."""
    words = whole(m)
    while True:
        met = bool(m.learn())
        for part in (0, 1) if met else ():
            scribble(words, m.start_of(part), m.start_of(part) + SLOTS_OFF + 65536)
        yield met


@attack
def writes_windows_of_others(m: Machine) -> Turns:
    """Random words in the windows of the ranks: headers, lanes, rings and pool."""
    words = whole(m)
    while True:
        victims = m.victims() if m.learn() else []
        for one in victims:
            start = m.start_of(one.part) + one.window_off
            scribble(words, start, start + min(SPACE_OFF, one.window_size))
        yield len(victims)


@attack
def writes_the_host_page(m: Machine) -> Turns:
    """Random words in the page that only the host writes, after the ranks have met."""
    words = whole(m)
    while True:
        met = bool(m.learn())
        if met:
            scribble(words, 0, 128)
        yield met
