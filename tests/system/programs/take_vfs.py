# SPDX-License-Identifier: Apache-2.0
"""Runs as root on a host of VMs: takes or gives back VFs for nodes of a cluster, tells in JSON.

take_vfs.py take|give STATE-DIRECTORY REQUEST-JSON NODE...
"""

import json
import sys
from dataclasses import asdict

from nearmetal.core.errors import NearmetalError
from nearmetal.host.vf import Owner, this_machine
from nearmetal.host.vf.request import VfRequest


def main() -> int:
    verb, state, request, *nodes = sys.argv[1:]
    host = this_machine()
    found: list[object] = []
    try:
        for node in nodes:
            owner = Owner(kind="cluster", name="demo", node=node, state=state)
            if verb == "take":
                found.append(asdict(host.allocate(VfRequest.model_validate_json(request), owner)))
            else:
                found.append(host.release(owner))
    except NearmetalError as error:
        json.dump({"error": error.message, "hint": error.hint}, sys.stdout)
        return 1
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
