# SPDX-License-Identifier: Apache-2.0
"""MPI jobs on machines that were cloned through the API of a simulated vCenter.

Each machine that is on has a guest: Debian 13 in namespaces of its own, with its own sshd and MPI, at
the address that the simulated VMware Tools report. So everything behind that address is real.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.hypervisors import ip
from tests.system.need import need_build
from tests.system.vcenter import PASSWORD, TEMPLATE, Simulator, machines_of, simulator
from tests.system.virtual_clusters import CommandLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "build" / "programs"
BRIDGE, OURS = "nmguests", "10.86.0.1/24"
TRAFFIC = ("-n", "100", "-s", "7", "-b", "20M", "-w", "300")

NODES = """\
hosts:
  - name: h1
    esxi: DC0_C0_H0
    nodes: [{name: n1, slots: 2, vcpus: 2}, {name: n2}]
  - name: h2
    esxi: DC0_C0_H1
    nodes: [{name: n3}]
"""


def guest_root() -> Path:
    """Return the root file system of the built image, without nearmetal in it."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    need_build()
    from tests.system.machines import built_image  # noqa: PLC0415 - only where it is used

    return Path(built_image()["root"])


@dataclass(frozen=True)
class Site(CommandLine):
    """A vCenter whose machines have guests, and the command line on it."""

    vcenter: Simulator

    def write(self, name: str, *parts: str) -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(self.vcenter.head(name) + "".join(parts))
        return str(path)


@contextmanager
def sites(folder: Path, **variables: str) -> Iterator[Site]:
    """A bridge and a vCenter with guests on it; nothing of both may be left."""
    guests = {"GUEST_ROOT": str(guest_root()), "GUEST_BRIDGE": BRIDGE, **variables}
    # Left by a run that was killed.
    ip("link", "delete", BRIDGE, check=False)
    # A bridge without an address of its own changes it with its ports, and guests send to the old one.
    ip("link", "add", BRIDGE, "address", "02:00:00:56:00:01", "type", "bridge")
    try:
        ip("address", "add", OURS, "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        os.environ[PASSWORD] = "pass"
        for vcenter in simulator(folder, guests=guests):
            yield Site(folder, vcenter)
    finally:
        os.environ.pop(PASSWORD, None)
        ip("link", "delete", BRIDGE)
    deadline = time.monotonic() + 10
    while left := [p.name for p in Path("/sys/class/net").iterdir() if p.name.startswith("nmg")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "keys").mkdir()
    for name in ("root", "host"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "keys" / name)]
        subprocess.run(argv, check=True)
    variables = {
        "GUEST_KEY": (folder / "keys" / "root.pub").read_text().strip(),
        "GUEST_HOST_KEY": str(folder / "keys" / "host"),
    }
    with sites(folder, **variables) as place:
        yield place


@pytest.fixture(scope="module")
def spec(site: Site) -> Iterator[str]:
    """A cluster that is up, of a template with cloud-init."""
    path = site.write("jobs", "ssh: {}\n", f"machine: {{template: {TEMPLATE}}}\n", NODES)
    site.ok("up", path)
    yield path
    site.ok("down", "--yes", path)


def program(mpi: str) -> str:
    return str(PROGRAMS / mpi / "mpi_traffic")


def machines_in(site: Site, name: str) -> dict[str, Any]:
    """Return the configuration of the machines of a cluster, by name."""
    session = site.vcenter.session()
    try:
        return {n: vm.config for n, vm in machines_of(session.content, name).items()}
    finally:
        session.close()


def test_up_makes_nodes_of_clones(site: Site, spec: str) -> None:
    assert "nothing to do" in site.ok("plan", spec)
    nodes = site.json("status", spec)["nodes"]
    assert [(n["name"], n["healthy"]) for n in nodes] == [("n1", True), ("n2", True), ("n3", True)]
    assert {n["address"] for n in nodes} == {f"10.86.0.{number}" for number in (11, 12, 13)}
    assert site.ok("exec", spec, "n2", "--", "cat", "/etc/hostname") == "n2\n"
    assert site.ok("exec", spec, "launcher", "--", "id", "-un") == "mpi\n"


def test_no_private_key_passes_through_vcenter(site: Site, spec: str) -> None:
    del spec
    for config in machines_in(site, "jobs").values():
        options = {option.key: str(option.value) for option in config.extraConfig}
        plain = {
            name: base64.b64decode(options[f"guestinfo.{name}"])
            for name in ("userdata", "metadata")
        }
        assert b"ssh_authorized_keys" in plain["userdata"]
        assert b"local-hostname" in plain["metadata"]
        assert not any(b"PRIVATE" in text for text in plain.values())
        assert not any("PRIVATE" in value for value in options.values())


def test_machines_use_the_network_and_say_why(site: Site, spec: str) -> None:
    pairs = site.json("locality", spec)["pairs"]
    assert len(pairs) == 9
    for pair in pairs:
        node, peer = pair["node"], pair["peer"]
        assert pair["channel"] == ("self" if node == peer else "net")
        same_host = node != peer and {node, peer} == {"n1", "n2"}
        assert ("no ivshmem, and VMCI cannot be mapped" in pair["reason"]) == same_host


@pytest.mark.parametrize("mpi", ["openmpi5", "mpich5", "impi"])
def test_an_mpi_job_runs_on_clones(site: Site, spec: str, mpi: str) -> None:
    """Open MPI is the template's own; the others are copied to it."""
    done = site.run("run", "--json", spec, "--mpi", mpi, "-n", "4", "--", program(mpi), *TRAFFIC)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "traffic OK" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["ranks"] == [["n1", 2], ["n2", 1], ["n3", 1]]
    assert answer["proof"]["verdict"] == "proven"
    assert {"net", "shm"} <= set(answer["proof"]["messages"])
    left = "ls -A /run/nearmetal-cluster/jobs | grep -v ^files; ls -A /tmp /dev/shm"
    for node in ("n1", "n2", "n3"):
        shown = site.run("exec", spec, node, "--", "sh", "-c", left).stdout.split()
        assert [word for word in shown if "job-" in word or "nearmetal" in word] == []


def test_a_rank_that_fails_is_named_with_its_code(site: Site, spec: str) -> None:
    done = site.run("run", spec, "-n", "3", "--", "/bin/sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr


def test_a_killed_run_leaves_no_process(site: Site, spec: str) -> None:
    def running() -> list[str]:
        look = ("--", "pgrep", "-cx", "tail")
        return [site.run("exec", spec, node, *look).stdout.strip() for node in ("n2", "n3")]

    with site.start(
        "run", spec, "--map-by", "node", "--", "/usr/bin/tail", "-f", "/dev/null"
    ) as run:
        try:
            until(lambda: running() == ["1", "1"])
        finally:
            run.kill()
    until(lambda: running() == ["0", "0"])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.full
def test_a_benchmark_ends_in_a_report(site: Site, spec: str) -> None:
    results = site.folder / "results"
    options = ("--mpi", "openmpi5", "--arms", "auto", "--blocks", "1")
    shown = site.ok("bench", spec, *options, "--output", str(results))
    assert "the cores of the nodes are not known here" in shown
    site.ok("report", str(results))
    assert (results / "report.html").exists()


def test_a_change_with_an_outage_keeps_nodes_and_a_new_node_is_known_to_all(
    site: Site, spec: str
) -> None:
    before = {name: config.instanceUuid for name, config in machines_in(site, "jobs").items()}
    # Nodes without an outage get the new list while a job runs in them.
    script = "echo started; sleep 25; echo survived"
    with site.start("run", spec, "-n", "3", "--", "/bin/sh", "-c", script) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        text = Path(spec).read_text()
        Path(spec).write_text(text.replace("{name: n3}", "{name: n3, vcpus: 2}, {name: n4}"))
        assert "outage for vcpus" in site.run("plan", spec).stdout
        site.ok("up", "--yes", spec)
        out, err = run.communicate(timeout=300)
    assert (run.returncode, out.split().count("survived")) == (0, 3), err
    assert "nothing to do" in site.ok("plan", spec)
    after = {name: config.instanceUuid for name, config in machines_in(site, "jobs").items()}
    assert {name: after[name] for name in before} == before
    out = site.ok("run", spec, "-n", "5", "--", program("openmpi5"), *TRAFFIC)
    assert "carried by nearmetal: 5 endpoints" in out
    assert " n4\n" in site.ok("exec", spec, "n1", "--", "cat", "/etc/hosts")


def test_a_guest_without_an_address_is_no_node(site: Site, spec: str) -> None:
    """It was switched off by hand: `run` refuses, and `up` makes a node of it again."""
    session = site.vcenter.session()
    machine = machines_of(session.content, "jobs")["n2"]
    session.wait("meddling", machine.PowerOffVM_Task)
    done = site.run("run", spec, "--", program("openmpi5"), *TRAFFIC)
    assert done.returncode == 1
    assert "cluster jobs is not up (~ node n2: power off -> on" in done.stderr
    site.ok("up", spec)
    session.close()
    assert "carried by nearmetal" in site.ok("run", spec, "--", program("openmpi5"), *TRAFFIC)


@pytest.mark.parametrize(
    "sign", ["told/guestinfo.nearmetal.host-key", "upper/etc/nearmetal/seed.json"]
)
def test_up_that_is_killed_before_all_are_nodes_is_taken_up(site: Site, sign: str) -> None:
    path = site.write("cut", "ssh: {}\n", f"machine: {{template: {TEMPLATE}}}\n", NODES)
    known = set(site.folder.glob(f"vm-*/{sign}"))
    with site.start("up", path) as up:
        try:
            until(lambda: set(site.folder.glob(f"vm-*/{sign}")) > known)
        finally:
            up.kill()
    begun = {name: config.uuid for name, config in machines_in(site, "cut").items()}
    site.ok("up", path)
    assert "nothing to do" in site.ok("plan", path)
    made = {name: config.uuid for name, config in machines_in(site, "cut").items()}
    assert made | begun == made
    assert "carried by nearmetal" in site.ok("run", path, "--", program("openmpi5"), *TRAFFIC)
    site.ok("down", "--yes", path)
    assert not (site.folder / "state" / "clusters" / "cut").exists()


def test_a_template_without_cloud_init(site: Site) -> None:
    """The spec names the keys of the template; guests have the addresses of the spec."""
    key, host = (site.folder / "keys" / name for name in ("root", "host"))
    access = f"ssh: {{identity: {key}, host_key: {public(host)}}}\n"
    guest = "guest: {address: 10.86.0.101-10.86.0.103/24}"
    machine = f"machine: {{template: {TEMPLATE}, {guest}}}\n"
    path = site.write("plain", access, machine, NODES)
    site.ok("up", path)
    nodes = site.json("status", path)["nodes"]
    assert [n["address"] for n in nodes] == [f"10.86.0.{n}" for n in (101, 102, 103)]
    out = site.ok("run", path, "-n", "4", "--", program("openmpi5"), *TRAFFIC)
    assert "carried by nearmetal: 4 endpoints" in out
    site.ok("down", "--yes", path)


def refused(site: Site, name: str, keys: str) -> str:
    """Return what `up` says if the spec names this pair, for root and for sshd."""
    key = site.folder / "keys" / keys
    access = f"ssh: {{identity: {key}, host_key: {public(key)}}}\n"
    path = site.write(name, access, f"machine: {{template: {TEMPLATE}}}\n", NODES)
    done = site.run("up", path)
    assert done.returncode == 1
    assert "cannot be entered by ssh as root: " in done.stderr
    site.ok("down", "--yes", path)
    return done.stderr


def test_a_machine_with_another_host_key_is_not_entered(site: Site) -> None:
    said = refused(site, "wrong", "root")
    assert "by ssh as root: its sshd does not have the expected host key (SHA256:" in said
    assert "another machine answers" in said
    assert "known_hosts" not in said


def test_a_key_that_root_does_not_accept_is_refused_with_a_hint(site: Site) -> None:
    said = refused(site, "denied", "host")
    assert "Permission denied" in said
    assert "its sshd must let root log in with the key" in said


def public(key: Path) -> str:
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


FILE = """\
[B]
template: {template}
[ONE]
script: one.sh
[TWO]
script: two.sh
[_VMS_]
a1: B host:DC0_C0_H0 ONE sequence:1 TWO sequence:2
a2: B host:DC0_C0_H1 TWO sequence:2
"""


def test_scripts_of_a_cluster_file_run_once_in_clones(site: Site) -> None:
    """They run as root, in their steps, and again in a machine that was made again."""
    file = site.folder / "post.conf"
    file.write_text(FILE.format(template=TEMPLATE))
    spec = site.folder / "post.yaml"
    site.ok("import", "vhpc", str(file), "--vcenter", "127.0.0.1", "--output", str(spec))
    text = spec.read_text().partition("vsphere.local\n")[2].replace(f"{ROOT}/", f"{site.folder}/")
    spec.write_text(site.vcenter.head("post") + text)
    (site.folder / "one.sh").write_text("#!/bin/bash\nid -un >/etc/one; echo $NEARMETAL_NODE\n")
    two = "#!/bin/sh\n[ $NEARMETAL_NODE = a2 ] || cat /etc/one\necho $NEARMETAL_NODE >>/etc/two\n"
    (site.folder / "two.sh").write_text(two)
    assert f"> script {site.folder}/one.sh on a1 (step 1)" in site.run("plan", str(spec)).stdout
    site.ok("up", str(spec))
    assert site.ok("exec", str(spec), "a1", "--", "cat", "/etc/one") == "root\n"
    logs = {p.name[:9]: p.read_text() for p in site.folder.glob("state/clusters/post/post/*")}
    assert logs == {"a1.one.sh": "a1\n", "a1.two.sh": "root\n", "a2.two.sh": ""}
    assert "nothing to do" in site.ok("up", str(spec)) + site.ok("plan", str(spec))

    # The same name, folder and cluster: only the machine is another one.
    session = site.vcenter.session()
    lost = machines_of(session.content, "post")["a2"]
    session.wait("meddling", lost.PowerOffVM_Task)
    session.wait("meddling", lost.Destroy_Task)
    session.close()
    shown = site.run("plan", str(spec)).stdout
    assert f"> script {site.folder}/two.sh on a2 (step 2)" in shown
    assert "one.sh" not in shown
    site.ok("up", str(spec))
    for node in ("a1", "a2"):
        assert site.ok("exec", str(spec), node, "--", "cat", "/etc/two") == f"{node}\n"

    # A changed script is another one; one that fails holds jobs up until it succeeds.
    (site.folder / "two.sh").write_text(
        f"{two}[ $NEARMETAL_NODE = a1 ] || {{ echo no room; exit 3; }}\n"
    )
    done = site.run("up", str(spec))
    assert done.returncode == 1
    assert "node a2: it failed with exit status 3\n      no room" in done.stderr
    done = site.run("run", str(spec), "--", "/bin/true")
    assert "is not up (> script" in done.stderr
    (site.folder / "two.sh").write_text(two)
    # a1 and a2 have run this content already.
    assert "nothing to do" in site.ok("plan", str(spec))
    site.ok("run", str(spec), "--", "/bin/true")
    site.ok("down", "--yes", str(spec))
    assert not (site.folder / "state" / "clusters" / "post").exists()
