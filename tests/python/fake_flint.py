# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for flint and mlxfwmanager: an image is stored when it is burnt, and runs after a reset.

As mstflint's source has it (flint/subcommands.cpp, mlxfwupdate/mlnx_dev.cpp): both name the image in
the flash first, and the one that runs only where that is another. The first argument is the tool's
name. State: a JSON file named by FLINT_STATE, device -> [running, stored, number of burns].
"""

import json
import os
import sys
from pathlib import Path

KIND = "ConnectX5"
"""An image of a file is this word and its version."""


def reset(state: Path) -> None:
    """What a reset of the cards does."""
    found = json.loads(state.read_text())
    for levels in found.values():
        levels[0] = levels[1]
    state.write_text(json.dumps(found))


def mlxfwmanager(cards: dict[str, list[str]]) -> int:
    write = sys.stdout.write
    write("Querying Mellanox devices firmware ...\n\n")
    for number, (device, (running, stored, *_)) in enumerate(cards.items(), 1):
        write(
            f"Device #{number}:\n----------\n\n  Device Type:      {KIND}\n"
            f"  PSID:             MT_0000000008\n  PCI Device Name:  {device}\n"
            f"  Versions:         Current        Available\n     FW             {stored}     N/A\n"
        )
        if running != stored:
            write(f"     FW (Running)   {running}     N/A\n")
        write(
            "     PXE            3.6.0502       N/A\n\n  Status:           No matching image found\n"
        )
    return 0


def flint(state: Path, arguments: list[str]) -> int:
    cards = json.loads(state.read_text())
    write = sys.stdout.write
    option, device, *rest = arguments
    if option != "-d" or device not in cards:
        write(f"-E- Cannot open Device: {device}. No such file or directory.\n")
        return 1
    running, stored, burns = cards[device]
    if rest == ["query"]:
        write(f"Image type:            FS4\nFW Version:            {stored}\n")
        if running != stored:
            write(f"FW Version(Running):   {running}\n")
        write("FW Release Date:       28.10.2021\nPSID:                  MT_0000000008\n")
        return 0
    if len(rest) != 4 or rest[0] != "-i" or rest[2:] != ["-y", "burn"]:
        write(f"-E- {' '.join(arguments)}\n")
        return 1
    kind, version = Path(rest[1]).read_text().split()
    if kind != KIND:
        write(f"-E- {kind} is no image for this device\n")
        return 1
    cards[device] = [running, version, burns + 1]
    state.write_text(json.dumps(cards))
    write("-I- To load new FW run mlxfwreset or reboot machine.\n")
    return 0


def main(tool: str, arguments: list[str]) -> int:
    state = Path(os.environ["FLINT_STATE"])
    if tool == "mlxfwmanager":
        return mlxfwmanager(json.loads(state.read_text()))
    return flint(state, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
