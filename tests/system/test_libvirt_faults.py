# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with virtual clusters, on real libvirt daemons: said in words, taken up, undone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.apply import Cluster, down, plan_up, up
from nearmetal.cluster.backends.libvirt.driver import LibvirtBackend
from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor as Link
from nearmetal.cluster.store import Store
from nearmetal.core.errors import BackendError, NearmetalError
from nearmetal.core.process import LocalRunner
from tests.system import hypervisors
from tests.system.local import UID, user_can_read_checkout
from tests.system.virtual_clusters import TWO, Place, environment, places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.cluster.backends.libvirt.spec import LibvirtSpec

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.timeout(1500),
]

hypervisors.need()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with places(tmp_path) as site:
        yield site


def test_a_libvirt_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="is not reachable") as caught:
        Link(f"qemu+unix:///system?socket={tmp_path}/none")
    assert "start libvirtd" in caught.value.hint


@pytest.mark.skipif(
    not user_can_read_checkout(), reason="an ordinary user cannot read this checkout"
)
def test_a_libvirt_that_may_not_be_used_says_so(place: Place) -> None:
    probe = (
        "from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor\n"
        "from nearmetal.core.errors import BackendError\n"
        f"try: Hypervisor('{place.host.uri}')\n"
        "except BackendError as error: print(error.message, error.hint)\n"
    )
    user = [f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    done = subprocess.run(
        ["setpriv", *user, sys.executable, "-c", probe],
        env=environment(place.state),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "no permission" in done.stdout, done.stderr
    assert "join the group libvirt" in done.stdout


def test_an_image_that_is_gone_is_named(place: Place) -> None:
    boot = replace(place.boot(), root="/nowhere/root.squashfs")
    with pytest.raises(BackendError, match=r"/nowhere/root\.squashfs"):
        up(place.cluster(place.spec(), boot), place.spec())


def test_an_image_that_is_corrupt_is_shown_by_its_console(place: Place, tmp_path: Path) -> None:
    broken = tmp_path / "root.squashfs"
    broken.write_bytes(b"\0" * (1 << 20))
    boot = replace(place.boot(), root=str(broken))
    with pytest.raises(BackendError, match="cannot mount the root file system") as caught:
        up(place.cluster(place.spec(), boot), place.spec())
    assert "its whole console" in caught.value.hint


def test_a_machine_that_panics_is_shown_by_its_console(place: Place) -> None:
    boot = place.boot()
    assert boot.kernel is not None
    panics = replace(boot.kernel, arguments=boot.kernel.arguments + " rdinit=/nowhere root=/dev/no")
    with pytest.raises(BackendError, match=r"does not come up: Kernel panic[^|]*\|"):
        up(place.cluster(place.spec(), replace(boot, kernel=panics)), place.spec())


def test_a_machine_that_never_boots_ends_with_a_time_out(place: Place) -> None:
    boot = place.boot()
    assert boot.kernel is not None
    halts = replace(
        boot,
        kernel=replace(
            boot.kernel, arguments="console=ttyS0 maxcpus=0 nosmp rdinit=/bin/busybox -- sleep 1000"
        ),
    )
    with pytest.raises(BackendError, match="not ready after 1 s"):
        up(place.cluster(place.spec(), halts, boot_s=1), place.spec())
    assert place.host.machines() == []


class _GivesUp:
    """A watcher that ends an `up` when the step comes, as a kill would: what runs stays."""

    def __init__(self, when: str) -> None:
        self.when = when

    def begin(self, total: int) -> None:
        del total

    def step(self, text: str) -> None:
        if text == self.when:
            raise InterruptedError(text)


def test_a_domain_of_our_name_that_is_not_ours_is_left_alone(place: Place) -> None:
    other = place.spec()
    cluster = place.cluster(other)
    foreign = Store(place.state.parent / "foreign")
    owner = Cluster("f", LibvirtBackend(other, foreign, LocalRunner(), place.images()), foreign)
    # It need not have booted to be somebody else's.
    with pytest.raises(InterruptedError):
        up(owner, other, progress=_GivesUp("wait for the nodes"))
    running = place.host.machines()
    assert len(running) == 1
    with pytest.raises(BackendError, match="that is not of this cluster") as caught:
        up(cluster, other)
    assert "virsh -c" in caught.value.hint
    down(cluster)
    assert place.host.machines() == running
    down(owner)


def test_a_network_of_our_name_that_is_not_ours_is_left_alone(place: Place) -> None:
    spec = place.spec()
    cluster = place.cluster(spec)
    foreign = Store(place.state.parent / "foreign")
    owner = Cluster("f", LibvirtBackend(spec, foreign, LocalRunner(), place.images()), foreign)
    with pytest.raises(InterruptedError):
        up(owner, spec, progress=_GivesUp("make host h1"))
    (there,) = Link(place.host.uri).networks()
    with pytest.raises(
        BackendError, match=r"has a network .* that is not of this cluster"
    ) as caught:
        up(cluster, spec)
    assert "net-destroy nearmetal.f.network" in caught.value.hint
    down(cluster)
    assert Link(place.host.uri).networks() == [there]
    down(owner)
    assert Link(place.host.uri).networks() == []


def test_what_a_host_that_was_switched_off_has_lost_is_made_anew_or_forgotten(place: Place) -> None:
    spec = place.spec(TWO)
    with pytest.raises(InterruptedError):
        up(place.cluster(spec), spec, progress=_GivesUp("wait for the nodes"))
    assert len(place.host.machines()) == 2
    switch_off(place)
    place.host.start()
    # Its disk is still there: records here, and seeds and consoles there.
    plan = plan_up(place.cluster(spec), spec)
    lost = {str(c.key) for c in plan.effective if c.reason}
    assert {"network h1", "host h1", "node n1", "node n2"} <= lost
    with pytest.raises(InterruptedError):
        up(place.cluster(spec), spec, progress=_GivesUp("wait for the nodes"))
    assert len(place.host.machines()) == 2
    switch_off(place)
    place.host.start()
    down(place.cluster(spec))
    assert hypervisors.traces("f", place.before, place.state) == []


def switch_off(place: Place) -> None:
    """Take from a host what ends with its power: processes, memory, interfaces."""
    place.host.stop()
    hypervisors.end(place.host)
    for path in (Path(thing) for thing in hypervisors.machine_things("f") - place.before):
        if path.parent == Path("/dev/shm"):
            path.unlink()
        else:
            hypervisors.ip("link", "del", path.name)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Place]:
    """As `place`, its state on a disk of one page that the hypervisor sees as well."""
    state = tmp_path / "s"
    state.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=0700", "tmpfs", str(state)]
    subprocess.run(mount, check=True)
    try:
        with hypervisors.one() as host:
            site = Place(state, host)
            try:
                yield site
            finally:
                subprocess.run(["mount", "-o", "remount,size=4m", str(state)], check=True)
                down(site.cluster(site.spec(TWO)))
            assert host.machines() == []
            assert list(state.iterdir()) == []
            assert sorted(hypervisors.machine_things("f") - site.before) == []
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


def test_a_full_disk_is_named_at_every_step_and_taken_up(tiny: Place) -> None:
    """The disk grows page by page: each `up` goes on where the last one found no room."""
    spec = tiny.spec(TWO)
    words: list[str] = []
    for pages in range(2, 100, 2):
        grow = f"remount,size={pages * 4}k"
        subprocess.run(["mount", "-o", grow, str(tiny.state)], check=True)
        words.append(attempt(tiny, spec))
        if "not ready after" in words[-1]:
            break
    full = [text for text in words if "space" in text.lower()]
    assert len(set(full)) >= 3, words
    assert full == words[:-1]


def attempt(place: Place, spec: LibvirtSpec) -> str:
    """Return with which words an `up` fails whose machines have no time to boot."""
    try:
        up(place.cluster(spec, boot_s=0.1), spec)
    except (NearmetalError, OSError) as error:
        return str(error)
    return "it came up"


def test_no_room_for_the_segment_is_named(place: Place) -> None:
    spec = place.spec(TWO.replace("2 MiB", "32 GiB"))
    with pytest.raises(BackendError, match="cannot make the segment"):
        up(place.cluster(spec), spec)
    assert not list(Path("/dev/shm").glob("nearmetal-f-*"))


class _Stops:
    """A watcher that ends a libvirt when the step comes."""

    def __init__(self, host: hypervisors.Hypervisor, when: str) -> None:
        self.host, self.when = host, when

    def begin(self, total: int) -> None:
        del total

    def step(self, text: str) -> None:
        if text == self.when:
            self.host.stop()


def test_one_of_two_hosts_down_in_the_middle(place: Place) -> None:
    far = hypervisors.Hypervisor(place.host.directory.parent / "h2", "h2")
    far.start()
    base = place.spec()
    with hypervisors.bridge("10.84.0.1/24") as bridge:
        try:
            other = base.hosts[0].nodes[0].model_copy(update={"name": "n2"})
            second = {"name": "h2", "uri": far.uri, "nodes": [other]}
            hosts = [*base.hosts, base.hosts[0].model_copy(update=second)]
            network = base.network.model_copy(update={"bridge": bridge})
            spec = base.model_copy(update={"hosts": hosts, "network": network})
            with pytest.raises(BackendError) as caught:
                up(place.cluster(spec), spec, progress=_Stops(far, "make node n2"))
            assert far.uri in caught.value.message
            with pytest.raises(BackendError, match="is not reachable"):
                up(place.cluster(spec), spec)
            far.start()
            up(place.cluster(spec), spec)
            assert plan_up(place.cluster(spec), spec).empty
            down(place.cluster(spec))
        finally:
            hypervisors.end(far)
