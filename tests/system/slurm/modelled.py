# SPDX-License-Identifier: Apache-2.0
"""`nearmetal slurm launch|reclaim` on a node whose adapters are a model; Slurm and the rest are real.

modelled.py PLACE slurm ...: what the plugin of a site starts, instead of nearmetal. The model is
changed by another process (slurm_vfs.py), as a kernel is: it ends what it has begun when we are
killed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from nearmetal.cli.slurm import launch, reclaim
from nearmetal.cli.verbs import build_parser
from nearmetal.cli.view import View
from nearmetal.core.errors import HostError, NearmetalError
from nearmetal.host.vf import Ledger, VfHost
from nearmetal.host.vf.facts import Sysfs
from nearmetal.host.vf.kernel import Kernel
from nearmetal.host.vf.model import Link, VfSettings
from nearmetal.slurm.backend import ThisNode
from nearmetal.slurm.vfs import JobVfs


class FarKernel(Kernel):
    """A kernel over a socket."""

    def __init__(self, place: Path) -> None:
        super().__init__(Sysfs(place / "root"), carrier_s=0.0)
        self._socket = str(place / "kernel")

    def links(self) -> list[Link]:
        return [
            Link(**entry | {"vfs": tuple((n, VfSettings(**vf)) for n, vf in entry["vfs"])})
            for entry in self._call("links")
        ]

    def write(self, path: str, value: str) -> None:
        self._call("write", path, value)

    def set_up(self, index: int, *, up: bool) -> None:
        self._call("set_up", index, up)

    def set_vf(self, index: int, number: int, setting: str, value: Any) -> None:
        self._call("set_vf", index, number, setting, value)

    def load(self, module: str) -> None:
        self._call("load", module)

    def pause(self) -> None:
        """Nothing takes time here."""

    def _call(self, *words: object) -> Any:
        with socket.socket(socket.AF_UNIX) as there, there.makefile("rw") as stream:
            there.connect(self._socket)
            print(json.dumps(words), file=stream, flush=True)
            told = json.loads(stream.readline())
        if "error" in told:
            raise HostError(told["error"])
        return told["result"]


def main() -> int:
    place = Path(sys.argv[1], os.environ["SLURMD_NODENAME"])
    args = build_parser().parse_args(sys.argv[2:])
    view = View(as_json=args.json)
    ledger = Ledger(place / "ledger")
    vfs = JobVfs(lambda: VfHost(FarKernel(place), ledger, privileged=True), ledger.path)
    verb = {"launch": launch, "reclaim": reclaim}[sys.argv[3]]
    try:
        return verb(args, view, ThisNode(vfs=vfs))
    except NearmetalError as error:
        view.error(error)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
