# SPDX-License-Identifier: Apache-2.0
"""Attacks of a hostile machine on an MPI job of other machines, through a segment.

usage: python -m tests.system.faults.segment_attacks FILE STOP NAME[@PART]...

Each attack writes only the part of its own machine. It is a generator: every turn does a little and
yields how much it did. All attacks run by turns until the file STOP is there. The last line of the
output is JSON: `done`, and `attacks` with the number for each name.
"""

import json
import sys
import time
from pathlib import Path

import tests.system.faults.segment_claims
import tests.system.faults.segment_letters
import tests.system.faults.segment_rings
import tests.system.faults.segment_vandals  # noqa: F401
from tests.system.faults.segment_machine import Machine
from tests.system.faults.segment_play import ATTACKS

LAST_S = 120
TURN_S = 0.001


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(path: str, stop: Path, names: list[str]) -> None:
    turns, counts = {}, dict.fromkeys((name.partition("@")[0] for name in names), 0)
    machines = []
    for place, text in enumerate(names):
        name, _, part = text.partition("@")
        machine = Machine(path, int(part or 2 + place))
        machines.append(machine)
        turns[name] = ATTACKS[name](machine)
    say("ready")
    until = time.monotonic() + LAST_S
    while not stop.exists() and time.monotonic() < until:
        for name, attack_ in turns.items():
            counts[name] += next(attack_)
        for machine in machines:
            machine.turn()
        time.sleep(TURN_S)
    say(json.dumps({"done": sum(counts.values()), "attacks": counts}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
