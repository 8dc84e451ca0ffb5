# SPDX-License-Identifier: Apache-2.0
"""Nodes move between two libvirt daemons, each with its own network namespace and segment."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.job.mpi import Mpi
from tests.system import hypervisors
from tests.system.mpi_jobs import INSTALLED, compile_for
from tests.system.virtual_clusters import ROOT, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.mpi,
    pytest.mark.timeout(1200),
]

hypervisors.need()
libvirt = pytest.importorskip("libvirt")

SOURCE = ROOT / "benchmarks" / "mpi" / "mpi_moved.c"
CLUSTER = "mv"
ADDRESSES = ("10.86.0.1", "10.86.0.2")
OVER_NETWORK = ("--env", "NEARMETAL_CHANNELS=self,shm,net")

SPEC = """\
version: 1
name: {name}
backend: libvirt
accel: tcg
network: {{subnet: 10.86.0.0/24, bridge: {bridge}}}
hosts:
  - name: h1
    uri: {uris[0]}
    migration_address: {addresses[0]}
    directory: {folder}/h1
    segment: {{device: ivshmem, part: 16 MiB, parts: 4}}
    nodes:
      - {{name: n1, memory: 768 MiB, cpus: none}}
      - {{name: n2, memory: 768 MiB, cpus: none}}
  - name: h2
    uri: {uris[1]}
    migration_address: {addresses[1]}
    directory: {folder}/h2
    segment: {{device: ivshmem, part: 16 MiB, parts: 4}}
    nodes: []
"""


@dataclass
class Lab:
    """A cluster on two hosts, the second of which is empty at first."""

    folder: Path
    spec: Path
    hosts: tuple[hypervisors.Hypervisor, hypervisors.Hypervisor]

    def start(self, *args: str | Path) -> subprocess.Popen[str]:
        return start(self.folder / "state", *map(str, args))

    def run(self, *args: str | Path) -> tuple[int, str, str]:
        with self.start(*args) as process:
            out, err = process.communicate(timeout=600)
        return process.returncode, out, err

    def ok(self, *args: str | Path) -> str:
        code, out, err = self.run(*args)
        assert code == 0, f"{args}: {code}\n{out}\n{err}"
        return out

    def move(self, node: str, host: str, *more: str) -> dict[str, Any]:
        text = self.ok("migrate", self.spec, node, "--to", host, "--yes", "--json", *more)
        (moved,) = json.loads(text)["moves"]
        assert moved["moved"], text
        assert moved["notes"] == []
        found: dict[str, Any] = moved
        return found

    def begin(self) -> subprocess.Popen[str]:
        """Begin to move n2 from h1, to which it is brought first, to h2."""
        if self.places()["n2"] != "h1":
            self.move("n2", "h1")
        return self.start("migrate", self.spec, "n2", "--to", "h2", "--yes")

    def copies(self, process: subprocess.Popen[str]) -> list[int]:
        """Wait until the copy of n2 is there; return the IDs of its processes."""
        while not (found := self.hosts[1].machines()):
            assert process.poll() is None
        return found

    def record(self, node: str) -> Path:
        return self.folder / "state" / "clusters" / CLUSTER / "moves" / f"{node}.json"

    def places(self) -> dict[str, str]:
        """The host of each node, by the processes of QEMU."""
        found = {}
        for name, host in zip(("h1", "h2"), self.hosts, strict=True):
            for pid in host.machines():
                words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
                match = re.search(rf"guest=nearmetal\.{CLUSTER}\.(n\d)", words)
                assert match, words
                assert match[1] not in found, f"{match[1]} runs twice"
                found[match[1]] = name
        return found

    def is_whole(self, **places: str) -> None:
        """Each node runs once; no file of a node is on the other host; nothing is to do."""
        assert self.places() == places
        for name in ("h1", "h2"):
            files = {path.name for path in (self.folder / name).iterdir()}
            here = [node for node, at in places.items() if at == name]
            assert files == {f"{node}.{kind}" for node in here for kind in ("seed", "console")}
        assert not self.record("n2").exists()
        self.ok("plan", self.spec)

    def channels(self) -> dict[tuple[str, str], str]:
        found = json.loads(self.ok("locality", self.spec, "--json"))
        return {(pair["node"], pair["peer"]): pair["channel"] for pair in found["pairs"]}


def make_certificates(folder: Path) -> None:
    """What QEMU needs to encrypt migrations: an authority, and one certificate for both ends."""
    folder.mkdir()
    addresses = ",".join(f"IP:{address}" for address in ADDRESSES)
    (folder / "names").write_text(
        f"subjectAltName={addresses}\nextendedKeyUsage=serverAuth,clientAuth\n"
        "keyUsage=digitalSignature,keyEncipherment\n"
    )
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    issuer = ["-CA", "ca-cert.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2"]
    for words in (
        [
            "req",
            "-x509",
            "-days",
            "2",
            "-subj",
            "/CN=ca",
            "-keyout",
            "ca-key.pem",
            "-out",
            "ca-cert.pem",
            *new,
        ],
        ["req", "-subj", "/CN=host", "-keyout", "server-key.pem", "-out", "request", *new],
        ["x509", "-req", "-in", "request", *issuer, "-extfile", "names", "-out", "server-cert.pem"],
    ):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)
    for kind in ("key", "cert"):
        shutil.copy(folder / f"server-{kind}.pem", folder / f"client-{kind}.pem")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if Mpi.OPENMPI5 not in INSTALLED:
        pytest.skip("no Open MPI 5")
    folder = tmp_path_factory.mktemp("move")
    before = hypervisors.machine_things(CLUSTER)
    make_certificates(folder / "tls")
    conf = f'migrate_tls_x509_cert_dir = "{folder}/tls"\n'
    with hypervisors.bridged(f"{ADDRESSES[0]}/24", conf) as (first, second, bridge):
        hypervisors.ip("-n", second.netns, "addr", "add", f"{ADDRESSES[1]}/24", "dev", bridge)
        spec = folder / "mv.yaml"
        spec.write_text(
            SPEC.format(
                name=CLUSTER,
                bridge=bridge,
                folder=folder,
                uris=(first.uri, second.uri),
                addresses=ADDRESSES,
            )
        )
        compile_for([Mpi.OPENMPI5], SOURCE, folder)
        lab = Lab(folder, spec, (first, second))
        try:
            lab.ok("up", spec)
            yield lab
        finally:
            lab.run("down", "--yes", spec)
        assert lab.places() == {}
    assert hypervisors.traces(CLUSTER, before, folder / "state" / "clusters" / CLUSTER) == []
    shutil.rmtree(folder)


def test_a_move_is_shown_first_and_refused_with_reasons(lab: Lab) -> None:
    code, out, _ = lab.run("migrate", lab.spec, "n2", "--to", "h2", "--plan", "--json")
    assert code == 3
    (planned,) = json.loads(out)["plan"]
    assert (planned["source"], planned["target"]) == ("h1", "h2")
    code, _, err = lab.run("migrate", lab.spec, "n2", "--to", "h2")
    assert code == 2
    assert "there is no terminal to ask at" in err
    code, _, err = lab.run("migrate", lab.spec, "n9", "--to", "h2")
    assert code == 1
    assert "node n9 does not run" in err
    code, _, err = lab.run("migrate", lab.spec, "n2", "--to", "h3")
    assert code == 1
    assert "no host h3 that is up" in err
    lab.is_whole(n1="h1", n2="h1")


@pytest.mark.parametrize("channels", [OVER_NETWORK, ()], ids=["network", "segment"])
def test_a_job_goes_on_while_its_machine_moves(
    lab: Lab, channels: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    """The program checks each byte, the number and the order of all messages itself."""
    words: list[str | Path] = ["run", lab.spec, "--mpi", "openmpi5", "-n", "2", "--map-by", "node"]
    words += [*channels, "--json", "--timeout", "240"]
    words += ["--", lab.folder / "openmpi5", "90" if not channels else "60", "7"]
    with lab.start(*words) as job:
        try:
            time.sleep(10)
            moves = [lab.move("n2", "h2"), lab.move("n2", "h1", "--tls")]
            assert job.poll() is None, "the job ended before the moves did"
            out, err = job.communicate(timeout=300)
        except BaseException:
            job.kill()
            raise
    assert job.returncode == 0, out + err
    found = re.search(r"moved OK: (\d+) rounds .* none wrong; longest gaps: (.*)", out + err)
    assert found, out + err
    peers = [peer for endpoint in json.loads(out)["stats"] for peer in endpoint["peers"]]
    used = {name for peer in peers for name in peer["channels"]}
    assert used >= ({"net"} if channels else {"net", "segment"}), peers
    # Near, far and near again, in both directions.
    assert channels or {peer["channel"] for peer in peers if peer["moves"] >= 2} == {"segment"}, (
        peers
    )
    record_property("longest gaps", found[2])
    record_property("actions", json.dumps([move["actions"] for move in moves]))
    lab.is_whole(n1="h1", n2="h1")


def test_a_job_that_computes_does_not_hold_up_its_machine(lab: Lab) -> None:
    """No rank makes a call meanwhile: the thread gives up the segment, and finds the next one."""
    words: list[str | Path] = ["run", lab.spec, "--mpi", "openmpi5", "-n", "2", "--map-by", "node"]
    words += ["--env", "NEARMETAL_MOVE_THREAD=on", "--json", "--timeout", "280"]
    words += ["--", lab.folder / "openmpi5", "15", "7", "/tmp/go"]
    with lab.start(*words) as job:
        try:
            for node in ("n1", "n2"):
                while lab.run("exec", lab.spec, node, "--", "ls", "/tmp/go.quiet")[0]:
                    assert job.poll() is None, job.communicate()
            lab.move("n2", "h2")
            lab.move("n2", "h1")
            for node in ("n1", "n2"):
                lab.ok("exec", lab.spec, node, "--", "touch", "/tmp/go")
            out, err = job.communicate(timeout=200)
        except BaseException:
            job.kill()
            raise
    assert job.returncode == 0, out + err
    assert "none wrong" in out + err
    peers = [peer for endpoint in json.loads(out)["stats"] for peer in endpoint["peers"]]
    assert {peer["channel"] for peer in peers if peer["moves"] >= 2} == {"segment"}, peers
    for node in ("n1", "n2"):
        lab.ok("exec", lab.spec, node, "--", "rm", "/tmp/go", "/tmp/go.quiet")
    lab.is_whole(n1="h1", n2="h1")


@pytest.mark.parametrize(
    ("phase", "ends"),
    [
        ("planned", {"h1"}),
        ("prepared", {"h1"}),
        ("quiesced", {"h1"}),
        ("detached", {"h1", "h2"}),
        ("arrived", {"h2"}),
        ("attached", {"h2"}),
        ("resumed", {"h2"}),
    ],
)
def test_a_move_that_is_killed_is_completed_by_the_next_command(
    lab: Lab, phase: str, ends: set[str]
) -> None:
    """The phase on disk is that at the kill, or a later one that the kill did not prevent."""
    record, seen = lab.record("n2"), ""
    with lab.begin() as process:
        deadline = time.monotonic() + 120
        while f'"{phase}"' not in seen and process.poll() is None:
            assert time.monotonic() < deadline
            seen = record.read_text() if record.exists() else ""
        process.send_signal(signal.SIGKILL)
        process.communicate()
    if record.exists():
        last = json.loads(record.read_text())["phase"]
        if last in ("planned", "prepared", "quiesced", "detached"):
            code, _, err = lab.run("up", lab.spec)
            # Nothing differs, or the move comes first.
            assert code == 0 or "is not complete" in err, err
        out = lab.ok("migrate", lab.spec, "--json")
        (report,) = json.loads(out)["moves"]
        if last == phase:
            assert ("h2" if report["moved"] else "h1") in ends
    place = lab.places()["n2"]
    lab.is_whole(n1="h1", n2=place)
    assert lab.ok("exec", lab.spec, "n2", "--", "cat", "/run/nearmetal/segment.conf")


def kill_after(lab: Lab, phase: str) -> None:
    """Begin to move n2 to h2, and kill the command after a phase."""
    record, seen = lab.record("n2"), ""
    with lab.begin() as process:
        while f'"{phase}"' not in seen:
            assert process.poll() is None, seen
            seen = record.read_text() if record.exists() else ""
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_a_machine_that_is_paused_after_its_arrival_is_not_ended(lab: Lab) -> None:
    kill_after(lab, "arrived")
    link = libvirt.open(lab.hosts[1].uri)
    domain = link.lookupByName(f"nearmetal.{CLUSTER}.n2")
    domain.suspend()
    with lab.start("migrate", lab.spec) as process:
        while '"attached"' not in lab.record("n2").read_text():
            assert process.poll() is None
        assert lab.places()["n2"] == "h2"
        domain.resume()
        out, err = process.communicate(timeout=300)
    link.close()
    assert process.returncode == 0, out + err
    lab.is_whole(n1="h1", n2="h2")


def test_a_machine_stays_if_the_daemon_of_its_destination_dies(lab: Lab) -> None:
    with lab.begin() as process:
        copies = lab.copies(process)
        lab.hosts[1].stop()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    # The next daemon of the test has no memory of its machines, so it does not end the copy.
    for pid in copies:
        subprocess.run(["kill", "-KILL", str(pid)], check=False)
    lab.hosts[1].start()
    lab.ok("migrate", lab.spec)
    lab.is_whole(n1="h1", n2="h1")


def test_a_machine_stays_if_the_copy_dies(lab: Lab) -> None:
    with lab.begin() as process:
        for pid in lab.copies(process):
            subprocess.run(["kill", "-KILL", str(pid)], check=False)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    assert "node n2 stayed on host h1: " in out
    lab.is_whole(n1="h1", n2="h1")
    assert lab.channels()["n1", "n2"] == "segment"


def test_a_host_is_emptied_and_its_nodes_meet_at_the_other(lab: Lab) -> None:
    lab.ok("drain", lab.spec, "h1", "--at-once", "2", "--yes")
    lab.is_whole(n1="h2", n2="h2")
    assert lab.channels()["n1", "n2"] == "segment"
    lab.move("n2", "h1")
    assert lab.channels()["n1", "n2"] == "net"
    lab.move("n2", "h2")
    assert lab.channels()["n1", "n2"] == "segment"
