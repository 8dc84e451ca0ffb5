# SPDX-License-Identifier: Apache-2.0
"""Adapters for the nodes of a Slurm site: models of a kernel, which outlive who changes them."""

from __future__ import annotations

import contextlib
import json
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nearmetal.core.errors import HostError
from nearmetal.host.vf import Ledger
from tests.python.sriov_tree import FakeKernel, Tree
from tests.system.local import ROOT

LAUNCHER = """\
#!/bin/sh
PYTHONPATH={root} exec {python} {root}/tests/system/slurm/modelled.py {place} "$@"
"""


class ModelNode:
    """The adapter of one node, with `total` VFs, and the ledger of who has them."""

    def __init__(self, place: Path, total: int) -> None:
        self.tree = Tree(place / "root").make()
        self.tree.pf(total=total)
        # Who asks whether a job has records asks in the namespaces of its node.
        records = self.tree.root / "run/nearmetal"
        records.mkdir(parents=True)
        (records / "slurm").symlink_to("/run/nearmetal/slurm")
        self.ledger = Ledger(place / "ledger")
        self._kernel = FakeKernel(self.tree)
        self._lock = threading.Lock()
        self._before = self.tree.dump()
        server = socketserver.ThreadingUnixStreamServer(str(place / "kernel"), self._handler())
        server.daemon_threads = True
        self._server = server
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def is_as_found(self) -> bool:
        """Whether everything was given back."""
        with self._lock:
            return not self.ledger.read().claims and self.tree.dump() == self._before

    def _handler(self) -> type[socketserver.StreamRequestHandler]:
        kernel, lock = self._kernel, self._lock
        calls: dict[str, Callable[..., Any]] = {
            "links": lambda: [asdict(link) for link in kernel.links()],
            "write": kernel.write,
            "set_up": lambda index, up: kernel.set_up(index, up=up),
            "set_vf": kernel.set_vf,
            "load": kernel.load,
        }

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                # Who asked may be dead by now.
                with contextlib.suppress(ValueError, OSError):
                    name, *words = json.loads(self.rfile.readline())
                    try:
                        with lock:
                            told = {"result": calls[name](*words)}
                    except HostError as error:
                        told = {"error": error.message}
                    self.wfile.write(json.dumps(told).encode() + b"\n")

        return Handler


@contextlib.contextmanager
def model_nodes(place: Path, names: tuple[str, ...], total: int) -> Iterator[dict[str, ModelNode]]:
    """Adapters for nodes below `place`, with a launcher that knows them: `place`/nearmetal."""
    nodes: dict[str, ModelNode] = {}
    try:
        for name in names:
            (place / name).mkdir(parents=True)
            nodes[name] = ModelNode(place / name, total)
        launcher = place / "nearmetal"
        launcher.write_text(LAUNCHER.format(root=ROOT, python=sys.executable, place=place))
        launcher.chmod(0o755)
        yield nodes
    finally:
        for node in nodes.values():
            node.end()
