# SPDX-License-Identifier: Apache-2.0
"""Clusters of virtual machines on a hypervisor of one's own, of which nothing may be left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cluster.apply import Cluster, down
from nearmetal.cluster.backends.libvirt.driver import LibvirtBackend
from nearmetal.cluster.backends.libvirt.hosts import HostShell
from nearmetal.cluster.backends.libvirt.images import BuiltImages, CloudImages
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.store import Store
from nearmetal.core.process import LocalRunner
from nearmetal.image import Cache
from tests.system import hypervisors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.cluster.backends.libvirt.build import Boot

ROOT = Path(__file__).parents[2]

NODES = "nodes: [{name: n1, memory: 512 MiB}]"
TWO = "segment: {part: 2 MiB}, nodes: [{name: n1, memory: 512 MiB}, {name: n2, memory: 512 MiB}]"


def environment(state: Path) -> dict[str, str]:
    """What a command gets whose clusters are in `state` and boot the image of this checkout."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NEARMETAL_", "OMPI_"))}
    return env | {
        "NEARMETAL_STATE_DIR": str(state),
        "NEARMETAL_CACHE_DIR": str(ROOT / "build" / "image-cache"),
        "PYTHONPATH": str(ROOT),
    }


def start(state: Path, *args: str) -> subprocess.Popen[str]:
    """Start a command in a session of its own, so that a test can kill all of it."""
    return subprocess.Popen(
        [sys.executable, "-m", "nearmetal", *args],
        env=environment(state),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@dataclass(frozen=True)
class CommandLine:
    """The command line with a state of its own in a folder."""

    folder: Path

    def start(self, *args: str) -> subprocess.Popen[str]:
        return start(self.folder / "state", *args)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        with self.start(*args) as process:
            out, err = process.communicate(timeout=900)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def ok(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def json(self, verb: str, *args: str) -> Any:
        return json.loads(self.run(verb, "--json", *args).stdout)


@dataclass
class Images(BuiltImages):
    """The built image, or something that does not boot."""

    changed: Boot | None = None

    def boot(self, shell: HostShell, *, efi: bool = False) -> Boot:
        return self.changed or super().boot(shell, efi=efi)


@dataclass
class Place:
    """A state directory, and hypervisors to make clusters on."""

    state: Path
    host: hypervisors.Hypervisor
    before: set[str] = field(default_factory=lambda: hypervisors.machine_things("f"))

    def spec(self, nodes: str = NODES, name: str = "f", more: str = "") -> LibvirtSpec:
        made = parse_spec(
            f"version: 1\nname: {name}\nbackend: libvirt\naccel: tcg\n{more}"
            "network: {subnet: 10.84.0.0/24}\n"
            f"hosts: [{{name: h1, uri: '{self.host.uri}', {nodes}}}]\n"
        )
        assert isinstance(made, LibvirtSpec)
        return made

    def images(self) -> Images:
        return Images(LocalRunner(), cache=Cache(ROOT / "build" / "image-cache"))

    def cluster(
        self, spec: LibvirtSpec, changed: Boot | None = None, boot_s: float = 600
    ) -> Cluster:
        store = Store(self.state)
        built = self.images()
        built.changed = changed
        memory = self.state.parent / "cloud-images.json"
        cloud = CloudImages(spec.image, LocalRunner(), built, memory)
        images = built if spec.image == "default" else cloud
        backend = LibvirtBackend(spec, store, LocalRunner(), images, boot_s=boot_s)
        return Cluster(spec.name, backend, store)

    def boot(self) -> Boot:
        """What the built image boots, as a host of this machine sees it."""
        return self.images().boot(HostShell("h1", self.host.uri, LocalRunner()))

    def start(self, *args: str) -> subprocess.Popen[str]:
        return start(self.state, *args)

    def run(self, *args: str, timeout: float = 900) -> tuple[int, str]:
        with self.start(*args) as process:
            out, err = process.communicate(timeout=timeout)
        return process.returncode, out + err

    def write(self, spec: LibvirtSpec) -> str:
        path = self.state.parent / f"{spec.name}.yaml"
        path.write_text(spec.canonical())
        return str(path)


@contextmanager
def places(folder: Path) -> Iterator[Place]:
    """A hypervisor of one's own; whatever was done, nothing of it may be left."""
    with hypervisors.one() as host:
        site = Place(folder / "s", host)
        yield site
        for name in Store(site.state).names():
            spec = Store(site.state).recorded(name)
            assert isinstance(spec, LibvirtSpec), f"no record of cluster {name}"
            down(site.cluster(spec))
        # An `up` that was refused before anything was made leaves empty directories.
        Store(site.state).tidy()
        assert host.machines() == []
        assert hypervisors.traces("f", site.before, site.state) == []
