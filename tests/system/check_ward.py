# SPDX-License-Identifier: Apache-2.0
"""A cluster of local nodes for the tests of `nearmetal check`, one of which gets the faults."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.system.local import Site, site

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = """\
version: 1
name: {name}
backend: local
network: {{mtu: 1400}}
hosts:
  - name: h1
    nodes:
      - {{name: n1, shm: 16 MiB}}
      - {{name: n2, shm: 16 MiB}}
  - name: h2
    nodes:
      - {{name: n3, shm: 16 MiB}}
      - {{name: n4, shm: 16 MiB}}
"""

NODE = "n3"
"""The node that gets the faults."""


@dataclass
class Ward:
    """A cluster of four nodes, and the node that gets the faults."""

    place: Site
    spec: str
    pids: dict[str, int]
    profile: str = "health_extended"

    def enter(self, namespaces: str, text: str, node: str = NODE, device: str = os.devnull) -> None:
        """Run a text of the shell as root in namespaces of a node."""
        argv = ["nsenter", "-t", str(self.pids[node]), *namespaces.split(), "--", "sh", "-ec", text]
        with Path(device).open("r+b", buffering=0) as stream:
            done = subprocess.run(argv, stdin=stream, check=False, capture_output=True, timeout=30)
        assert done.returncode == 0, done.stderr

    def findings(self) -> list[dict[str, Any]]:
        """Return what a check finds, without what all nodes have from this machine."""
        done = self.place.run("check", self.spec, "--profile", self.profile, "--json")
        assert done.returncode in (0, 4), done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return [finding for finding in found if len(finding["nodes"]) < 4]

    def interface(self) -> str:
        """Return the name of the node's interface."""
        out = self.place.ok("exec", self.spec, NODE, "--", "ls", "/sys/class/net")
        (name,) = [word for word in out.split() if word not in ("lo", "sit0", "tunl0")]
        return name


@contextlib.contextmanager
def ward_of(name: str) -> Iterator[Ward]:
    """Yield a cluster of this name that is up; nothing of it is left."""
    with site() as place:
        spec = place.write("spec.yaml", SPEC.format(name=name))
        place.ok("up", spec)
        place.look(spec)
        yield Ward(place, spec, {n["name"]: n["pid"] for n in place.json("status", spec)["nodes"]})
        place.ok("down", "--yes", spec)
        place.assert_no_trace()
