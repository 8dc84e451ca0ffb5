# SPDX-License-Identifier: Apache-2.0
"""Changes of a cluster on real libvirt, killed and refused at each of their calls: nothing is lost.

The machines are real and have a kernel that halts at once, so nothing answers in them: a console
counts as ready, and nothing is sent into the guests. `test_libvirt_changes.py` has real guests.
"""

from __future__ import annotations

import importlib
import secrets
import signal
import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.cluster.apply import Cluster, down, plan_up, up
from nearmetal.cluster.backends.libvirt import driver
from nearmetal.cluster.backends.libvirt.build import Boot
from nearmetal.cluster.backends.libvirt.driver import LibvirtBackend
from nearmetal.cluster.backends.libvirt.hosts import HostShell
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor
from nearmetal.cluster.backends.libvirt.images import BuiltImages
from nearmetal.cluster.backends.libvirt.machine import GuestKernel
from nearmetal.cluster.backends.libvirt.records import Records
from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, StateError
from nearmetal.core.process import LocalRunner
from tests.system import hypervisors
from tests.system.fuse import Fuse, ended
from tests.walks import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.timeout(600)]

hypervisors.need()

TAG = secrets.token_hex(3)
NAME = f"f{TAG}"
"""Another one in each run: segments and interfaces are those of the whole machine."""

BODY = f"""\
version: 1
name: {NAME}
backend: libvirt
accel: tcg
network: {{subnet: 10.91.{int(TAG[:2], 16)}.0/24}}
hosts:
  - name: h1
    uri: 'URI'
    segment: {{part: 2 MiB, parts: 4}}
    nodes: [{{name: n1, memory: 256 MiB}}, {{name: n2, memory: 256 MiB}}]
  - name: h2
    uri: 'URI'
    segment: {{part: 2 MiB, parts: 2}}
    nodes: [{{name: n3, memory: 256 MiB}}]
"""

N2 = "{name: n2, memory: 256 MiB}"
CHANGES: dict[str, tuple[str, str, set[str], int, int]] = {
    "add": (N2, f"{N2}, {{name: n4, memory: 256 MiB}}", set(), 42, 21),
    "remove": (f", {N2}", "", {"n2"}, 24, 12),
    "memory": (N2, "{name: n2, memory: 320 MiB}", {"n2"}, 40, 20),
    "slots": (N2, "{name: n2, memory: 256 MiB, slots: 2}", {"n2"}, 44, 22),
    "segment": ("part: 2 MiB, parts: 2", "part: 4 MiB, parts: 2", {"n3"}, 54, 27),
    "network": (".0/24}", ".0/24, mtu: 1400}", {"n1", "n2", "n3"}, 126, 63),
}
"""Text before and after each change, the nodes that it recreates, and how many moments to kill and to
refuse at. All but the first need `--replace`."""

POINTS = [
    (change, way, moment)
    for change, (_, _, _, *counts) in CHANGES.items()
    for way, count in zip(("kill", "refusal"), counts, strict=True)
    for moment in range(count)
]

HALT = b"\xfa\xf4\xeb\xfc"
"""cli; hlt; and back."""


def halting_kernel(directory: Path) -> Boot:
    """Write a kernel in the Multiboot form that halts at once."""
    magic, flags, where, length = 0x1BADB002, 0x10000, 0x100000, 32
    addresses = (where, where, where + length + len(HALT), where + length + len(HALT))
    header = struct.pack(
        "<8I", magic, flags, -(magic + flags) & 0xFFFFFFFF, *addresses, where + length
    )
    path = directory / "halt"
    path.write_bytes(header + HALT)
    return Boot(GuestKernel(str(path), str(path), ""))


class Bare(BuiltImages):
    """An image whose machines halt."""

    start: Boot

    def digest(self) -> str:
        return "halting"

    def ensure(self) -> None:
        """Nothing is built."""

    def ready(self) -> bool:
        return True

    def boot(self, shell: HostShell, *, efi: bool = False) -> Boot:
        del shell, efi
        return self.start


@dataclass
class Site:
    """A hypervisor, the records of the cluster, and the things of a user beside it."""

    host: hypervisors.Hypervisor
    directory: Path
    boot: Boot
    before: dict[str, object]

    def spec(self, old: str = "", new: str = "") -> LibvirtSpec:
        text = BODY.replace("URI", self.host.uri)
        assert old in text
        spec = parse_spec(text.replace(old, new, 1) if old else text)
        assert isinstance(spec, LibvirtSpec)
        return spec

    def cluster(self, spec: LibvirtSpec) -> Cluster:
        store = Store(self.directory / "s")
        images = Bare(LocalRunner())
        images.start = self.boot
        return Cluster(NAME, LibvirtBackend(spec, store, LocalRunner(), images), store)

    def raised(self, spec: LibvirtSpec, *, replace: bool = True) -> None:
        up(self.cluster(spec), spec, replace=replace)

    def machines(self) -> dict[str, tuple[str, int]]:
        """Return UUID and process of each domain, the user's too."""
        running = {}
        for pid in self.host.machines():
            # One that libvirtd asked for its abilities may end meanwhile.
            with suppress(OSError):
                running[pid] = Path(f"/proc/{pid}/cmdline").read_text()
        with self.libvirt() as link:
            domains = {domain.name(): domain.UUIDString() for domain in link.listAllDomains()}
        return {
            name.removeprefix(f"nearmetal.{NAME}."): (
                uuid,
                next(pid for pid, words in running.items() if f"guest={name}," in words),
            )
            for name, uuid in domains.items()
        }

    @contextmanager
    def libvirt(self) -> Iterator[Any]:
        """Yield a connection of our own, closed before a process is forked."""
        link = importlib.import_module("libvirt").open(self.host.uri)
        try:
            yield link
        finally:
            link.close()

    def others(self) -> dict[str, object]:
        """Return everything of the user: domains, networks, a segment, and a file."""
        names = ("theirs", "n9")
        with self.libvirt() as link:
            networks = {network.name() for network in link.listAllNetworks()}
        return {
            "domains": {n: m for n, m in self.machines().items() if n in names},
            "networks": networks - {f"nearmetal.{NAME}.network"},
            "segment": theirs().read_bytes(),
            "file": (self.directory / "s" / "clusters" / "notes").read_text(),
        }

    def define_others(self) -> None:
        link = Hypervisor(self.host.uri)
        for name in ("theirs", f"nearmetal.{NAME}.n9"):
            link.start(
                name,
                f"<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory><os><type "
                f"arch='x86_64'>hvm</type><kernel>{self.directory / 'halt'}</kernel></os><features><acpi/></features></domain>",
            )
        bridge = f"<bridge name='th{TAG}'/><ip address='10.92.{int(TAG[:2], 16)}.1' prefix='24'/>"
        link.start_network(
            "users",
            f"<network><name>users</name><forward mode='open'/><dns enable='no'/>{bridge}</network>",
        )
        link.close()
        theirs().write_bytes(b"theirs")
        notes = self.directory / "s" / "clusters" / "notes"
        notes.parent.mkdir(mode=0o700, parents=True)
        notes.parent.parent.chmod(0o700)
        notes.write_text("theirs")


def theirs() -> Path:
    """Return a segment of another cluster of the same name."""
    return Path(f"/dev/shm/nearmetal-{NAME}-h1-0badcafe")


@contextmanager
def without_guests() -> Iterator[None]:
    """Count each started machine as ready, and send nothing into machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "wait", lambda waiting, _limit: [list(waiting)] if waiting else [])
        patch.setattr(Nodes, "outfit", lambda *_: None)
        patch.setattr(Nodes, "check", lambda *_: "")
        yield


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    with hypervisors.one() as host, without_guests():
        made = Site(host, directory, halting_kernel(directory), {})
        made.define_others()
        try:
            made.raised(made.spec())
            made.before = made.others()
            yield made
            down(made.cluster(made.spec()))
            assert made.others() == made.before
            assert set(made.machines()) == {"theirs", "n9"}
        finally:
            theirs().unlink(missing_ok=True)
            hypervisors.end(host)
            hypervisors.ip("link", "del", f"th{TAG}", check=False)
    assert list(Path("/dev/shm").glob(f"nearmetal-{NAME}-*")) == []


WRITES = (
    (Hypervisor, ("start", "mark", "end", "start_network", "end_network")),
    (HostShell, ("check",)),
    (Records, ("write", "forget")),
    (Store, ("record",)),
)


class Moments(Fuse):
    """Kills its process before and after each call that changes something."""

    def light(self) -> None:
        for kind, names in WRITES:
            for name in names:
                self._wrap(kind, name, getattr(kind, name))

    def _wrap(self, kind: type, name: str, work: Callable[..., Any]) -> None:
        def wrapped(*args: Any, **options: Any) -> Any:
            self.touch()
            result = work(*args, **options)
            self.after()
            return result

        setattr(kind, name, wrapped)

    def after(self) -> None:
        self.touch()


class Refusals(Moments):
    """Refuses a call as libvirt or a host does."""

    def touch(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise BackendError("refused")

    def after(self) -> None:
        """A refusal comes before the call."""


@pytest.mark.parametrize(("change", "way", "moment"), walk(POINTS, keep=8))
def test_a_change_that_is_killed_or_refused_is_completed_or_changed_back(
    site: Site, change: str, way: str, moment: int
) -> None:
    old, new, recreated, *_ = CHANGES[change]
    first, changed = site.spec(), site.spec(old, new)
    identity = site.cluster(first).store.cluster(NAME) / "identity"
    known, before = identity.read_text(), site.machines()
    burn = (Moments if way == "kill" else Refusals)(moment).light
    work = partial(site.raised, changed, replace=bool(recreated))
    assert ended(work, burn) == (-signal.SIGKILL if way == "kill" else 1)
    # Every second time the user gives the change up.
    after = (changed, first)[moment % 2]
    site.raised(after, replace=bool(recreated) or after is first)
    check(site, after, before, recreated)
    site.raised(first)
    check(site, first, before, recreated)
    assert identity.read_text() == known


def check(
    site: Site, spec: LibvirtSpec, before: dict[str, tuple[str, int]], recreated: set[str]
) -> None:
    """The cluster is as its spec says, the nodes beside the change run on, and the user's things."""
    assert plan_up(site.cluster(spec), spec).empty
    assert site.others() == site.before
    now = site.machines()
    wanted = {node.name for _, node in spec.nodes}
    assert set(now) == wanted | {"theirs", "n9"}
    for name in wanted & set(before):
        # A machine that is recreated has the same identity, and is another process.
        assert now[name][0] == before[name][0]
        if name not in recreated:
            assert now[name] == before[name]


@pytest.mark.parametrize("change", [c for c, (_, _, recreated, *_) in CHANGES.items() if recreated])
def test_no_machine_is_removed_without_replace(site: Site, change: str) -> None:
    old, new, *_ = CHANGES[change]
    before = site.machines()
    with pytest.raises(StateError, match="already up under another spec"):
        site.raised(site.spec(old, new), replace=False)
    assert site.machines() == before
    assert plan_up(site.cluster(site.spec()), site.spec()).empty


@pytest.mark.full
@pytest.mark.parametrize("change", CHANGES)
def test_the_walk_has_every_moment(site: Site, change: str) -> None:
    old, new, recreated, kills, refusals = CHANGES[change]
    first, changed = site.spec(), site.spec(old, new)
    for count, burn in ((kills, Moments(kills).light), (refusals, Refusals(refusals).light)):
        work = partial(site.raised, changed, replace=bool(recreated))
        assert ended(work, burn) == 0, count
        site.raised(first)
