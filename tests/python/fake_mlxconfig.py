# SPDX-License-Identifier: Apache-2.0
"""A stand-in for mlxconfig: settings change for the next boot, and count after a reset.

As NVIDIA's documentation and mstflint's source have it: `query` prints them (with -e three columns),
`-y set` changes what comes next, an unknown parameter or device is an error. A parameter of HIDDEN
is unknown while its opener has another value: its value of the next boot, as mstflint evaluates it,
or with MLXCONFIG_OPENS=reset the value that runs. State: a JSON file named by MLXCONFIG_STATE,
device -> parameter -> [default, current, next].
"""

import json
import os
import sys
from pathlib import Path

NAMED = {
    "SRIOV_EN": {"0": "False(0)", "1": "True(1)"},
    "ADVANCED_PCI_SETTINGS": {"0": "False(0)", "1": "True(1)"},
    "FORCE_ETH_PCI_SUBCLASS": {"0": "False(0)", "1": "True(1)"},
    "LINK_TYPE_P1": {"1": "IB(1)", "2": "ETH(2)"},
    "LINK_TYPE_P2": {"1": "IB(1)", "2": "ETH(2)"},
}


HIDDEN = {
    "FORCE_ETH_PCI_SUBCLASS": ("ADVANCED_PCI_SETTINGS", "1"),
    "MAX_ACC_OUT_READ": ("ADVANCED_PCI_SETTINGS", "1"),
}


def listed(settings: dict[str, list[str]], opens: str) -> dict[str, list[str]]:
    """The parameters that the tool lists."""
    place = 1 if opens == "reset" else 2
    found = {}
    for name, values in settings.items():
        opener, needed = HIDDEN.get(name, ("", ""))
        if not opener or settings.get(opener, ["", "", ""])[place] == needed:
            found[name] = values
    return found


def reset(state: Path) -> None:
    """What a reset of the card does."""
    found = json.loads(state.read_text())
    for device in found.values():
        for values in device.values():
            values[1] = values[2]
    state.write_text(json.dumps(found))


def main(arguments: list[str]) -> int:
    state = Path(os.environ["MLXCONFIG_STATE"])
    found = json.loads(state.read_text())
    device = arguments[arguments.index("-d") + 1]
    write = sys.stdout.write
    if device not in found:
        write(f"-E- Failed to open the device: {device}\n")
        return 3
    opens = os.environ.get("MLXCONFIG_OPENS", "set")
    settings = listed(found[device], opens)
    if arguments[-1] == "query":
        write("\nDevice #1:\n----------\n\nDevice type:    ConnectX5\n")
        write(f"Device:         {device}\n\n")
        columns = ("Default", "Current", "Next Boot") if "-e" in arguments else ("Next Boot",)
        write(f"{'Configurations:':52}{''.join(f'{c:21}' for c in columns).rstrip()}\n")
        for name, values in settings.items():
            shown = [NAMED.get(name, {}).get(v, v) for v in values][-len(columns) :]
            mark = "*" if values[1] != values[2] else " "
            cells = "".join(v.ljust(20) + " " for v in shown).rstrip()
            write(f"{mark}       {name:44}{cells}\n")
        return 0
    if "set" not in arguments or "-y" not in arguments:
        write("-E- this needs a person to answer\n")
        return 1
    changes = dict(word.split("=") for word in arguments[arguments.index("set") + 1 :])
    for name, value in changes.items():
        if name not in settings:
            write(f"-E- The Device doesn't support {name} parameter\n")
            return 3
        settings[name][2] = value
    state.write_text(json.dumps(found))
    write("Applying... Done!\n-I- Please reboot machine to load new configurations.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
