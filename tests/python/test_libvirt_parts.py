# SPDX-License-Identifier: Apache-2.0
"""The pure parts of the libvirt backend: words of errors, consoles, paths, archives, ssh."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from nearmetal.cluster.backends.libvirt import hosts, nodes
from nearmetal.cluster.backends.libvirt.build import Layout, Site, seed_segment
from nearmetal.cluster.backends.libvirt.hosts import HostShell, owner_of_files, ssh_login
from nearmetal.cluster.backends.libvirt.hypervisor import explain, read_distances
from nearmetal.cluster.backends.libvirt.records import RecordNotes, Records
from nearmetal.cluster.backends.libvirt.remedies import remedy
from nearmetal.cluster.backends.libvirt.values import VirtualHost, VirtualNode
from nearmetal.cluster.resource import Key, Kind, Resource
from nearmetal.cluster.ssh_nodes import Nodes
from nearmetal.core.errors import BackendError, LaunchError
from nearmetal.core.process import LocalRunner
from nearmetal.core.ssh import Login
from nearmetal.image.seed import SeedInterface, SeedVf
from nearmetal.job.copies import (
    GUEST_MPI,
    Staging,
    carried,
    guest_mpi,
    packed,
    stage,
    unpack,
    with_ucx,
)
from nearmetal.job.mpi import Ucx
from nearmetal.job.mpi.installed import Installation, Mpi
from tests.system.need import need_mpi


@pytest.mark.parametrize(
    ("uri", "words", "said", "hint"),
    [
        (
            "qemu:///system",
            "Failed to connect socket to '/run/x': No such file or directory",
            "is not reachable",
            "`apt install libvirt-daemon-system`",
        ),
        (
            "qemu:///system",
            "Failed to connect socket to '/run/x': Permission denied",
            "no permission",
            "group libvirt",
        ),
        (
            "qemu:///system",
            "authentication unavailable: no polkit agent available",
            "refuses us",
            "group libvirt",
        ),
        (
            "qemu+ssh://root@far/system",
            "Cannot recv data: ssh: connect to host far: timed out",
            "is not reachable",
            "`ssh root@far virsh list`",
        ),
    ],
)
def test_a_failed_connection_says_what_to_do(uri: str, words: str, said: str, hint: str) -> None:
    error = explain(uri, words)
    assert said in error.message
    assert words in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("unable to write: No space left on device", "make room"),
        ("Could not open '/x/root': Permission denied", "enter every directory above"),
        ("internal error: Network is already in use by interface eth0", "another subnet"),
        ("Cannot get interface MTU on 'br9': No such device", "bridge"),
        ("unable to map backing store for guest RAM: Cannot allocate memory", "vm.nr_hugepages"),
        ("cannot limit locked memory of process 7 to 9: Operation not permitted", "RESOURCE"),
        (
            "can't open backing store /dev/shm/nearmetal-c-h for guest RAM: Permission denied",
            "AppArmor",
        ),
        (
            "Failed to create file '/var/lib/libvirt/dnsmasq/nm1.macs.new': No such file or directory",
            "mkdir -p",
        ),
        (
            "Failed to connect socket to '/run/libvirt/virtlogd-sock': No such file or directory",
            "start virtlogd",
        ),
        ("something nobody has seen", ""),
    ],
)
def test_refusals_of_libvirt_have_a_remedy(words: str, hint: str) -> None:
    assert hint in remedy(words)
    assert bool(hint) == bool(remedy(words))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nearmetal: ready n1 after 3.1 s\n", (True, "")),
        ("x\nnearmetal: ready n12 after 3 s\n", (False, "")),
        ("nearmetal: failed n1: no seed\n", (False, "no seed")),
        ("nearmetal: failed ?: cannot mount\n", (False, "cannot mount")),
        ("[ 1.0] Kernel panic - not syncing: VFS\n", (False, "Kernel panic - not syncing: VFS")),
        ("booting\n", (False, "")),
        # Still being written.
        ("nearmetal: failed n1: no network inter", (False, "")),
        ("nearmetal: ready n1", (False, "")),
    ],
)
def test_a_console_says_how_the_boot_went(text: str, expected: tuple[bool, str]) -> None:
    assert nodes.outcome(text, "n1") == expected


CELLS = """<capabilities><host><topology><cells num='{n}'>{cells}</cells></topology></host>
</capabilities>"""


def capabilities(*rows: str) -> ET.Element:
    """What libvirt tells of a host with these distances, as it writes them."""
    cells = []
    for i, row in enumerate(rows):
        told = "".join(
            f"<sibling id='{j}' value='{word}'/>"
            for j, word in enumerate(row.split())
            if word != "-"
        )
        cells.append(f"<cell id='{i}'><distances>{told}</distances></cell>")
    return ET.fromstring(CELLS.format(n=len(rows), cells="".join(cells)))  # noqa: S314 - our own


def test_distances_between_numa_nodes_are_read_as_the_kernel_tells_them() -> None:
    assert read_distances(capabilities("10 32", "32 10")) == ((10, 32), (32, 10))
    assert read_distances(capabilities("10")) == ((10,),)


@pytest.mark.parametrize("rows", [("10 -", "32 10"), ("10 256", "32 10"), ("10 0", "32 10"), ()])
def test_distances_that_make_no_sense_are_none(rows: tuple[str, ...]) -> None:
    assert read_distances(capabilities(*rows)) == ()


def test_a_node_is_told_how_far_the_others_are() -> None:
    layout = Layout("0123456789abcdef" * 2, 2, 2 << 20, 2 << 20, 8 << 20)
    site = Site("/d", "", "", ((0,), (1,)), "/s", layout, ((10, 21), (20, 10)))
    known = VirtualNode(
        uri="qemu:///system",
        host="h",
        slots=1,
        memory=1 << 30,
        hugepages=0,
        locked=False,
        viommu="none",
        soft_roce=False,
        accel="tcg",
        device="ivshmem",
        part=1,
        files="9p",
        address="10.7.0.11",
        mac="52:54:00:00:00:01",
        cpus=(0,),
        emulator_cpus=(),
        numa=(),
        image="",
    )
    for numa, node, row in (
        ((1,), 1, [20, 10]),
        ((0,), 0, [10, 21]),
        ((0, 1), -1, []),
        ((), -1, []),
    ):
        told = seed_segment(known.model_copy(update={"numa": numa}), site)
        assert told is not None
        assert (told.vcpu_numa, told.distances) == (node, row)
    nothing = replace(site, distances=())
    told = seed_segment(known.model_copy(update={"numa": (1,)}), nothing)
    assert told is not None
    assert (told.vcpu_numa, told.distances) == (1, [])


def test_a_console_cannot_move_the_cursor() -> None:
    assert nodes.printable("a\x1b[2Jb\r\nc\x07") == "a[2Jb\nc"


def test_where_ssh_goes() -> None:
    assert ssh_login("qemu:///system") is None
    assert ssh_login("qemu+unix:///system?socket=/x") is None
    assert ssh_login("qemu+ssh://root@h2/system") == Login("root@h2")
    assert ssh_login("qemu+ssh://root@h2:2222/system?x=y") == Login("root@h2", port=2222)
    far = HostShell("h2", "qemu+ssh://root@h2:2222/system", LocalRunner())
    assert far.command(["echo", "a b"]).argv[-5:] == ("-p", "2222", "--", "root@h2", "echo 'a b'")


def test_files_are_given_away_only_to_another_user() -> None:
    assert owner_of_files("+64055:+994") == "64055:994"
    assert owner_of_files(f"+{os.geteuid()}:+{os.getegid()}") == ""
    assert owner_of_files("") == ""


def test_a_segment_has_a_name_of_its_own() -> None:
    item = Resource(Key(Kind.HOST, "h1"), VirtualHost(uri="u", directory="/d", device="ivshmem"))
    assert hosts.segment_path(item, "c", "01234567-89") == "/dev/shm/nearmetal-c-h1-01234567"
    none = Resource(item.key, VirtualHost(uri="u", directory="/d", device="none"))
    assert hosts.segment_path(none, "c", "01234567-89") == ""


def test_ssh_trusts_nothing_but_the_clusters_own_keys(tmp_path: Path) -> None:
    where = {"n1": ("10.7.0.11", None), "n2": ("10.7.0.12", Login("r@far"))}
    cluster = Nodes(tmp_path, where, LocalRunner())
    argv = cluster.command("n1", ["echo", "a b"], env={"K": "v; rm"}, workdir=Path("/x y")).argv
    assert "StrictHostKeyChecking=yes" in argv
    assert f"UserKnownHostsFile={tmp_path}/known_hosts" in argv
    assert argv[-5:] == (
        "-l",
        "mpi",
        "--",
        "10.7.0.11",
        "cd '/x y' 2>/dev/null; exec env 'K=v; rm' echo 'a b'",
    )
    assert not any("ProxyCommand" in word for word in argv)
    far = cluster.command("n2", ["true"]).argv
    assert "ProxyCommand=ssh -W '[%h]:%p' -- r@far" in far
    with pytest.raises(BackendError, match="no node n9"):
        cluster.command("n9", ["true"])


def shell() -> HostShell:
    return HostShell("h1", "qemu:///system", LocalRunner())


def test_files_on_a_host_are_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "d" / "f"
    shell().prepare(str(path.parent), "")
    shell().write(str(path), b"one\x00two")
    assert path.read_bytes() == b"one\x00two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert shell().read(str(path), 3) == b"two"
    assert shell().size(str(path)) == 7
    assert shell().size(str(path.parent)) is None
    assert [p.name for p in path.parent.iterdir()] == ["f"]
    shell().remove([str(path), str(path)], str(path.parent))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_and_leaves_no_half_of_a_file() -> None:
    with pytest.raises(BackendError, match="cannot write /dev/full") as caught:
        shell().check("cannot write /dev/full", ["tee", "/dev/full"], b"x")
    assert "make room there" in caught.value.hint


def test_records_survive_and_forget(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.identity() is None
    assert records.all() == []
    identity = records.begin()
    assert records.begin() == records.identity() == identity
    item = Resource(Key(Kind.HOST, "h1"), VirtualHost(uri="u", directory="/d", device="none"))
    records.write(item, RecordNotes(segment="/s"))
    (tmp_path / "resources" / "node.cut.json").write_text('{"attributes": {')
    assert [(r.item, r.notes) for r in records.all()] == [(item, RecordNotes(segment="/s"))]
    assert records.read(Key(Kind.NODE, "cut")) is None
    records.forget(item.key)
    records.forget(item.key)
    assert records.all() == []


def test_notes_of_earlier_releases_are_read(tmp_path: Path) -> None:
    vf = SeedInterface(mac="52:54:00:00:00:02", vf=SeedVf(pf="ens1", index=0, host_numa=0))
    texts = {"started": "1700000000", "seed": "ab", "size": "4096", "vf": vf.model_dump_json()}
    data = {"attributes": {"colour": "red"}, "notes": texts}
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources/node.n1.json").write_text(json.dumps(data))
    data["notes"] = {"vf": ""}
    (tmp_path / "resources/node.n2.json").write_text(json.dumps(data))
    first, second = Records(tmp_path).all()
    assert first.notes == RecordNotes(started=1.7e9, seed="ab", size=4096, vf=vf)
    assert second.notes == RecordNotes()
    assert first.item.attributes == (("colour", "red"),)
    Records(tmp_path).write(first.item, first.notes)
    assert Records(tmp_path).read(first.item.key) == first


def test_what_is_carried_is_named_as_the_nodes_see_it(tmp_path: Path) -> None:
    program = tmp_path / "prog"
    program.write_text("x")
    root = Path("/run/jobs")
    own = carried(root, "j", program, "./prog", GUEST_MPI)
    assert own.program == root / "files" / "j.files" / "prog"
    assert own.installation == GUEST_MPI
    assert own.files == (Staging(program, "j.files"),)
    mpich = Installation(Mpi.MPICH5, tmp_path)
    mpich.launcher.parent.mkdir()
    mpich.launcher.write_text("x")
    both = carried(root, "j", program, "./prog", mpich)
    assert both.installation.prefix.name.startswith("mpich5-")
    assert both.files[1] == Staging(tmp_path, both.installation.prefix.name)
    assert carried(root, "j", None, "/usr/bin/NPmpi", GUEST_MPI).files == ()


def test_machines_get_no_copy_of_an_mpi_in_usr() -> None:
    need_mpi(Mpi.OPENMPI4)
    with pytest.raises(LaunchError, match=r"a copy of Open MPI 4.* in /usr"):
        guest_mpi("openmpi4", None)
    assert guest_mpi(None, None) == GUEST_MPI


def test_of_ucx_only_the_libraries_that_programs_load_are_carried(tmp_path: Path) -> None:
    libraries, plugin = tmp_path / "lib", tmp_path / "plugin"
    for path in (libraries / "ucx", libraries / "cmake", plugin, tmp_path / "shared"):
        path.mkdir(parents=True)
    for name in ("libucp.so.0.0.0", "libucs.so.0", "libucs.so", "libucs_signal.so.0", "cmake/x"):
        (libraries / name).write_text(name)
    for name in ("libuct_ib.so.0", "libuct_ib.so", "libucx_perftest_cuda.so.0"):
        (libraries / "ucx" / name).write_text(name)
    (libraries / "libucp.so.0").symlink_to("libucp.so.0.0.0")
    for name in ("libuct_nearmetal.so", "libuct_nearmetal.so.0"):
        (plugin / name).write_text(name)
    root = Path("/run/jobs")
    nothing = carried(root, "j", None, "/usr/bin/app", GUEST_MPI)
    assert with_ucx(root, nothing, None) is nothing
    taken = with_ucx(root, nothing, Ucx(libraries, plugin))
    there, files = taken.ucx, taken.files
    assert there
    assert [one.only for one in files] == [
        ("libucp.so.0", "libucs.so.0", "ucx/libuct_ib.so.0"),
        ("libuct_nearmetal.so.0",),
    ]
    assert [there.libraries, there.plugin] == [root / "files" / one.name for one in files]
    assert re.fullmatch(
        r"ucx-[0-9a-f]{8} ucx-transport-[0-9a-f]{8}", " ".join(f.name for f in files)
    )
    # Both ways of staging: links are followed, as what they lead to stays here.
    stage(files[0], tmp_path / "shared", "job-x")
    made = tmp_path / "shared" / files[0].name
    assert {str(p.relative_to(made)) for p in made.rglob("*")} == {"ucx", *files[0].only}
    assert (made / "libucp.so.0").read_text() == "libucp.so.0.0.0"
    assert (made / "ucx").stat().st_mode & 0o777 == 0o755
    with tarfile.open(fileobj=io.BytesIO(packed(files[0].path, files[0].only))) as archive:
        assert tuple(archive.getnames()) == files[0].only
        assert all(member.isreg() for member in archive)
    os.utime(plugin / "libuct_nearmetal.so.0", (1, 1))
    again = with_ucx(root, nothing, Ucx(libraries, plugin))
    assert [a.name == b.name for a, b in zip(again.files, files, strict=True)] == [True, False]


def test_what_is_staged_is_readable_whole_and_made_once(tmp_path: Path) -> None:
    source, shared = tmp_path / "mpi", tmp_path / "shared"
    (source / "include").mkdir(parents=True)
    (source / "lib" / "include").mkdir(parents=True)
    shared.mkdir()
    for name, mode in (
        ("include/mpi.h", 0o644),
        ("lib/libmpi.so", 0o600),
        ("lib/libmpi.a", 0o644),
        ("lib/include/kept", 0o644),
        ("run", 0o4700),
    ):
        (source / name).write_text(name)
        (source / name).chmod(mode)
    (source / "lib/libmpi.so.1").symlink_to("libmpi.so")
    stage(Staging(source, "mpi-1"), shared, "job-x")
    assert [p.name for p in shared.iterdir()] == ["mpi-1"]
    made = shared / "mpi-1"
    found = {str(p.relative_to(made)): p.stat().st_mode & 0o7777 for p in made.rglob("*")}
    assert found == {
        "run": 0o755,
        "lib": 0o755,
        "lib/libmpi.so": 0o644,
        "lib/libmpi.so.1": 0o644,
        "lib/include": 0o755,
        "lib/include/kept": 0o644,
    }
    assert (made / "lib/libmpi.so.1").readlink() == Path("libmpi.so")
    (source / "run").write_text("another")
    stage(Staging(source, "mpi-1"), shared, "job-y")
    assert (made / "run").read_text() == "run"
    stage(Staging(source / "run", "job-y.files"), shared, "job-y")
    assert (shared / "job-y.files/run").read_text() == "another"
    with pytest.raises(LaunchError, match="cannot copy") as caught:
        stage(Staging(source, "mpi-1"), tmp_path / "nowhere", "job-x")
    assert "room" in caught.value.hint


def test_archives_go_and_come_back_flat(tmp_path: Path) -> None:
    source = tmp_path / "a"
    (source / "include").mkdir(parents=True)
    (source / "include" / "mpi.h").write_text("headers")
    (source / "x.nm").write_text("counters")
    (source / "link").symlink_to("/etc/passwd")
    unpack(gzip.decompress(packed(source)), tmp_path / "out")
    assert {p.name: p.read_text() for p in (tmp_path / "out").iterdir()} == {"x.nm": "counters"}


def test_a_hostile_archive_writes_nothing_outside(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, size in (("../../evil", 3), ("/abs", 3), ("huge", 1 << 40)):
            member = tarfile.TarInfo(name)
            member.size = min(size, 3)
            archive.addfile(member, io.BytesIO(b"abc"))
    unpack(stream.getvalue(), tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["abs", "evil", "huge"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    with pytest.raises(LaunchError, match="damaged counters"):
        unpack(b"no archive at all", tmp_path / "other")
