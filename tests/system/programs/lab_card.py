# SPDX-License-Identifier: Apache-2.0
"""An igb of a lab's host that passes for a ConnectX-5 whose firmware has to be set up first.

Its VFs are igb's own and real. What the firmware is asked and told goes to stand-ins for NVIDIA's
tools, which do as their documentation says: settings and images are in force after a restart only.

Verbs: factory (as it left it), start (what a start of the card does; shows its identity in sysfs),
mlxconfig, mlxfwmanager and flint with their own arguments.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import fake_flint  # type: ignore[import-not-found]  # lies beside it in the guest
import fake_mlxconfig  # type: ignore[import-not-found]  # lies beside it in the guest

DEVICE = "0000:01:00.0"
SYSFS = Path("/sys/bus/pci/devices") / DEVICE
STATE = Path("/var/lib/lab")
CONFIG = STATE / "mlxconfig.json"
LEVEL = STATE / "firmware.json"
IMAGE = STATE / "ConnectX5.bin"
FACTORY = {"NUM_OF_VFS": "0", "SRIOV_EN": "0", "LINK_TYPE_P1": "1", "ATS_ENABLED": "0"}
OLD, NEW = "16.28.1002", "16.32.1010"
IGB_VFS = 7


def factory() -> int:
    CONFIG.write_text(json.dumps({DEVICE: {name: [v, v, v] for name, v in FACTORY.items()}}))
    LEVEL.write_text(json.dumps({DEVICE: [OLD, OLD, 0]}))
    IMAGE.write_text(f"{fake_flint.KIND} {NEW}\n")
    return 0


def start() -> int:
    fake_mlxconfig.reset(CONFIG)
    fake_flint.reset(LEVEL)
    config = json.loads(CONFIG.read_text())[DEVICE]
    offered = int(config["NUM_OF_VFS"][1]) if config["SRIOV_EN"][1] == "1" else 0
    shown = {"vendor": "0x15b3", "device": "0x1017", "sriov_totalvfs": str(min(offered, IGB_VFS))}
    place = Path("/run/lab")
    place.mkdir(exist_ok=True)
    for name, text in shown.items():
        (place / name).write_text(f"{text}\n")
        subprocess.run(["mount", "--bind", place / name, SYSFS / name], check=True, timeout=60)
    return 0


def main(verb: str, arguments: list[str]) -> int:
    if verb == "mlxconfig":
        os.environ["MLXCONFIG_STATE"] = str(CONFIG)
        return int(fake_mlxconfig.main(arguments))
    if verb in ("flint", "mlxfwmanager"):
        os.environ["FLINT_STATE"] = str(LEVEL)
        return int(fake_flint.main(verb, arguments))
    return {"factory": factory, "start": start}[verb]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
